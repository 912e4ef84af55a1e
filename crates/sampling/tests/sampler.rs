//! Rows of data for every step, and the drawn distribution against exact probabilities.

use sampling::{Sampler, SamplingParams, Scratch, argmax, logprob, top_logprobs, uniform};

const NAN: f32 = f32::NAN;
const NINF: f32 = f32::NEG_INFINITY;
const INF: f32 = f32::INFINITY;

fn sampled() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        ..Default::default()
    }
}

/// Logits whose softmax is exactly `probs`.
fn logs(probs: &[f32]) -> Vec<f32> {
    probs.iter().map(|p| p.ln()).collect()
}

fn counts(params: SamplingParams, logits: &[f32], draws: u64) -> Vec<u64> {
    let sampler = Sampler::new(params);
    let mut scratch = Scratch::default();
    let mut counts = vec![0; logits.len()];
    for position in 0..draws {
        counts[sampler.sample_token(logits, &[], position, &mut scratch) as usize] += 1;
    }
    counts
}

fn greedy(params: SamplingParams, logits: &[f32], generated: &[u32]) -> u32 {
    Sampler::new(params)
        .sample(logits, generated, 0, &mut Scratch::default())
        .token
}

#[test]
fn filters_keep_exactly_these_tokens() {
    let probs = logs(&[0.1, 0.4, 0.05, 0.2, 0.25]);
    let rows: [(SamplingParams, &[usize]); 10] = [
        (sampled(), &[0, 1, 2, 3, 4]),
        (
            SamplingParams {
                top_k: 1,
                ..sampled()
            },
            &[1],
        ),
        (
            SamplingParams {
                top_k: 3,
                ..sampled()
            },
            &[1, 3, 4],
        ),
        (
            SamplingParams {
                top_k: 99,
                ..sampled()
            },
            &[0, 1, 2, 3, 4],
        ),
        (
            SamplingParams {
                top_p: 0.39,
                ..sampled()
            },
            &[1],
        ),
        (
            SamplingParams {
                top_p: 0.6,
                ..sampled()
            },
            &[1, 4],
        ),
        (
            SamplingParams {
                top_p: 0.9,
                ..sampled()
            },
            &[0, 1, 3, 4],
        ),
        (
            SamplingParams {
                min_p: 0.45,
                ..sampled()
            },
            &[1, 3, 4],
        ),
        // Of 0.4 + 0.25 + 0.2, the two best hold 76 percent.
        (
            SamplingParams {
                min_p: 0.45,
                top_p: 0.75,
                ..sampled()
            },
            &[1, 4],
        ),
        // Of the 0.65 that top-k leaves, the best holds 61 percent.
        (
            SamplingParams {
                top_k: 2,
                top_p: 0.6,
                ..sampled()
            },
            &[1],
        ),
    ];
    for (params, expected) in rows {
        let seen = counts(params.clone(), &probs, 2000);
        let seen: Vec<usize> = (0..probs.len()).filter(|&i| seen[i] > 0).collect();
        assert_eq!(seen, expected, "{params:?}");
    }
}

#[test]
fn draws_follow_the_exact_distribution() {
    let probs = [0.02f32, 0.3, 0.18, 0.05, 0.25, 0.2];
    let logits = logs(&probs);
    let draws = 60_000;
    for (seed, temperature) in [(1u64, 1.0f32), (7, 0.5), (42, 1.7), (u64::MAX, 1.0)] {
        let weights: Vec<f64> = probs
            .iter()
            .map(|&p| f64::from(p).powf(1.0 / f64::from(temperature)))
            .collect();
        let total: f64 = weights.iter().sum();
        let params = SamplingParams {
            temperature,
            seed,
            ..Default::default()
        };
        let chi_square: f64 = counts(params, &logits, draws)
            .iter()
            .zip(&weights)
            .map(|(&n, w)| {
                let expected = w / total * draws as f64;
                (n as f64 - expected).powi(2) / expected
            })
            .sum();
        // Five degrees of freedom: 20.5 is one in a thousand.
        assert!(chi_square < 20.5, "seed {seed}: chi square {chi_square}");
    }
}

