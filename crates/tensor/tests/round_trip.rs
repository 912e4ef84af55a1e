//! What a row loses when it is encoded and decoded, and what is refused.

use proptest::prelude::*;
use tensor::{DType, QuantError, decode_row, encode_row};

/// The types with an encoder and the relative root mean square error allowed.
const BOUNDS: [(DType, f64); 7] = [
    (DType::F32, 0.0),
    (DType::F16, 0.0005),
    (DType::BF16, 0.004),
    (DType::Q8_0, 0.01),
    (DType::Q6K, 0.03),
    (DType::Q4K, 0.1),
    (DType::Q4_0, 0.12),
];

fn round_trip(dtype: DType, values: &[f32]) -> Result<Vec<f32>, QuantError> {
    let len = dtype.row_bytes(values.len()).expect("whole blocks");
    let mut bytes = vec![0xa5; len];
    encode_row(dtype, values, &mut bytes)?;
    let mut out = vec![f32::NAN; values.len()];
    decode_row(dtype, &bytes, &mut out)?;
    Ok(out)
}

fn relative_rmse(values: &[f32], found: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v).powi(2);
    let error: f64 = values.iter().zip(found).map(|(v, f)| square(v - f)).sum();
    let power: f64 = values.iter().map(|v| square(*v)).sum();
    (error / power).sqrt()
}

/// Numbers in -1..1 from a xorshift generator.
fn noise(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

/// Rows shaped like weights: sums of four noises, which are bell-shaped.
fn bell(seed: u64, n: usize) -> Vec<f32> {
    let mut source = noise(seed);
    (0..n).map(|_| source.by_ref().take(4).sum()).collect()
}

#[test]
fn errors_stay_within_bounds() {
    for (dtype, bound) in BOUNDS {
        for seed in 1..=8 {
            for scale in [1.0, 0.02, 300.0] {
                let flat = noise(seed).take(1024).map(|v| v * scale).collect();
                let bell = bell(seed, 1024).iter().map(|v| v * scale).collect();
                let skew = noise(seed).take(1024).map(|v| (v + 0.9) * scale).collect();
                for row in [flat, bell, skew] {
                    let row: Vec<f32> = row;
                    let error = relative_rmse(&row, &round_trip(dtype, &row).unwrap());
                    assert!(error <= bound, "{dtype} seed {seed} x {scale}: {error}");
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for (dtype, _) in BOUNDS {
        let found = round_trip(dtype, &[0.0; 512]).unwrap();
        assert!(found.iter().all(|v| *v == 0.0), "{dtype}");
    }
}

#[test]
fn constants_stay_constant() {
    for (dtype, _) in BOUNDS {
        for value in [1.0, -1.0, 0.03, -77.7] {
            let found = round_trip(dtype, &[value; 256]).unwrap();
            for v in found {
                assert!((v - value).abs() <= 0.005 * value.abs(), "{dtype}: {v}");
            }
        }
    }
}

#[test]
fn one_large_value_among_small_ones_survives() {
    for (dtype, _) in BOUNDS {
        for (at, value) in [(0, 9.0), (100, -9.0), (255, 9.0)] {
            let mut row = [0.001; 256];
            row[at] = value;
            let found = round_trip(dtype, &row).unwrap();
            assert!((found[at] - value).abs() < 0.1, "{dtype}: {}", found[at]);
        }
    }
}

#[test]
fn values_that_are_not_finite_are_named() {
    for (dtype, _) in BOUNDS {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = vec![1.0; 512];
            row[300] = value;
            row[400] = value;
            let error = round_trip(dtype, &row).unwrap_err();
            assert!(
                matches!(error, QuantError::NotFinite { index: 300, .. }),
                "{dtype}: {error}"
            );
        }
    }
}

#[test]
fn values_beyond_the_format_are_named() {
    for (dtype, _) in BOUNDS {
        if dtype == DType::F32 {
            continue;
        }
        for value in [f32::MAX, f32::MIN] {
            let mut row = vec![1.0; 512];
            row[300] = value;
            let error = round_trip(dtype, &row).unwrap_err();
            let expected = QuantError::OutOfRange {
                dtype,
                index: 300,
                value,
            };
            assert_eq!(error, expected);
        }
    }
}

#[test]
fn lengths_are_checked() {
    for dtype in DType::ALL.iter().copied() {
        let (len, size) = (dtype.block_len(), dtype.block_bytes());
        for found in [2 * size - 1, 2 * size + 1, size, 0] {
            let expected = QuantError::ByteLength {
                dtype,
                elements: 2 * len,
                expected: 2 * size,
                found,
            };
            let mut out = vec![0.0; 2 * len];
            let error = decode_row(dtype, &vec![0; found], &mut out).unwrap_err();
            assert_eq!(error, expected);
            if BOUNDS.iter().any(|b| b.0 == dtype) {
                let error = encode_row(dtype, &out, &mut vec![0; found]).unwrap_err();
                assert_eq!(error, expected);
            }
        }
        if dtype.is_quantised() {
            let elements = len + 1;
            let error = decode_row(dtype, &vec![0; size], &mut vec![0.0; elements]).unwrap_err();
            assert_eq!(error, QuantError::PartialBlock { dtype, elements });
        }
        assert_eq!(decode_row(dtype, &[], &mut []), Ok(()));
    }
}

#[test]
fn types_without_an_encoder_are_refused() {
    for dtype in DType::ALL.iter().copied() {
        if BOUNDS.iter().all(|b| b.0 != dtype) {
            let error = round_trip(dtype, &vec![0.0; dtype.block_len()]).unwrap_err();
            assert_eq!(error, QuantError::EncodeUnsupported { dtype });
        }
    }
    let error = QuantError::EncodeUnsupported {
        dtype: DType::Iq4Xs,
    };
    assert_eq!(error.to_string(), "encoding to IQ4_XS is not supported");
}

#[test]
fn ids_and_geometry_agree_with_themselves() {
    for (at, dtype) in DType::ALL.iter().copied().enumerate() {
        assert_eq!(DType::from_ggml_id(dtype.ggml_id()), Some(dtype));
        assert_eq!(tensor::ggml_type_name(dtype.ggml_id()), Some(dtype.name()));
        assert_eq!(dtype.to_string(), dtype.name());
        assert!(!DType::ALL[..at].contains(&dtype));
        let len = dtype.block_len();
        assert_eq!(dtype.row_bytes(3 * len), Some(3 * dtype.block_bytes()));
        assert_eq!(dtype.row_bytes(len + 1).is_none(), dtype.is_quantised());
    }
    assert_eq!(DType::F32.row_bytes(usize::MAX), None);
    assert_eq!(DType::Q4K.row_bytes(4096), Some(2304));
    for (id, name) in [(19, "IQ1_S"), (16, "IQ2_XXS"), (39, "MXFP4"), (26, "I32")] {
        assert_eq!(DType::from_ggml_id(id), None);
        assert_eq!(tensor::ggml_type_name(id), Some(name));
    }
    assert_eq!(tensor::ggml_type_name(42), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // Whole numbers: the sampler of floats fails an assertion of its own where the ends of a range are far apart in size.
    #[test]
    fn finite_rows_never_become_nan(thousandths in prop::collection::vec(-1..10_000_000, 256), shift in -40..1) {
        let row: Vec<f32> = thousandths.iter().map(|v| *v as f32 * 1e-3 * 2.0_f32.powi(shift)).collect();
        for (dtype, _) in BOUNDS {
            let found = round_trip(dtype, &row).unwrap();
            prop_assert!(found.iter().all(|v| v.is_finite()));
        }
    }
}
