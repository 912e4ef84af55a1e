//! Requests for chat completions.

use serde_json::{Map, Value};

use crate::compression::CompressionOptions;
use crate::error::RequestError;
use crate::fields::{Above, Fields, shown};
use crate::format::ResponseFormat;
use crate::messages;
use crate::options::AnswerOptions;
use crate::thinking::ThinkingOptions;
use crate::tokens::missing;
use crate::tools::{self, ToolChoice};

/// Most likely tokens per position at most, as the OpenAI API has it.
const MAX_TOP_LOGPROBS: u32 = 20;

/// Asking for these is asking for what is not there.
const REFUSED: [&str; 2] = ["audio", "web_search_options"];

/// The names that tools had before they were tools.
const LEGACY: [(&str, &str); 2] = [("functions", "tools"), ("function_call", "tool_choice")];

/// A body of `POST /v1/chat/completions`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// The conversation in the shape that chat templates take: contents are strings, one system message at most stands
    /// first, the arguments of past tool calls are objects.
    pub messages: Vec<Value>,
    /// The tools that the model is shown, in the nested form of this API, otherwise just as they were sent; none, where
    /// it is to call none.
    pub tools: Vec<Value>,
    /// Whether it calls one of them.
    pub tool_choice: ToolChoice,
    /// Whether it may call several in one answer.
    pub parallel_tool_calls: bool,
    /// Types of tools that were left out because only another server has them.
    pub skipped_tools: Vec<String>,
    /// Whether the prompt ends with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Whether the answer goes on with the last message, which is an assistant's, in place of one of its own.
    pub continue_final_message: bool,
    /// Whether the answer begins with reasoning, and how much of it there may be.
    pub thinking: ThinkingOptions,
    /// Further variables of the template; they have the last word there.
    pub template_kwargs: Map<String, Value>,
    /// What the answer has to match.
    pub response_format: Option<ResponseFormat>,
    /// Log-probabilities wanted, and of how many alternatives.
    pub top_logprobs: Option<u32>,
    /// Whether the prompt is made shorter.
    pub compression: CompressionOptions,
    /// How the answers are made and sent.
    pub options: AnswerOptions,
}

impl ChatRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// Everything that [`RequestError`] lists.
    pub fn from_body(body: &[u8]) -> Result<Self, RequestError> {
        let mut fields = Fields::of_body(body)?;
        let messages = fields.array("messages")?;
        let (mut tools, tool_choice) = tools::take(&mut fields)?;
        if tool_choice == ToolChoice::None {
            tools.clear();
        }
        let messages = messages::check(messages.ok_or_else(|| missing("messages"))?)?;
        let continue_final_message = take_continuation(&mut fields, &messages)?;
        let request = Self {
            messages,
            tools,
            tool_choice,
            skipped_tools: Vec::new(),
            parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
            add_generation_prompt: fields
                .bool("add_generation_prompt")?
                .unwrap_or(!continue_final_message),
            continue_final_message,
            thinking: ThinkingOptions::take(&mut fields)?,
            template_kwargs: fields.object("chat_template_kwargs")?.unwrap_or_default(),
            response_format: ResponseFormat::take(&mut fields, None)?,
            top_logprobs: take_logprobs(&mut fields)?,
            compression: CompressionOptions::take(&mut fields)?,
            options: AnswerOptions::take(&mut fields)?,
        };
        check_modalities(&mut fields)?;
        fields.refuse(&REFUSED)?;
        for (name, now) in LEGACY {
            if let Some(value) = fields.value(name)
                && value.as_array().is_none_or(|list| !list.is_empty())
            {
                return Err(RequestError::Unsupported {
                    field: name.to_owned(),
                    what: "this is".to_owned(),
                    hint: format!("; use `{now}`"),
                });
            }
        }
        if request.continue_final_message && request.add_generation_prompt {
            let expected = "false where `continue_final_message` is true";
            return Err(RequestError::wrong(
                "add_generation_prompt",
                "true",
                expected,
            ));
        }
        Ok(request)
    }
}

/// An answer can only go on with what an assistant has begun.
fn take_continuation(fields: &mut Fields, messages: &[Value]) -> Result<bool, RequestError> {
    let wanted = fields.bool("continue_final_message")?.unwrap_or(false);
    if wanted && !messages::is_begun(messages) {
        let expected = "false, unless the last message is an assistant's that makes no calls";
        return Err(RequestError::wrong(
            "continue_final_message",
            "true",
            expected,
        ));
    }
    Ok(wanted)
}

fn take_logprobs(fields: &mut Fields) -> Result<Option<u32>, RequestError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer(&["top_logprobs"], 0..=MAX_TOP_LOGPROBS, Above::Refused)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(top)) => Err(RequestError::wrong(
            "top_logprobs",
            top.to_string(),
            "`logprobs` to be true beside it",
        )),
    }
}

fn check_modalities(fields: &mut Fields) -> Result<(), RequestError> {
    for modality in fields.array("modalities")?.unwrap_or_default() {
        if modality != "text" {
            let what = format!("{} is", shown(&modality));
            return Err(RequestError::unsupported("modalities", what));
        }
    }
    Ok(())
}
