//! Requests for completions of plain text.

use serde_json::Value;

use crate::error::RequestError;
use crate::fields::{Above, Fields, as_token, shown};
use crate::format::ResponseFormat;
use crate::options::AnswerOptions;
use crate::tokens::missing;

/// Prompts in one request at most.
const MAX_PROMPTS: usize = 64;
/// Most likely tokens per position at most, as the OpenAI API has it.
const MAX_LOGPROBS: u32 = 5;

/// A body of `POST /v1/completions`.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// What to continue, 1 to 64 times.
    pub prompts: Vec<Prompt>,
    /// Whether the answer begins with the prompt.
    pub echo: bool,
    /// What each answer has to match.
    pub response_format: Option<ResponseFormat>,
    /// Log-probabilities wanted, and of how many alternatives.
    pub top_logprobs: Option<u32>,
    /// How the answers are made and sent.
    pub options: AnswerOptions,
}

/// A text to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// As text.
    Text(String),
    /// As token ids.
    Tokens(Vec<u32>),
}

impl CompletionRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// Everything that [`RequestError`] lists.
    pub fn from_body(body: &[u8]) -> Result<Self, RequestError> {
        let mut fields = Fields::of_body(body)?;
        let prompt = fields.value("prompt").ok_or_else(|| missing("prompt"))?;
        let request = Self {
            prompts: check_prompt(prompt)?,
            echo: fields.bool("echo")?.unwrap_or(false),
            response_format: ResponseFormat::take(&mut fields, None)?,
            top_logprobs: fields.integer(&["logprobs"], 0..=MAX_LOGPROBS, Above::Refused)?,
            options: AnswerOptions::take(&mut fields)?,
        };
        if request.echo && request.top_logprobs.is_some() {
            let what = "log-probabilities of an echoed prompt are";
            return Err(RequestError::unsupported("logprobs", what));
        }
        check_best_of(&mut fields, request.options.n)?;
        fields.refuse(&["suffix"])?;
        fields.finish()?;
        Ok(request)
    }
}

fn check_prompt(prompt: Value) -> Result<Vec<Prompt>, RequestError> {
    match prompt {
        Value::String(text) => Ok(vec![Prompt::Text(text)]),
        Value::Array(items) if items.is_empty() => Err(RequestError::wrong(
            "prompt",
            "an empty list",
            "something to continue",
        )),
        Value::Array(items) if items[0].is_number() => Ok(vec![tokens("prompt", &items)?]),
        Value::Array(items) if items.len() > MAX_PROMPTS => Err(RequestError::wrong(
            "prompt",
            format!("a list of {}", items.len()),
            format!("{MAX_PROMPTS} prompts at most"),
        )),
        Value::Array(items) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(ids) => tokens(&format!("prompt[{index}]"), &ids),
                other => Err(RequestError::wrong(
                    format!("prompt[{index}]"),
                    shown(&other),
                    "a string or a list of token ids",
                )),
            })
            .collect(),
        other => Err(RequestError::wrong(
            "prompt",
            shown(&other),
            "a string, a list of strings, a list of token ids or a list of such lists",
        )),
    }
}

fn tokens(path: &str, items: &[Value]) -> Result<Prompt, RequestError> {
    let ids = items.iter().enumerate().map(|(index, item)| {
        as_token(item).ok_or_else(|| {
            RequestError::wrong(format!("{path}[{index}]"), shown(item), "a token id")
        })
    });
    ids.collect::<Result<_, _>>().map(Prompt::Tokens)
}

/// As many candidates as answers is no choice, and all that is offered.
fn check_best_of(fields: &mut Fields, n: u32) -> Result<(), RequestError> {
    match fields.integer(&["best_of"], 1..=u32::MAX, Above::Clamped)? {
        Some(best_of) if best_of != n => Err(RequestError::unsupported(
            "best_of",
            "choosing the best of several answers is",
        )),
        _ => Ok(()),
    }
}
