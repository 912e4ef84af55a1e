//! The Responses API: its requests become requests for chat completions, and what its answers repeat of them.

mod events;
mod input;
mod object;
mod tools;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::chat::ChatRequest;
use crate::compression::CompressionOptions;
use crate::error::RequestError;
use crate::fields::{Above, Fields, shown};
use crate::format::ResponseFormat;
use crate::options::AnswerOptions;
use crate::thinking::ThinkingOptions;
use crate::tokens::missing;
use crate::tools::{ToolChoice, check_choice};

pub use events::{ResponseEvent, ResponseEventKind};
pub use input::REASONING_MARK;
pub use object::{
    ContentPart, IncompleteDetails, InputTokens, InputTokensDetails, ItemStatus, OutputItem,
    OutputTokensDetails, ReasoningSettings, ResponseError, ResponseObject, ResponseStatus,
    ResponseUsage, TextSettings,
};
pub use tools::DeclaredTool;

use tools::Tools;

/// Most likely tokens per position at most, as the OpenAI API has it.
const MAX_TOP_LOGPROBS: u32 = 20;

const TOOL_CHOICES: &str = "\"auto\", \"none\", \"required\" or an object that names a tool";

/// A body of `POST /v1/responses`. Fields that nobody knows are passed over, as the clients of this API expect it.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    /// The same as a request for a chat completion.
    pub chat: ChatRequest,
    /// What the answer repeats.
    pub asked: Asked,
    /// The tools by the names that the model knows.
    pub tools: HashMap<String, DeclaredTool>,
    /// Whether reasoning is sent with what it takes to send it back.
    pub includes_reasoning: bool,
}

/// What an answer repeats of its request.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// What it says before the conversation.
    pub instructions: Option<String>,
    /// As they were sent.
    pub tools: Vec<Value>,
    /// As it was sent.
    pub tool_choice: Value,
    /// Whether there may be several calls.
    pub parallel_tool_calls: bool,
    /// The form of the text.
    pub text: TextSettings,
    /// How the reasoning is wanted.
    pub reasoning: ReasoningSettings,
    /// Tokens at most.
    pub max_output_tokens: Option<u32>,
    /// Calls of the server's own tools at most.
    pub max_tool_calls: Option<u32>,
    /// For the client's own use.
    pub metadata: Map<String, Value>,
    /// Names the user.
    pub safety_identifier: Option<String>,
    /// Names the conversation.
    pub prompt_cache_key: Option<String>,
}

impl ResponsesRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// Everything that [`RequestError`] lists, but unknown fields.
    pub fn from_body(body: &[u8]) -> Result<Self, RequestError> {
        let mut fields = Fields::of_body(body)?;
        refuse(&mut fields)?;
        let instructions = fields.string("instructions")?;
        let input = fields.value("input");
        let mut tools = Tools::take(&mut fields)?;
        let (tool_choice, sent_choice) = take_tool_choice(&mut fields, &mut tools)?;
        let (text, format) = take_text(&mut fields)?;
        let response_format = ResponseFormat::take(&mut fields, format)?;
        let reasoning = take_reasoning(&mut fields)?;
        let thinking = ThinkingOptions::take(&mut fields)?;
        let thinking = match &reasoning.effort {
            Some(word) => thinking.with_effort(word),
            None => thinking,
        };
        let template_kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
        let (includes_logprobs, includes_reasoning) = take_include(&mut fields)?;
        let top_logprobs =
            fields.integer(&["top_logprobs"], 0..=MAX_TOP_LOGPROBS, Above::Refused)?;
        let parallel_tool_calls = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        let limit = fields.integer(&["max_output_tokens"], 1..=u32::MAX, Above::Clamped)?;
        let asked = Asked {
            instructions,
            tools: tools.sent,
            tool_choice: sent_choice,
            parallel_tool_calls,
            text,
            reasoning,
            max_output_tokens: limit,
            max_tool_calls: fields.integer(&["max_tool_calls"], 0..=u32::MAX, Above::Clamped)?,
            metadata: fields.object("metadata")?.unwrap_or_default(),
            safety_identifier: fields.string("safety_identifier")?,
            prompt_cache_key: fields.string("prompt_cache_key")?,
        };
        // Takes what the fields above did not, so it comes after them.
        let mut options = AnswerOptions::take(&mut fields)?;
        options.n = 1;
        options.max_tokens = options.max_tokens.or(limit);
        let chat = ChatRequest {
            messages: input::messages(asked.instructions.as_deref(), input)?,
            tools: tools.functions,
            tool_choice,
            parallel_tool_calls,
            skipped_tools: tools.skipped,
            response_format,
            add_generation_prompt: true,
            continue_final_message: false,
            thinking,
            template_kwargs,
            top_logprobs: includes_logprobs
                .then_some(top_logprobs.unwrap_or(0))
                .or(top_logprobs.filter(|&top| top > 0)),
            compression: CompressionOptions::take(&mut fields)?,
            options,
        };
        Ok(Self {
            chat,
            asked,
            tools: tools.declared,
            includes_reasoning,
        })
    }
}

