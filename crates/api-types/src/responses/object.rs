//! The answer of the Responses API.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::answer::ChatLogprob;

/// An answer, whole or so far. All keys are always there.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ResponseObject {
    /// Names the answer.
    pub id: String,
    /// `response`.
    pub object: &'static str,
    /// When it was asked for, in seconds since 1970.
    pub created_at: u64,
    /// When it was complete, in seconds since 1970.
    pub completed_at: Option<u64>,
    /// How far it is.
    pub status: ResponseStatus,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The model that answers.
    pub model: String,
    /// Always null: no answer is stored.
    pub previous_response_id: Option<String>,
    /// What the request says before the conversation.
    pub instructions: Option<String>,
    /// What was made.
    pub output: Vec<OutputItem>,
    /// Why it failed.
    pub error: Option<ResponseError>,
    /// The tools of the request.
    pub tools: Vec<Value>,
    /// Whether tools are called, as the request has it.
    pub tool_choice: Value,
    /// Always `disabled`: a conversation that is too long is refused.
    pub truncation: &'static str,
    /// Whether there may be several calls.
    pub parallel_tool_calls: bool,
    /// The form of the text.
    pub text: TextSettings,
    /// The share of likely tokens that are drawn from.
    pub top_p: f32,
    /// What tokens lose that are there already.
    pub presence_penalty: f32,
    /// What tokens lose each time that they are there.
    pub frequency_penalty: f32,
    /// Alternatives told per token.
    pub top_logprobs: u32,
    /// How far from the likeliest token is drawn.
    pub temperature: f32,
    /// How the request wants its reasoning.
    pub reasoning: ReasoningSettings,
    /// Tokens it took, once it has ended.
    pub usage: Option<ResponseUsage>,
    /// Tokens at most.
    pub max_output_tokens: Option<u32>,
    /// Calls of tools that the server has, which has none.
    pub max_tool_calls: Option<u32>,
    /// Always false.
    pub store: bool,
    /// Always false.
    pub background: bool,
    /// Always `default`.
    pub service_tier: &'static str,
    /// What the request says for its own use.
    pub metadata: Map<String, Value>,
    /// What the request says of its user.
    pub safety_identifier: Option<String>,
    /// What the request says of its conversation.
    pub prompt_cache_key: Option<String>,
}

/// How far an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// It grows.
    InProgress,
    /// It came to its end.
    Completed,
    /// It was cut.
    Incomplete,
    /// It broke off.
    Failed,
}

/// Why an answer is incomplete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`.
    pub reason: &'static str,
}

/// Why an answer failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResponseError {
    /// The kind of failure.
    pub code: &'static str,
    /// What went wrong.
    pub message: String,
}

/// The form of the text.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TextSettings {
    /// As the request has it; `{"type": "text"}` without.
    pub format: Value,
    /// As the request has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<String>,
}

/// How a request wants its reasoning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReasoningSettings {
    /// How much.
    pub effort: Option<String>,
    /// Whether it is sent as a summary.
    pub summary: Option<String>,
}

/// Tokens that an answer took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Where they came from.
    pub input_tokens_details: InputTokensDetails,
    /// Tokens generated.
    pub output_tokens: u32,
    /// What they were.
    pub output_tokens_details: OutputTokensDetails,
    /// Both.
    pub total_tokens: u32,
}

/// Where the tokens of a prompt came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputTokensDetails {
    /// Tokens whose state was cached.
    pub cached_tokens: u32,
    /// Always 0: writing to the cache is not counted.
    pub cache_write_tokens: u32,
}

/// What generated tokens were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OutputTokensDetails {
    /// Tokens of the reasoning.
    pub reasoning_tokens: u32,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// What the model thought.
    Reasoning {
        /// Names the item.
        id: String,
        /// How far it is.
        status: ItemStatus,
        /// The reasoning, where the request wants it as a summary.
        summary: Vec<ContentPart>,
        /// The reasoning, where it does not.
        content: Vec<ContentPart>,
        /// The reasoning as it is to be sent back, where the request includes it.
        encrypted_content: Option<String>,
    },
    /// What the model says.
    Message {
        /// Names the item.
        id: String,
        /// How far it is.
        status: ItemStatus,
        /// `assistant`.
        role: &'static str,
        /// One part of text.
        content: Vec<ContentPart>,
    },
    /// A function to be called.
    FunctionCall {
        /// Names the item.
        id: String,
        /// How far it is.
        status: ItemStatus,
        /// Names the call; its result has to name it too.
        call_id: String,
        /// The function.
        name: String,
        /// The group that it was declared in.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Its arguments as the text of a JSON object.
        arguments: String,
    },
    /// A tool that takes text, to be called.
    CustomToolCall {
        /// Names the item.
        id: String,
        /// How far it is.
        status: ItemStatus,
        /// Names the call; its result has to name it too.
        call_id: String,
        /// The tool.
        name: String,
        /// The group that it was declared in.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// What it is given.
        input: String,
    },
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// It grows.
    InProgress,
    /// It came to its end.
    Completed,
    /// It was cut.
    Incomplete,
}

/// A part of an item.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    /// Of a message.
    OutputText {
        /// What it says.
        text: String,
        /// Always empty.
        annotations: Vec<Value>,
        /// Of its tokens, if wanted.
        logprobs: Vec<ChatLogprob>,
    },
    /// Of a reasoning.
    ReasoningText {
        /// What it says.
        text: String,
    },
    /// Of a reasoning that is sent as a summary.
    SummaryText {
        /// What it says.
        text: String,
    },
}

impl ContentPart {
    /// Text of a message, without log-probabilities.
    #[must_use]
    pub fn output_text(text: String) -> Self {
        Self::OutputText {
            text,
            annotations: Vec::new(),
            logprobs: Vec::new(),
        }
    }
}

/// Tokens that a request would take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputTokens {
    /// `response.input_tokens`.
    pub object: &'static str,
    /// Tokens of the prompt.
    pub input_tokens: u32,
}
