//! Reductions over a row of unmodified logits. A logit that is not a number counts as impossible.

use crate::candidates::{Candidate, keep_top};
use crate::weights::Weights;

/// The id of the largest logit, the lowest such id on ties; 0 when no logit is a number.
pub fn argmax(logits: &[f32]) -> u32 {
    let max = maximum(logits);
    logits.iter().position(|&x| x == max).unwrap_or(0) as u32
}

/// The log-softmax of `logits` at `token`; minus infinity outside the row or where impossible.
pub fn logprob(logits: &[f32], token: u32) -> f32 {
    let max = maximum(logits);
    let chosen = logits
        .get(token as usize)
        .copied()
        .unwrap_or(f32::NEG_INFINITY);
    relative(chosen, max, log_total(logits, max))
}

/// The `n` most likely tokens of the raw distribution with their log-probabilities, best first.
/// Impossible tokens are left out, so the list can be shorter than `n`.
pub fn top_logprobs(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut best = Vec::new();
    keep_top(&mut best, logits, n);
    best.sort_unstable_by(Candidate::order);
    let max = maximum(logits);
    let total = log_total(logits, max);
    best.iter()
        .map(|c| (c.token, relative(c.value, max, total)))
        .collect()
}

/// The largest number in the row. Eight lanes keep the scan in vector registers.
pub(crate) fn maximum(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 8];
    let chunks = logits.chunks_exact(8);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(tail)
        .fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max })
}

fn log_total(logits: &[f32], max: f32) -> f32 {
    match max == f32::NEG_INFINITY {
        true => 0.0,
        false => Weights::new(logits, max, 1.0, 0.0).total().ln() as f32,
    }
}

fn relative(x: f32, max: f32, log_total: f32) -> f32 {
    if max == f32::NEG_INFINITY || x.is_nan() {
        f32::NEG_INFINITY
    } else if x == max {
        -log_total
    } else {
        x - max - log_total
    }
}
