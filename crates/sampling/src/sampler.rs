//! One draw from one row of logits.

use crate::candidates::{Candidate, cut_min_p, cut_top_p, keep_all, keep_top, total};
use crate::row::{argmax, logprob, maximum, weight};
use crate::{SamplingParams, edits, uniform};

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Its id.
    pub token: u32,
    /// Its log-probability under the raw distribution, before bias, penalties, temperature and cuts.
    pub logprob: f32,
}

/// Buffers reused from call to call; one per thread that samples.
#[derive(Debug, Default)]
pub struct Scratch {
    row: Vec<f32>,
    window: Vec<u32>,
    kept: Vec<Candidate>,
}

/// Chooses tokens for one request.
///
/// Order: logit bias, repetition penalty, frequency and presence penalties; then arg-max at temperature 0,
/// or top-k, softmax at temperature, min-p, top-p over what min-p left, and one uniform draw.
/// A row without any possible token gives its lowest id that is a number, or 0, at minus infinity.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
}

impl Sampler {
    /// Takes the parameters of a request, validated beforehand.
    pub fn new(params: SamplingParams) -> Self {
        Self { params }
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Whether a draw is the arg-max of the unmodified logits, which a device can do on its own.
    pub fn is_plain_greedy(&self) -> bool {
        self.params.temperature == 0.0 && !self.edits()
    }

    /// Draws for output `position`, given the tokens generated so far (without the prompt).
    pub fn sample(
        &self,
        logits: &[f32],
        generated: &[u32],
        position: u64,
        scratch: &mut Scratch,
    ) -> Draw {
        let token = self.sample_token(logits, generated, position, scratch);
        Draw {
            token,
            logprob: logprob(logits, token),
        }
    }

    /// The same token as [`Sampler::sample`], without the pass that its log-probability takes.
    pub fn sample_token(
        &self,
        logits: &[f32],
        generated: &[u32],
        position: u64,
        scratch: &mut Scratch,
    ) -> u32 {
        let Scratch { row, window, kept } = scratch;
        let logits = if self.edits() {
            row.clear();
            row.extend_from_slice(logits);
            edits::apply(&self.params, generated, row, window);
            row.as_slice()
        } else {
            logits
        };
        if self.params.temperature == 0.0 || self.params.top_k == 1 {
            return argmax(logits);
        }
        self.draw(logits, position, kept)
            .unwrap_or_else(|| argmax(logits))
    }

    fn edits(&self) -> bool {
        self.params.penalises() || !self.params.logit_bias.is_empty()
    }

    fn draw(&self, logits: &[f32], position: u64, kept: &mut Vec<Candidate>) -> Option<u32> {
        let SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            seed,
            ..
        } = self.params;
        let top_k = top_k as usize;
        let cut_k = top_k > 0 && top_k < logits.len();
        if cut_k {
            keep_top(kept, logits, top_k);
        } else {
            keep_all(kept, logits);
        }
        let max = maximum(logits);
        for candidate in kept.iter_mut() {
            candidate.value = weight(candidate.value, max, temperature);
        }
        cut_min_p(kept, min_p);
        cut_top_p(kept, top_p);
        if cut_k || top_p < 1.0 {
            // By id, so that a near-tie that swaps ranks between two kernels does not move the rest.
            kept.sort_unstable_by_key(|c| c.token);
        }
        let mut left = uniform(seed, position) * total(kept);
        let mut last = None;
        for candidate in kept.iter().filter(|c| c.value > 0.0) {
            left -= f64::from(candidate.value);
            last = Some(candidate.token);
            if left < 0.0 {
                break;
            }
        }
        last
    }
}
