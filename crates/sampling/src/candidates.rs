//! Cuts of the distribution: top-k, min-p and top-p.

use std::cmp::Ordering;

/// Logits that are looked at together.
const RUN: usize = 32;

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
    for (run, first) in row.chunks(RUN).zip((0u32..).step_by(RUN)) {
        // Most runs have none. A comparison with a value that is not a number is false, which drops it.
        if !run.iter().fold(false, |any, &value| any | (value > bar)) {
            continue;
        }
        for (&value, token) in run.iter().zip(first..) {
            if value > bar {
                let value = value + 0.0;
                kept.push(Candidate { value, token });
                if kept.len() == room {
                    bar = cut(kept, k);
                }
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

/// Keeps the fewest best weights whose sum reaches `target`, or all, in the order in which they are. None is above 1.
///
/// Sums of weights that are nearly equal say where the last one is, so that only its like have to be sorted.
pub(crate) fn cut_top_p(kept: &mut Vec<Candidate>, target: f64) {
    // Sixteen classes from one power of two to the next.
    let class = |candidate: &Candidate| (candidate.value.to_bits() >> 19) as usize;
    let mut of_classes = vec![0.0; (1.0_f32.to_bits() >> 19) as usize + 1];
    for candidate in kept.iter() {
        of_classes[class(candidate)] += f64::from(candidate.value);
    }
    let mut mass = 0.0;
    let lowest = of_classes.iter().enumerate().rev().find(|(_, sum)| {
        let reaches = mass + **sum >= target;
        mass += if reaches { 0.0 } else { **sum };
        reaches
    });
    let Some((lowest, _)) = lowest else {
        return;
    };
    let alike = kept.iter().filter(|candidate| class(candidate) == lowest);
    let mut alike: Vec<Candidate> = alike.copied().collect();
    alike.sort_unstable_by(Candidate::order);
    let last = alike.iter().find(|candidate| {
        mass += f64::from(candidate.value);
        mass >= target
    });
    // What rounding keeps from the target is with them all.
    let Some(last) = last.or(alike.last()) else {
        return;
    };
    kept.retain(|candidate| candidate.order(last).is_le());
}

/// The sum of all weights.
pub(crate) fn total(kept: &[Candidate]) -> f64 {
    kept.iter().map(|c| f64::from(c.value)).sum()
}

fn cut(kept: &mut Vec<Candidate>, k: usize) -> f32 {
    let (_, worst, _) = kept.select_nth_unstable_by(k - 1, Candidate::order);
    let bar = worst.value;
    kept.truncate(k);
    bar
}
