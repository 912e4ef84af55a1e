//! One draw from one row of logits.

use crate::candidates::{Candidate, cut_min_p, cut_top_p, keep_top, total};
use crate::row::{argmax, logprob, maximum};
use crate::weights::{Weighed, Weights, weight};
use crate::{SamplingParams, edits, uniform};

/// More of the likeliest tokens are not looked for on their own: their row is as quick.
const MOST_DECISIVE: u32 = 64;

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
    buffers: Buffers,
}

#[derive(Debug, Default)]
struct Buffers {
    kept: Vec<Candidate>,
    weighed: Weighed,
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
        let Scratch {
            row,
            window,
            buffers,
        } = scratch;
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
        self.draw(logits, position, buffers)
            .unwrap_or_else(|| argmax(logits))
    }

    /// How many of the likeliest tokens decide, where those and their logits are all that a draw needs; see [`Sampler::sample_top`].
    pub fn decisive(&self) -> Option<usize> {
        let SamplingParams {
            temperature, top_k, ..
        } = self.params;
        let are_few = top_k > 1 && top_k <= MOST_DECISIVE;
        (temperature > 0.0 && are_few && !self.edits()).then_some(top_k as usize)
    }

    /// The token that [`Sampler::sample_token`] gives, from as many of the likeliest tokens as [`Sampler::decisive`] says, or from the
    /// whole row, and their logits: the likeliest first, equal ones by id.
    pub fn sample_top(&self, top: &[(u32, f32)], position: u64, scratch: &mut Scratch) -> u32 {
        let kept = &mut scratch.buffers.kept;
        kept.clear();
        let possible = top.iter().filter(|(_, value)| *value > f32::NEG_INFINITY);
        kept.extend(possible.map(|&(token, value)| Candidate {
            value: value + 0.0,
            token,
        }));
        let likeliest = top.first().map_or(0, |(token, _)| *token);
        self.draw_kept(kept, uniform(self.params.seed, position))
            .unwrap_or(likeliest)
    }

    fn edits(&self) -> bool {
        self.params.penalises() || !self.params.logit_bias.is_empty()
    }

    fn draw(&self, logits: &[f32], position: u64, scratch: &mut Buffers) -> Option<u32> {
        let SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            seed,
            ..
        } = self.params;
        let Buffers { kept, weighed } = scratch;
        let number = uniform(seed, position);
        let top_k = top_k as usize;
        if top_k > 0 && top_k < logits.len() {
            keep_top(kept, logits, top_k);
            return self.draw_kept(kept, number);
        }
        let max = maximum(logits);
        if max == f32::NEG_INFINITY {
            return None;
        }
        let total = weighed.fill(Weights::new(logits, max, temperature, min_p));
        if top_p < 1.0 {
            let target = f64::from(top_p) * total;
            weighed.keep_heaviest(kept, target);
            cut_top_p(kept, target);
            return pick(kept, number);
        }
        weighed.token_at(number * total)
    }

    /// Draws from candidates with their logits.
    fn draw_kept(&self, kept: &mut Vec<Candidate>, number: f64) -> Option<u32> {
        let SamplingParams {
            temperature,
            top_p,
            min_p,
            ..
        } = self.params;
        let max = kept.iter().map(|c| c.value).reduce(f32::max)?;
        for candidate in kept.iter_mut() {
            candidate.value = weight(candidate.value, max, 1.0 / temperature);
        }
        cut_min_p(kept, min_p);
        if top_p < 1.0 {
            let target = f64::from(top_p) * total(kept);
            cut_top_p(kept, target);
        }
        pick(kept, number)
    }
}

/// The candidate at a share of their sum.
fn pick(kept: &mut [Candidate], number: f64) -> Option<u32> {
    // By id, so that a near-tie that swaps ranks between two kernels does not move the rest.
    kept.sort_unstable_by_key(|c| c.token);
    let mut left = number * total(kept);
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
