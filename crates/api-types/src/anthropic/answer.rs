//! The shapes of answers, whole and in events.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// An answer of the Messages API; at the beginning of a stream one without content.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AnthropicMessage {
    /// Names the answer.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`.
    pub role: &'static str,
    /// The model that answers.
    pub model: String,
    /// What it says, in order.
    pub content: Vec<AnthropicBlock>,
    /// Why it ended; null before the end.
    pub stop_reason: Option<&'static str>,
    /// The text that ended it, if one did.
    pub stop_sequence: Option<String>,
    /// Tokens it took.
    pub usage: AnthropicUsage,
}

/// A content block.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnthropicBlock {
    /// Reasoning.
    Thinking {
        /// The text.
        thinking: String,
        /// What clients send back with it; nobody checks it.
        signature: String,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A call of a tool.
    ToolUse {
        /// Names the call.
        id: String,
        /// The tool.
        name: String,
        /// The arguments, an object.
        input: Value,
    },
}

/// What is new in a content block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnthropicDelta {
    /// Of reasoning.
    ThinkingDelta {
        /// New text.
        thinking: String,
    },
    /// The end of reasoning.
    SignatureDelta {
        /// All of it.
        signature: String,
    },
    /// Of text.
    TextDelta {
        /// New text.
        text: String,
    },
    /// Of a call.
    InputJsonDelta {
        /// More of the arguments' JSON.
        partial_json: String,
    },
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnthropicEvent {
    /// The first.
    MessageStart {
        /// The answer, still without content.
        message: AnthropicMessage,
    },
    /// A sign of life.
    Ping,
    /// A content block begins.
    ContentBlockStart {
        /// Its place in the content.
        index: usize,
        /// The block, still empty.
        content_block: AnthropicBlock,
    },
    /// A content block grows.
    ContentBlockDelta {
        /// Its place in the content.
        index: usize,
        /// What is new.
        delta: AnthropicDelta,
    },
    /// A content block is whole.
    ContentBlockStop {
        /// Its place in the content.
        index: usize,
    },
    /// The answer ended.
    MessageDelta {
        /// Why.
        delta: AnthropicEnd,
        /// Tokens it took.
        usage: AnthropicUsage,
    },
    /// The last.
    MessageStop,
}

impl AnthropicEvent {
    /// Its type, which is its name on the wire as well.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AnthropicEnd {
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: &'static str,
    /// The text that ended it, if one did.
    pub stop_sequence: Option<String>,
}

/// Tokens that an answer took. The prompt has those of the first three fields together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AnthropicUsage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: u32,
    /// Always 0: keeping a prompt is not counted.
    pub cache_creation_input_tokens: u32,
    /// Tokens of the prompt whose state was cached.
    pub cache_read_input_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// What they were.
    pub output_tokens_details: AnthropicOutputDetails,
}

/// What generated tokens were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AnthropicOutputDetails {
    /// Tokens of the reasoning.
    pub thinking_tokens: u32,
}