#[test]
fn large_cuts_agree_with_a_full_sort() {
    let logits: Vec<f32> = (0..5000).map(|i| (uniform(9, i) * 6.0) as f32).collect();
    let mut sorted: Vec<usize> = (0..logits.len()).collect();
    sorted.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    for top_p in [0.05f32, 0.5, 0.95] {
        let mut mass = 0.0;
        let size = sorted.iter().position(|&i| {
            mass += f64::from(logits[i]).exp() / total;
            mass >= f64::from(top_p)
        });
        let allowed = &sorted[..size.unwrap() + 2];
        let seen = counts(SamplingParams { top_p, ..sampled() }, &logits, 3000);
        assert!(
            (0..logits.len()).all(|i| seen[i] == 0 || allowed.contains(&i)),
            "{top_p}"
        );
    }
    for k in [1usize, 20, 700] {
        let best: Vec<usize> = top_logprobs(&logits, k)
            .iter()
            .map(|&(token, _)| token as usize)
            .collect();
        assert_eq!(best, sorted[..k]);
    }
}

#[test]
fn the_likeliest_tokens_alone_give_the_draw_of_the_whole_row() {
    let mut logits: Vec<f32> = (0..3000)
        .map(|i| (uniform(3, i) * 12.0) as f32 - 4.0)
        .collect();
    // Equal ones among the last that are kept, zeros of both signs, and what is no logit.
    logits[100..140].fill(7.5);
    logits[7] = -0.0;
    logits[9] = NAN;
    logits[11] = NINF;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.retain(|&i| !logits[i as usize].is_nan());
    order.sort_by(|&a, &b| {
        let of = |i: u32| logits[i as usize] + 0.0;
        of(b).total_cmp(&of(a)).then(a.cmp(&b))
    });
    let mut scratch = Scratch::default();
    for (top_k, top_p, min_p, temperature) in [
        (2, 1.0, 0.0, 1.0),
        (20, 0.95, 0.0, 0.6),
        (40, 1.0, 0.05, 1.3),
        (64, 0.3, 0.001, 5.0),
    ] {
        let sampler = Sampler::new(SamplingParams {
            top_k,
            top_p,
            min_p,
            temperature,
            ..Default::default()
        });
        let decisive = sampler.decisive().unwrap();
        assert_eq!(decisive, top_k as usize);
        let best = order[..decisive].iter();
        let top: Vec<(u32, f32)> = best.map(|&i| (i, logits[i as usize])).collect();
        for position in 0..500 {
            let whole = sampler.sample_token(&logits, &[], position, &mut scratch);
            let got = sampler.sample_top(&top, position, &mut scratch);
            assert_eq!(got, whole, "{top_k} at {position}");
        }
    }
    let without = [
        SamplingParams::default(),
        sampled(),
        SamplingParams {
            top_k: 65,
            ..sampled()
        },
        SamplingParams {
            top_k: 20,
            logit_bias: vec![(1, 2.0)],
            ..sampled()
        },
        SamplingParams {
            top_k: 20,
            presence_penalty: 1.0,
            ..sampled()
        },
    ];
    for params in without {
        assert_eq!(Sampler::new(params).decisive(), None);
    }
}

#[test]
fn same_seed_and_position_is_the_same_draw() {
    let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32 * 0.3).collect();
    let sampler = Sampler::new(SamplingParams {
        seed: 5,
        ..sampled()
    });
    let other = Sampler::new(SamplingParams {
        seed: 6,
        ..sampled()
    });
    let mut warm = Scratch::default();
    let forward: Vec<_> = (0..64)
        .map(|i| sampler.sample(&logits, &[], i, &mut warm))
        .collect();
    for i in (0..64).rev() {
        let again = sampler.sample(&logits, &[3; 9], i, &mut Scratch::default());
        assert_eq!(again, forward[i as usize]);
    }
    let differs = (0..64)
        .filter(|&i| other.sample(&logits, &[], i, &mut warm) != forward[i as usize])
        .count();
    assert!(differs > 50);
    assert_ne!(uniform(0, 1), uniform(1, 0));
}

#[test]
fn penalties_by_hand() {
    let d = SamplingParams::default;
    let rep = |p| SamplingParams {
        repetition_penalty: p,
        ..d()
    };
    let freq = |p| SamplingParams {
        frequency_penalty: p,
        ..d()
    };
    let pres = |p| SamplingParams {
        presence_penalty: p,
        ..d()
    };
    let rows: [(SamplingParams, &[f32], &[u32], u32); 12] = [
        (rep(2.0), &[3.0, 1.6], &[], 0),
        (rep(2.0), &[3.0, 1.6], &[0], 1),
        // Once per token, not per occurrence: 3 / 1.5 = 2.
        (rep(1.5), &[3.0, 1.9], &[0, 0, 0], 0),
        (rep(2.0), &[-1.0, -1.5], &[0], 1),
        (freq(0.5), &[3.0, 2.2], &[0], 0),
        (freq(0.5), &[3.0, 2.2], &[0, 1, 0, 0], 1),
        (pres(0.5), &[3.0, 2.2], &[0, 0, 0], 0),
        (pres(0.9), &[3.0, 2.2], &[0], 1),
        (pres(-1.0), &[3.0, 2.2], &[1], 1),
        (
            SamplingParams {
                repetition_window: 2,
                ..pres(0.9)
            },
            &[3.0, 2.2],
            &[0, 7, 7],
            0,
        ),
        (
            SamplingParams {
                repetition_window: 0,
                ..pres(0.9)
            },
            &[3.0, 2.2],
            &[0],
            0,
        ),
        // Division comes before subtraction: 4 / 2 - 1 = 1, not (4 - 1) / 2 = 1.5.
        (
            SamplingParams {
                presence_penalty: 1.0,
                ..rep(2.0)
            },
            &[4.0, 1.2],
            &[0],
            1,
        ),
    ];
    for (params, logits, generated, expected) in rows {
        assert_eq!(
            greedy(params.clone(), logits, generated),
            expected,
            "{params:?} {generated:?}"
        );
    }
}

