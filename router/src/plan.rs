//! From what a request asks to the calls that the target gets.

use api_types::{AnswerOptions, FormatGrammar, ResponseFormat, ThinkingOptions};
use generation::{GenerateError, GenerateRequest, Grammar};
use sampling::SamplingParams;
use worker_api::WorkerError;

use crate::answer::AnswerPlan;
use crate::compression::Job;
use crate::error::RouterError;
use crate::random;
use crate::state::State;
use crate::target::Target;

/// What is to be answered, and how.
#[derive(Debug)]
pub(crate) struct AnswersPlan {
    /// Each prompt with its token ids and how its answers become text.
    pub prompts: Vec<(Vec<u32>, AnswerPlan)>,
    /// Leading tokens of a prompt that the next turn of a conversation begins with as well; 0: not known.
    pub history_tokens: u32,
    /// What each answer has to match.
    pub grammar: Option<AskedGrammar>,
    /// The only prompt, where it may be made shorter.
    pub compression: Option<Job>,
    pub options: AnswerOptions,
    /// How much reasoning is wanted.
    pub thinking: ThinkingOptions,
    pub top_logprobs: Option<u32>,
}

/// A grammar, and which field of the request asks for it.
#[derive(Debug, Clone)]
pub(crate) struct AskedGrammar {
    pub grammar: Grammar,
    pub field: String,
}

impl From<ResponseFormat> for AskedGrammar {
    fn from(format: ResponseFormat) -> Self {
        let grammar = match format.grammar {
            FormatGrammar::JsonSchema(text) => Grammar::JsonSchema(text),
            FormatGrammar::Regex(text) => Grammar::Regex(text),
            FormatGrammar::Lark(text) => Grammar::Lark(text),
        };
        let field = format.field;
        Self { grammar, field }
    }
}

impl AnswersPlan {
    /// An error of the answers, with the field that is to blame where that is the grammar's.
    pub fn blame(&self, error: impl Into<RouterError>) -> RouterError {
        let error = error.into();
        let is_grammars = matches!(
            error,
            RouterError::Worker(WorkerError::Grammar(_))
                | RouterError::Generate(GenerateError::GrammarTooLong { .. })
        );
        match &self.grammar {
            Some(asked) if is_grammars => RouterError::Grammar {
                field: asked.field.clone(),
                message: error.to_string(),
            },
            _ => error,
        }
    }

    /// The calls that the plan comes to.
    pub async fn requests<T: Target>(
        &self,
        state: &State<T>,
        request_id: &str,
    ) -> Result<Vec<GenerateRequest>, RouterError> {
        let model = state.description().await?;
        let (options, policy) = (&self.options, &state.policy);
        let seed = options.seed.unwrap_or_else(random::bits);
        let mut requests: Vec<GenerateRequest> = Vec::new();
        for (prompt, answer) in &self.prompts {
            let mut request = GenerateRequest {
                request_id: request_id.to_owned(),
                prompt: prompt.clone(),
                history_tokens: self.history_tokens,
                max_tokens: 0,
                min_tokens: options.min_tokens,
                stop_ids: answer.stop_ids.clone(),
                sampling: sampling(options, &policy.sampling),
                logprobs: self.top_logprobs.is_some(),
                top_logprobs: self.top_logprobs.unwrap_or(0),
                speculation: None,
                thinking: None,
                grammar: self.grammar.as_ref().map(|asked| asked.grammar.clone()),
            };
            request.check(model).map_err(|error| self.blame(error))?;
            let room = model.context_length.saturating_sub(prompt.len() as u32);
            let allowance = policy.rules.allow(&self.thinking, options.max_tokens, room);
            request.max_tokens = allowance.max_tokens;
            let marks = answer.reasoning.zip(policy.marks.as_ref());
            request.thinking = marks.map(|(start, marks)| marks.limit(start, allowance.budget));
            request.min_tokens = request.min_tokens.min(request.max_tokens);
            for choice in 0..u64::from(options.n) {
                let mut request = request.clone();
                if options.n > 1 || self.prompts.len() > 1 {
                    request.request_id = format!("{request_id}-{}", requests.len());
                }
                request.sampling.seed = seed.wrapping_add(choice);
                requests.push(request);
            }
        }
        Ok(requests)
    }
}

fn sampling(options: &AnswerOptions, defaults: &SamplingParams) -> SamplingParams {
    let asked = &options.sampling;
    let window = asked.repetition_window.map(|window| window as usize);
    SamplingParams {
        temperature: asked.temperature.unwrap_or(defaults.temperature),
        top_p: asked.top_p.unwrap_or(defaults.top_p),
        top_k: asked.top_k.unwrap_or(defaults.top_k),
        min_p: asked.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: asked
            .repetition_penalty
            .unwrap_or(defaults.repetition_penalty),
        presence_penalty: asked.presence_penalty.unwrap_or(defaults.presence_penalty),
        frequency_penalty: asked
            .frequency_penalty
            .unwrap_or(defaults.frequency_penalty),
        repetition_window: window.unwrap_or(defaults.repetition_window),
        logit_bias: asked.logit_bias.clone(),
        seed: 0,
    }
}
