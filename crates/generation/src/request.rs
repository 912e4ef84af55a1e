//! What is asked for.

use sampling::SamplingParams;

use crate::error::GenerateError;
use crate::grammar::Grammar;
use crate::mode::SpeculationConfig;
use crate::thinking::ThinkingLimit;
use crate::worker::ModelDescription;

/// Most likely tokens that can be asked for beside each chosen one: what the OpenAI API allows.
const MAX_TOP_LOGPROBS: u32 = 20;

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// Names the request in the logs of all processes.
    pub request_id: String,
    /// Token ids.
    pub prompt: Vec<u32>,
    /// Leading tokens of the prompt that the next turn of a conversation begins with as well: what comes before the opening of the
    /// answer. A state is kept there. 0: not known. Changes no token.
    pub history_tokens: u32,
    /// New tokens at most; the context may end the answer earlier.
    pub max_tokens: u32,
    /// Tokens before which no stop token is chosen.
    pub min_tokens: u32,
    /// Tokens that end the answer; the one that did is part of it.
    pub stop_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Whether the log-probability of each chosen token is wanted.
    pub logprobs: bool,
    /// Most likely tokens wanted beside each chosen one.
    pub top_logprobs: u32,
    /// How drafts are used, up to what the worker allows; `None`: as the worker does by itself. Changes no token.
    pub speculation: Option<SpeculationConfig>,
    /// How the answer's reasoning is marked, and how long it may be; `None`: nothing is known of any.
    pub thinking: Option<ThinkingLimit>,
    /// What the answer has to match, a reasoning that it begins inside apart. Stop tokens come only where it may end, and where
    /// it can only end it does, whatever `min_tokens` says.
    pub grammar: Option<Grammar>,
}

impl GenerateRequest {
    /// Says whether `model` can run it.
    ///
    /// # Errors
    /// An empty or overlong prompt, an id outside the vocabulary, too many alternatives, a sampling parameter
    /// out of range, a bound on reasoning that cannot be kept, an overlong grammar.
    pub fn check(&self, model: &ModelDescription) -> Result<(), GenerateError> {
        if self.prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if self.prompt.len() >= model.context_length as usize {
            return Err(GenerateError::PromptTooLong {
                prompt_tokens: self.prompt.len(),
                context_length: model.context_length as usize,
            });
        }
        let prompt = self.prompt.iter().map(|&token| ("prompt", token));
        let stops = self.stop_ids.iter().map(|&token| ("stop_ids", token));
        let biases = self.sampling.logit_bias.iter();
        let biases = biases.map(|&(token, _)| ("logit_bias", token));
        let foreign = prompt
            .chain(stops)
            .chain(biases)
            .find(|&(_, token)| token >= model.vocab_size);
        if let Some((field, token)) = foreign {
            return Err(GenerateError::UnknownToken {
                field,
                token,
                vocab_size: model.vocab_size,
            });
        }
        if self.top_logprobs > MAX_TOP_LOGPROBS {
            return Err(GenerateError::TooManyTopLogprobs {
                wanted: self.top_logprobs,
                limit: MAX_TOP_LOGPROBS,
            });
        }
        if let Some(thinking) = &self.thinking {
            thinking.check(model)?;
        }
        if let Some(grammar) = &self.grammar {
            grammar.check()?;
        }
        Ok(self.sampling.validate()?)
    }
}
