//! The Messages API.

use schemars::JsonSchema;
use serde_json::Value;

use crate::bodies::options::{Compression, Object, Options};

/// A conversation to be gone on with.
#[derive(JsonSchema)]
pub struct MessagesBody {
    /// The conversation.
    #[schemars(length(min = 1))]
    pub messages: Vec<AnthropicTurn>,
    /// What the model is to keep to.
    pub system: Option<AnthropicText>,
    /// Tokens at most.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Texts that end the answer.
    #[schemars(length(max = 16), inner(length(max = 1024)))]
    pub stop_sequences: Option<Vec<String>>,
    /// Tools that may be called.
    pub tools: Option<Vec<AnthropicTool>>,
    /// Whether one is called.
    pub tool_choice: Option<AnthropicToolChoice>,
    /// Whether and how much is thought.
    pub thinking: Option<AnthropicThinking>,
    /// For the client's own use; nobody looks at it.
    pub metadata: Option<Value>,
    /// Whether a long prompt is made shorter.
    pub prefill_compression: Option<Compression>,
    /// How the answer is made and sent.
    #[schemars(flatten)]
    pub options: Options,
}

/// A message.
#[derive(JsonSchema)]
#[schemars(tag = "role", rename_all = "snake_case")]
pub enum AnthropicTurn {
    /// What the user says, and what tools gave.
    User {
        /// The text.
        content: AnthropicContent<UserBlock>,
    },
    /// What the model said.
    Assistant {
        /// The text.
        content: AnthropicContent<AssistantBlock>,
    },
    /// What the model is to keep to.
    System {
        /// The text.
        content: AnthropicText,
    },
}

/// A text, or blocks.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum AnthropicContent<B> {
    /// As one.
    Text(String),
    /// In blocks.
    Blocks(Vec<B>),
}

/// A text.
pub type AnthropicText = AnthropicContent<TextBlock>;

/// A block of text.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum TextBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
}

/// A block of the user's.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum UserBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// What a tool gave.
    ToolResult {
        /// The call.
        tool_use_id: String,
        /// The result.
        content: Option<AnthropicText>,
        /// Whether it is an error.
        is_error: Option<bool>,
    },
}

/// A block of the model's.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum AssistantBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// What was thought.
    Thinking {
        /// The text.
        thinking: String,
        /// As it was sent.
        signature: Option<String>,
    },
    /// What was called.
    ToolUse {
        /// Names the call.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Object,
    },
}

/// A tool. Those with another `type` are the servers of others' and left out.
#[derive(JsonSchema)]
pub struct AnthropicTool {
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Object,
}

/// Whether a tool is called.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum AnthropicToolChoice {
    /// As the model likes.
    Auto {
        /// Whether there is one call at most.
        disable_parallel_tool_use: Option<bool>,
    },
    /// One at least.
    Any {
        /// Whether there is one call at most.
        disable_parallel_tool_use: Option<bool>,
    },
    /// A certain one.
    Tool {
        /// One of `tools`.
        name: String,
        /// Whether there is one call at most.
        disable_parallel_tool_use: Option<bool>,
    },
    /// None.
    None {},
}

/// Whether and how much is thought.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum AnthropicThinking {
    /// So much.
    Enabled {
        /// Tokens at most.
        #[schemars(range(min = 1))]
        budget_tokens: Option<u32>,
    },
    /// As the model likes.
    Adaptive {},
    /// Nothing.
    Disabled {},
}