/// What would need a store, or work that nobody waits for.
fn refuse(fields: &mut Fields) -> Result<(), RequestError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.value(name).is_some() {
            return Err(RequestError::Unsupported {
                field: name.to_owned(),
                what: "going on from what is stored is".to_owned(),
                hint: ", since nothing is; send the whole conversation in `input`".to_owned(),
            });
        }
    }
    fields.refuse(&["prompt"])?;
    if fields.bool("background")? == Some(true) {
        return Err(RequestError::unsupported(
            "background",
            "work in the background is",
        ));
    }
    Ok(())
}

/// The choice, and how it was sent. Tools that it leaves out are not shown to the model.
fn take_tool_choice(
    fields: &mut Fields,
    tools: &mut Tools,
) -> Result<(ToolChoice, Value), RequestError> {
    let sent = fields.value("tool_choice").unwrap_or_else(|| "auto".into());
    let choice = match &sent {
        Value::String(word) => mode("tool_choice", word)?,
        Value::Object(_) => named(tools, sent.clone())?,
        other => return Err(fields.wrong("tool_choice", other, TOOL_CHOICES)),
    };
    match &choice {
        ToolChoice::None => tools.functions.clear(),
        choice => check_choice(&tools.functions, choice)?,
    }
    Ok((choice, sent))
}

fn mode(path: &str, word: &str) -> Result<ToolChoice, RequestError> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => Err(RequestError::wrong(
            path,
            shown(&other.into()),
            TOOL_CHOICES,
        )),
    }
}

/// A choice that names tools.
fn named(tools: &mut Tools, choice: Value) -> Result<ToolChoice, RequestError> {
    let mut fields = Fields::at("tool_choice", choice.clone())?;
    let kind = fields.string("type")?;
    match kind.as_deref() {
        None => Err(missing("tool_choice.type")),
        Some("function" | "custom") => Ok(ToolChoice::Named(tools.find("tool_choice", choice)?)),
        Some("allowed_tools") => {
            let allowed = fields
                .array("tools")?
                .unwrap_or_default()
                .into_iter()
                .enumerate();
            // Others are not there in the first place.
            let ours =
                allowed.filter(|(_, tool)| tool["type"] == "function" || tool["type"] == "custom");
            let names =
                ours.map(|(index, tool)| tools.find(&format!("tool_choice.tools[{index}]"), tool));
            let names: Vec<String> = names.collect::<Result<_, _>>()?;
            tools.keep(&names);
            let word = fields.string("mode")?;
            mode("tool_choice.mode", word.as_deref().unwrap_or("auto"))
        }
        Some(other) => {
            let what = format!("{} is", shown(&other.into()));
            Err(RequestError::unsupported("tool_choice.type", what))
        }
    }
}

fn take_text(fields: &mut Fields) -> Result<(TextSettings, Option<ResponseFormat>), RequestError> {
    let mut text = Fields::at("text", fields.object("text")?.unwrap_or_default().into())?;
    let format = text
        .value("format")
        .unwrap_or_else(|| json!({ "type": "text" }));
    let verbosity = text.string("verbosity")?;
    let wanted = ResponseFormat::of_flat("text.format", format.clone())?;
    Ok((TextSettings { format, verbosity }, wanted))
}

fn take_reasoning(fields: &mut Fields) -> Result<ReasoningSettings, RequestError> {
    let reasoning = fields.object("reasoning")?.unwrap_or_default();
    let mut reasoning = Fields::at("reasoning", reasoning.into())?;
    let summary = reasoning.string("summary")?;
    Ok(ReasoningSettings {
        effort: reasoning.string("effort")?,
        // Its older name.
        summary: summary.or(reasoning.string("generate_summary")?),
    })
}

/// Whether log-probabilities and what it takes to send reasoning back are wanted; what else there is to include is of tools
/// that are not there.
fn take_include(fields: &mut Fields) -> Result<(bool, bool), RequestError> {
    let (mut logprobs, mut reasoning) = (false, false);
    for (index, item) in fields
        .array("include")?
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let Some(name) = item.as_str() else {
            let field = format!("include[{index}]");
            return Err(RequestError::wrong(field, shown(item), "a string"));
        };
        logprobs |= name == "message.output_text.logprobs";
        reasoning |= name == "reasoning.encrypted_content";
    }
    Ok((logprobs, reasoning))
}
