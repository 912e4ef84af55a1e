//! A compiled chat template and what it is rendered with.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json};

use crate::error::Rejection;
use crate::values::{from_json, python_str};
use crate::{ChatError, clock, json, source};

const NAME: &str = "chat";
const FALLBACK: &str = include_str!("fallback.jinja");

/// Engine instructions per render: a second or so, for a prompt of thousands of turns.
const FUEL: u64 = 10_000_000;

/// The variables of one render.
#[derive(Debug, Clone, Default)]
pub struct RenderInput {
    /// The conversation, in the shape the chat completions API gives it.
    pub messages: Vec<Json>,
    /// Tool definitions, likewise.
    pub tools: Option<Vec<Json>>,
    /// Whether the prompt ends with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, `documents`, ...). They cannot replace the fields above.
    pub kwargs: Map<String, Json>,
}

/// A compiled template with the special tokens it may print.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template as transformers does: blocks trimmed, one trailing newline dropped.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(false)
            .build()
            .map_err(|error| ChatError::compile(&error))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment
            .set_formatter(|out, _, value| out.write_str(&python_str(value)).map_err(Error::from));
        environment.add_filter("tojson", json::tojson);
        environment.add_filter("string", |value: &Value| python_str(value));
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
                    .with_source(Rejection(message)))
            },
        );
        environment.add_function("strftime_now", |format: String| {
            clock::strftime(clock::now(), &format)
        });
        environment
            .add_template_owned(NAME, source::prepare(source))
            .map_err(|error| ChatError::compile(&error))?;
        Ok(Self {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// A ChatML template with Qwen's tool calls, for a model file that brings none.
    pub fn fallback_chatml() -> Result<Self, ChatError> {
        Self::new(FALLBACK, "", "<|im_end|>")
    }

    /// Fixes the time that `strftime_now` sees, in seconds since 1970.
    pub fn at(mut self, unix_seconds: u64) -> Self {
        self.environment
            .add_function("strftime_now", move |format: String| {
                clock::strftime(unix_seconds, &format)
            });
        self
    }

    /// The prompt for a conversation.
    pub fn render(&self, input: &RenderInput) -> Result<String, ChatError> {
        let list = |items: &[Json]| Value::from(items.iter().map(from_json).collect::<Vec<_>>());
        let defaults = [
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("documents", Value::from(())),
        ];
        let kwargs = input
            .kwargs
            .iter()
            .map(|(name, value)| (name.as_str(), from_json(value)));
        let fixed = [
            ("messages", list(&input.messages)),
            (
                "tools",
                input.tools.as_deref().map_or(Value::from(()), list),
            ),
            (
                "add_generation_prompt",
                Value::from(input.add_generation_prompt),
            ),
        ];
        // Of equal names the last one counts.
        let variables = Value::from_pairs(defaults.into_iter().chain(kwargs).chain(fixed));
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(variables))
            .map_err(|error| ChatError::render(&error, FUEL))
    }
}
