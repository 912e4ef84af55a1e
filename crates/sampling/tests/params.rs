//! Parameters out of range are refused by name.

use sampling::{SamplingError, SamplingParams};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn validation_names_the_field() {
    assert_eq!(SamplingParams::default().validate(), Ok(()));
    let d = SamplingParams::default;
    let rows = [
        (
            SamplingParams {
                temperature: -0.1,
                ..d()
            },
            "temperature",
        ),
        (
            SamplingParams {
                temperature: NAN,
                ..d()
            },
            "temperature",
        ),
        (
            SamplingParams {
                temperature: 2.1,
                ..d()
            },
            "temperature",
        ),
        (SamplingParams { top_p: 0.0, ..d() }, "top_p"),
        (SamplingParams { top_p: 1.1, ..d() }, "top_p"),
        (SamplingParams { min_p: -1.0, ..d() }, "min_p"),
        (
            SamplingParams {
                repetition_penalty: 0.0,
                ..d()
            },
            "repetition_penalty",
        ),
        (
            SamplingParams {
                presence_penalty: INF,
                ..d()
            },
            "presence_penalty",
        ),
        (
            SamplingParams {
                frequency_penalty: NAN,
                ..d()
            },
            "frequency_penalty",
        ),
        (
            SamplingParams {
                logit_bias: vec![(4, 101.0)],
                ..d()
            },
            "logit_bias",
        ),
    ];
    for (params, field) in rows {
        let error: SamplingError = params.validate().unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
    }
}
