//! The likeliest ids of a row of logits.
//!
//! Three passes: maxima of runs of [`RUN`] logits, the sum of exponentials, and the choice, which opens only runs whose
//! maximum beats the K-th best so far. With V = 248320 and K = 8 some 50 of 970 runs are opened.

use crate::cpu::lanes::{LANES, Lanes, Op, f_exp, f_max_lane, f_sum};

/// Logits that share a maximum, and a partial sum in f32; partial sums are added in f64.
const RUN: usize = 256;

/// One row.
pub(crate) struct TopKRow<'a> {
    pub logits: &'a [f32],
    /// \[K\].
    pub ids: &'a mut [u32],
    /// \[K\], if they are wanted.
    pub log_probs: Option<&'a mut [f32]>,
    /// \[K\], if they are wanted.
    pub values: Option<&'a mut [f32]>,
}

impl Op for TopKRow<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // Loops and no closures: those are not always compiled for the instruction set.
        let mut tops = Vec::with_capacity(self.logits.len().div_ceil(RUN));
        for run in self.logits.chunks(RUN) {
            tops.push(top_of::<L>(run));
        }
        let top = tops.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let best = choose(self.logits, &tops, self.ids.len());
        for ((_, id), to) in best.iter().zip(self.ids) {
            *to = *id;
        }
        for ((logit, _), to) in best.iter().zip(self.values.into_iter().flatten()) {
            *to = *logit;
        }
        let Some(log_probs) = self.log_probs else {
            return;
        };
        let mut sum = 0.0_f64;
        for run in self.logits.chunks(RUN) {
            sum += f64::from(exp_sum::<L>(run, top));
        }
        let log_sum = f64::from(top) + sum.ln();
        for ((logit, _), to) in best.iter().zip(log_probs) {
            *to = (f64::from(*logit) - log_sum) as f32;
        }
    }
}

/// The best `k`, best first. A later id takes the place of an earlier one only if its logit is larger.
#[inline(always)]
fn choose(logits: &[f32], tops: &[f32], k: usize) -> Vec<(f32, u32)> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(k + 1);
    let mut least = f32::NEG_INFINITY;
    for ((run, &top), first) in logits.chunks(RUN).zip(tops).zip((0u32..).step_by(RUN)) {
        if best.len() == k && top <= least {
            continue;
        }
        for (&logit, id) in run.iter().zip(first..) {
            // What is no number is the least likely.
            let logit = if logit.is_nan() {
                f32::NEG_INFINITY
            } else {
                logit
            };
            if best.len() == k && logit <= least {
                continue;
            }
            let place = best.partition_point(|(other, _)| *other >= logit);
            best.insert(place, (logit, id));
            best.truncate(k);
            least = best.last().map_or(least, |(logit, _)| *logit);
        }
    }
    best
}

/// The end of a run, filled up with what neither counts in a sum nor as a maximum.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    last
}

#[inline(always)]
unsafe fn top_of<L: Lanes>(run: &[f32]) -> f32 {
    let (vectors, rest) = run.as_chunks::<LANES>();
    let mut top = L::f_load(padded(rest).as_ptr());
    for vector in vectors {
        top = L::f_max(L::f_load(vector.as_ptr()), top);
    }
    f_max_lane::<L>(top)
}

#[inline(always)]
unsafe fn exp_sum<L: Lanes>(run: &[f32], top: f32) -> f32 {
    let (vectors, rest) = run.as_chunks::<LANES>();
    let top = L::f_splat(top);
    let mut sum = f_exp::<L>(L::f_sub(L::f_load(padded(rest).as_ptr()), top));
    for vector in vectors {
        sum = L::f_add(sum, f_exp::<L>(L::f_sub(L::f_load(vector.as_ptr()), top)));
    }
    f_sum::<L>(sum)
}
