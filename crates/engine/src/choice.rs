//! Choosing a token from a row of logits.

use generation::{GenerateRequest, Token, TopToken};
use grammar::GrammarError;
use sampling::{Sampler, Scratch, logprob, top_logprobs};

use crate::constraint::{Constraint, Masked};

/// What follows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    /// This token.
    Token(Token),
    /// Nothing: the answer is complete under its grammar.
    End,
}

/// Buffers reused from draw to draw.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    scratch: Scratch,
    /// A row without what may not come.
    masked: Vec<f32>,
}

impl Chooser {
    /// Draws the token that follows `generated`. Log-probabilities are of `logits` (\[vocab\]) as they came.
    ///
    /// # Errors
    /// Under `constraint` no token can follow, and no end.
    pub(crate) fn choose(
        &mut self,
        request: &GenerateRequest,
        sampler: &Sampler,
        logits: &[f32],
        generated: &[u32],
        constraint: Option<&mut Constraint>,
    ) -> Result<Choice, GrammarError> {
        let Self { scratch, masked } = self;
        let may_stop = generated.len() >= request.min_tokens as usize;
        let row = match constraint {
            Some(constraint) => match constraint.mask(request, may_stop, logits, masked)? {
                Masked::Row(row) => row,
                Masked::End => return Ok(Choice::End),
            },
            None if may_stop => logits,
            None => mask(masked, logits, &request.stop_ids),
        };
        // The draw is keyed by its place in the answer, so it does not matter which step makes it.
        let id = sampler.sample_token(row, generated, generated.len() as u64, scratch);
        Ok(Choice::Token(Self::take(request, logits, id)))
    }

    /// Draws the token that follows `generated` from the likeliest ones, where those decide: see [`Sampler::decisive`].
    pub(crate) fn choose_top(
        &mut self,
        sampler: &Sampler,
        top: &[(u32, f32)],
        generated: &[u32],
    ) -> u32 {
        sampler.sample_top(top, generated.len() as u64, &mut self.scratch)
    }

    /// The token `id`, with what the request wants to know of it.
    pub(crate) fn take(request: &GenerateRequest, logits: &[f32], id: u32) -> Token {
        let logprob = if request.logprobs {
            logprob(logits, id)
        } else {
            0.0
        };
        let top = top(logits, request.top_logprobs as usize);
        Token { id, logprob, top }
    }
}

/// Copies `logits` to `masked` with `stop_ids` made impossible.
fn mask<'a>(masked: &'a mut Vec<f32>, logits: &[f32], stop_ids: &[u32]) -> &'a [f32] {
    masked.clear();
    masked.extend_from_slice(logits);
    for &stop in stop_ids {
        if let Some(logit) = masked.get_mut(stop as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    masked
}

fn top(logits: &[f32], wanted: usize) -> Vec<TopToken> {
    if wanted == 0 {
        return Vec::new();
    }
    top_logprobs(logits, wanted)
        .into_iter()
        .map(|(id, logprob)| TopToken { id, logprob })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sampling::SamplingParams;

    const LOGITS: [f32; 4] = [1.0, 4.0, 3.0, 2.0];

    fn request() -> GenerateRequest {
        GenerateRequest {
            request_id: "choice".to_owned(),
            prompt: vec![0],
            history_tokens: 0,
            max_tokens: 8,
            min_tokens: 0,
            stop_ids: Vec::new(),
            sampling: SamplingParams::default(),
            logprobs: false,
            top_logprobs: 0,
            speculation: None,
            thinking: None,
            grammar: None,
        }
    }

    fn choose(request: &GenerateRequest, generated: &[u32]) -> Token {
        let sampler = Sampler::new(request.sampling.clone());
        chosen(request, &sampler, &LOGITS, generated)
    }

    fn chosen(
        request: &GenerateRequest,
        sampler: &Sampler,
        logits: &[f32],
        generated: &[u32],
    ) -> Token {
        let choice = Chooser::default().choose(request, sampler, logits, generated, None);
        let Ok(Choice::Token(token)) = choice else {
            panic!("{choice:?}");
        };
        token
    }

    #[test]
    fn stop_tokens_are_impossible_before_min_tokens_only() {
        let request = GenerateRequest {
            min_tokens: 2,
            stop_ids: vec![1, 2],
            ..request()
        };
        assert_eq!(choose(&request, &[]).id, 3);
        assert_eq!(choose(&request, &[3]).id, 3);
        assert_eq!(choose(&request, &[3, 3]).id, 1);
    }

    #[test]
    fn log_probabilities_are_of_the_raw_row() {
        let mut request = GenerateRequest {
            min_tokens: 1,
            stop_ids: vec![1],
            logprobs: true,
            top_logprobs: 2,
            ..request()
        };
        request.sampling.logit_bias = vec![(0, 50.0)];
        let token = choose(&request, &[]);
        // ln(e^1 + e^4 + e^3 + e^2) = 4.440190.
        let near = |logprob: f32, expected: f32| (logprob - expected).abs() < 1e-5;
        assert_eq!(token.id, 0);
        assert!(near(token.logprob, 1.0 - 4.440_19), "{token:?}");
        assert_eq!((token.top[0].id, token.top[1].id), (1, 2));
        assert!(near(token.top[0].logprob, 4.0 - 4.440_19), "{token:?}");
        assert!(near(token.top[1].logprob, 3.0 - 4.440_19), "{token:?}");
    }

    #[test]
    fn the_draw_is_keyed_by_seed_and_place_in_the_answer() {
        let mut request = request();
        request.sampling.temperature = 1.0;
        request.sampling.seed = 5;
        let sampler = Sampler::new(request.sampling.clone());
        for place in 0..20 {
            let generated = vec![0; place];
            let token = chosen(&request, &sampler, &[0.0; 4], &generated);
            // Of four equal tokens, the one whose quarter the number falls into.
            let quarter = (4.0 * sampling::uniform(5, place as u64)) as u32;
            assert_eq!(token.id, quarter, "place {place}");
        }
    }

    #[test]
    fn log_probabilities_are_left_out_unless_wanted() {
        let token = choose(&request(), &[]);
        assert_eq!((token.id, token.logprob, token.top.len()), (1, 0.0, 0));
    }
}