#[test]
fn bias_forces_and_forbids() {
    let logits = [5.0, 1.0, 4.0];
    let bias = |list: &[(u32, f32)], t| SamplingParams {
        logit_bias: list.to_vec(),
        temperature: t,
        ..Default::default()
    };
    assert_eq!(greedy(bias(&[(1, 100.0)], 0.0), &logits, &[]), 1);
    assert_eq!(greedy(bias(&[(0, -100.0)], 0.0), &logits, &[]), 2);
    assert_eq!(greedy(bias(&[(99, 100.0)], 0.0), &logits, &[]), 0);
    assert_eq!(counts(bias(&[(1, 100.0)], 1.0), &logits, 500), [0, 500, 0]);
    assert_eq!(counts(bias(&[(0, -100.0)], 1.0), &logits, 500)[0], 0);
    let draw = Sampler::new(bias(&[(1, 100.0)], 0.0));
    let draw = draw.sample(&logits, &[], 0, &mut Scratch::default());
    assert_eq!(
        draw.logprob,
        logprob(&logits, 1),
        "log-probabilities are raw"
    );
}

#[test]
fn odd_rows_never_panic_and_nan_never_wins() {
    let rows: [(&[f32], u32); 11] = [
        (&[], 0),
        (&[-3.0], 0),
        (&[NAN], 0),
        (&[NAN, -1.0, NAN], 1),
        (&[NINF, NAN, 2.0], 2),
        (&[NINF, NINF], 0),
        (&[NAN, NINF], 1),
        (&[1.0, INF, 3.0], 1),
        (&[INF, NAN, NINF], 0),
        (&[NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, -9.0], 9),
        (&[NAN, NINF, NAN, NINF], 1),
    ];
    for (logits, expected) in rows {
        for params in [
            SamplingParams::default(),
            sampled(),
            SamplingParams {
                top_k: 1,
                ..sampled()
            },
            SamplingParams {
                top_k: 2,
                top_p: 0.9,
                min_p: 0.1,
                ..sampled()
            },
            SamplingParams {
                repetition_penalty: 1.1,
                ..sampled()
            },
        ] {
            let sampler = Sampler::new(params.clone());
            let draw = sampler.sample(logits, &[0, 5], 3, &mut Scratch::default());
            assert_eq!(draw.token, expected, "{logits:?} {params:?}");
            assert!(!draw.logprob.is_nan(), "{logits:?}");
        }
        assert!(
            top_logprobs(logits, 20)
                .iter()
                .all(|(_, p)| p.is_finite() || logits.contains(&INF))
        );
    }
}

#[test]
fn top_k_of_one_is_greedy_with_ties_to_the_lowest() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    assert_eq!(argmax(&[-0.0, 0.0]), 0);
    for round in 0..50u64 {
        let row: Vec<f32> = (0..300)
            .map(|i| (uniform(round, i) * 20.0).floor() as f32)
            .collect();
        assert_eq!(
            greedy(
                SamplingParams {
                    top_k: 1,
                    ..sampled()
                },
                &row,
                &[]
            ),
            argmax(&row)
        );
        assert_eq!(top_logprobs(&row, 1)[0].0, argmax(&row));
    }
}

#[test]
fn logprobs_are_of_the_raw_distribution() {
    let logits = logs(&[0.125, 0.5, 0.375]);
    let top = top_logprobs(&logits, 2);
    assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
    for (token, p) in top.into_iter().chain([(0, logprob(&logits, 0))]) {
        assert!((p - logits[token as usize]).abs() < 1e-6);
    }
    assert!(top_logprobs(&logits, 0).is_empty());
    assert_eq!(logprob(&logits, 17), NINF);
}
