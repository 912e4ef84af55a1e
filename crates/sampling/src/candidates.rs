//! Cuts of the distribution: top-k, min-p and top-p.

use std::cmp::Ordering;

/// A token still in the running, with its logit or, after the softmax, its weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub value: f32,
    pub token: u32,
}

impl Candidate {
    /// Largest value first, lowest id on ties.
    pub fn order(&self, other: &Self) -> Ordering {
        other
            .value
            .total_cmp(&self.value)
            .then(self.token.cmp(&other.token))
    }
}

/// Fills `kept` with every possible token, by id.
pub(crate) fn keep_all(kept: &mut Vec<Candidate>, row: &[f32]) {
    kept.clear();
    kept.extend(possible(row));
}

/// Fills `kept` with the `k` best tokens in no particular order.
///
/// One pass with a buffer of twice `k`: whenever it is full, a partial selection halves it and the
/// worst survivor becomes the bar that later tokens must clear. Ids ascend, so ties keep the lowest.
pub(crate) fn keep_top(kept: &mut Vec<Candidate>, row: &[f32], k: usize) {
    kept.clear();
    if k == 0 {
        return;
    }
    let room = k.saturating_mul(2).max(64);
    let mut bar = f32::NEG_INFINITY;
    for candidate in possible(row) {
        if candidate.value > bar {
            kept.push(candidate);
            if kept.len() == room {
                bar = cut(kept, k);
            }
        }
    }
    if kept.len() > k {
        cut(kept, k);
    }
}

/// Drops weights below `min_p`; the best weight is 1 by construction.
pub(crate) fn cut_min_p(kept: &mut Vec<Candidate>, min_p: f32) {
    if min_p > 0.0 {
        kept.retain(|c| c.value >= min_p);
    }
}

/// Keeps the fewest best weights whose sum reaches `top_p` of what is there.
///
/// The head that matters is usually short, so a growing prefix is selected and sorted, not all.
pub(crate) fn cut_top_p(kept: &mut Vec<Candidate>, top_p: f32) {
    if top_p >= 1.0 {
        return;
    }
    let target = f64::from(top_p) * total(kept);
    let mut head = 128;
    loop {
        let len = kept.len();
        if head < len {
            kept.select_nth_unstable_by(head - 1, Candidate::order);
        }
        let prefix = &mut kept[..head.min(len)];
        prefix.sort_unstable_by(Candidate::order);
        let mut mass = 0.0;
        let reached = prefix.iter().position(|c| {
            mass += f64::from(c.value);
            mass >= target
        });
        match reached {
            Some(last) => return kept.truncate(last + 1),
            None if head >= len => return,
            None => head *= 8,
        }
    }
}

/// The sum of all weights.
pub(crate) fn total(kept: &[Candidate]) -> f64 {
    kept.iter().map(|c| f64::from(c.value)).sum()
}

fn possible(row: &[f32]) -> impl Iterator<Item = Candidate> {
    // A comparison with a value that is not a number is false, which drops it.
    row.iter()
        .zip(0u32..)
        .filter(|&(&value, _)| value > f32::NEG_INFINITY)
        .map(|(&value, token)| Candidate {
            value: value + 0.0,
            token,
        })
}

fn cut(kept: &mut Vec<Candidate>, k: usize) -> f32 {
    let (_, worst, _) = kept.select_nth_unstable_by(k - 1, Candidate::order);
    let bar = worst.value;
    kept.truncate(k);
    bar
}
