//! The likeliest ids of rows of logits.

use kernels::{Device, TopKArgs};

use crate::data::{Noise, SameBits, devices, upload};

/// The logarithm of a sum of exponentials good to 3e-7 each, and one rounding of the difference to f32.
const TOLERANCE: f64 = 2e-6;

fn run(device: &dyn Device, vocab_size: usize, k: usize, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let num_rows = logits.len() / vocab_size;
    let (mut ids, mut log_probs) = (vec![0; num_rows * k], vec![0.0; num_rows * k]);
    let mut values = vec![0.0; num_rows * k];
    device.top_k(TopKArgs {
        num_rows,
        vocab_size,
        k,
        logits: &upload(device, logits),
        ids: &mut ids,
        log_probs: Some(&mut log_probs),
        values: Some(&mut values),
    });
    for (i, (id, value)) in ids.iter().zip(&values).enumerate() {
        let logit = logits[i / k * vocab_size + *id as usize];
        let expected = if logit.is_nan() {
            f32::NEG_INFINITY
        } else {
            logit
        };
        assert_eq!(*value, expected, "{id} of row {}", i / k);
    }
    (ids, log_probs)
}

/// The best id of each row, alone.
fn best_ids(device: &dyn Device, vocab_size: usize, logits: &[f32]) -> Vec<u32> {
    let num_rows = logits.len() / vocab_size;
    let mut ids = vec![0; num_rows];
    device.top_k(TopKArgs {
        num_rows,
        vocab_size,
        k: 1,
        logits: &upload(device, logits),
        ids: &mut ids,
        log_probs: None,
        values: None,
    });
    ids
}

/// The definition: sort everything.
fn sorted(logits: &[f32], k: usize) -> (Vec<u32>, Vec<f64>) {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let logit = |id: &u32| f64::from(logits[*id as usize]);
    order.sort_by(|a, b| logit(b).total_cmp(&logit(a)).then(a.cmp(b)));
    order.truncate(k);
    let top = logit(&order[0]);
    let sum: f64 = logits.iter().map(|l| (f64::from(*l) - top).exp()).sum();
    let log_probs = order.iter().map(|id| logit(id) - top - sum.ln()).collect();
    (order, log_probs)
}

#[test]
fn the_likeliest_ids_and_their_log_probabilities() {
    let mut noise = Noise(67);
    for (vocab_size, k, scale) in [
        (6, 6, 2.0),
        (16, 1, 5.0),
        (512, 64, 3.0),
        (1000, 8, 20.0),
        (5003, 8, 0.01),
        (40_000, 22, 8.0),
    ] {
        let mut logits: Vec<f32> = noise
            .values(5 * vocab_size)
            .iter()
            .map(|v| v * scale)
            .collect();
        // Equal logits, in one run and in several.
        for i in [1, 2, vocab_size / 2, vocab_size - 1] {
            logits[i] = scale;
        }
        // A row whose sum leaves the range of f32 unless its maximum is taken off first.
        for logit in &mut logits[vocab_size..2 * vocab_size] {
            *logit += 1e4;
        }
        let rows: Vec<_> = logits
            .chunks_exact(vocab_size)
            .map(|row| sorted(row, k))
            .collect();
        let want_ids: Vec<u32> = rows.iter().flat_map(|(ids, _)| ids).copied().collect();
        let want: Vec<f64> = rows.iter().flat_map(|(_, p)| p).copied().collect();
        let mut same = SameBits::default();
        for device in devices().iter().map(AsRef::as_ref) {
            let what = format!("{k} of {vocab_size} on {}", device.name());
            let (ids, log_probs) = run(device, vocab_size, k, &logits);
            assert_eq!(ids, want_ids, "{what}");
            let best: Vec<u32> = want_ids.iter().step_by(k).copied().collect();
            assert_eq!(best_ids(device, vocab_size, &logits), best, "{what}: best");
            for (got, want) in log_probs.iter().zip(&want) {
                let error = (f64::from(*got) - want).abs();
                assert!(
                    error <= TOLERANCE * want.abs().max(1.0),
                    "{what}: {error:e}"
                );
            }
            let alone: Vec<f32> = logits
                .chunks_exact(vocab_size)
                .flat_map(|row| run(device, vocab_size, k, row).1)
                .collect();
            assert_eq!(log_probs, alone, "{what}: alone");
            same.check(device, log_probs, &what);
        }
    }
}

#[test]
fn logits_that_are_no_numbers_come_last() {
    for device in devices().iter().map(AsRef::as_ref) {
        let (ids, _) = run(device, 5, 3, &[f32::NAN, 1.0, f32::NAN, 2.0, f32::NAN]);
        assert_eq!(ids, [3, 1, 0]);
        let (ids, _) = run(device, 20, 2, &[f32::NEG_INFINITY; 20]);
        assert_eq!(ids, [0, 1]);
        let rows = [
            f32::NAN,
            1.0,
            f32::NAN,
            f32::NAN,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        assert_eq!(best_ids(device, 3, &rows), [1, 0]);
    }
}
