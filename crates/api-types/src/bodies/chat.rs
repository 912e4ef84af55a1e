//! Chat completions.

use schemars::JsonSchema;
use serde_json::Value;

use crate::bodies::options::{Compression, Object, Options};

/// A conversation to be gone on with.
#[derive(JsonSchema)]
pub struct ChatBody {
    /// The conversation.
    #[schemars(length(min = 1))]
    pub messages: Vec<Message>,
    /// Tools that may be called.
    pub tools: Option<Vec<Tool>>,
    /// Whether one is called.
    pub tool_choice: Option<ToolChoice>,
    /// Whether several may be called in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the answer.
    pub response_format: Option<ResponseFormat>,
    /// How much is thought.
    pub reasoning_effort: Option<String>,
    /// Whether anything is thought.
    pub enable_thinking: Option<bool>,
    /// Variables of the chat template.
    pub chat_template_kwargs: Option<Object>,
    /// Whether log-probabilities are wanted.
    pub logprobs: Option<bool>,
    /// Alternatives told per token; only beside `logprobs`.
    #[schemars(range(max = 20))]
    pub top_logprobs: Option<u32>,
    /// Tokens at most.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// The same.
    #[schemars(range(min = 1))]
    pub max_completion_tokens: Option<u32>,
    /// Answers to be made.
    #[schemars(range(min = 1, max = 16))]
    pub n: Option<u32>,
    /// Whether a long prompt is made shorter.
    pub prefill_compression: Option<Compression>,
    /// How the answer is made and sent.
    #[schemars(flatten)]
    pub options: Options,
}

/// A message.
#[derive(JsonSchema)]
#[schemars(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What the model is to keep to.
    System {
        /// The text.
        content: Content,
    },
    /// The same.
    Developer {
        /// The text.
        content: Content,
    },
    /// What the user says.
    User {
        /// The text.
        content: Content,
    },
    /// What the model said.
    Assistant {
        /// The text.
        content: Content,
        /// What it thought before.
        reasoning_content: Option<String>,
        /// What it called.
        tool_calls: Option<Vec<ToolCall>>,
    },
    /// What a tool answered.
    Tool {
        /// The text.
        content: Content,
        /// The call.
        tool_call_id: Option<String>,
    },
}

/// The text of a message.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Content {
    /// As one.
    Text(String),
    /// In parts.
    Parts(Vec<Part>),
}

/// A part of a text.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
}

/// A past call.
#[derive(JsonSchema)]
pub struct ToolCall {
    /// Names the call.
    pub id: Option<String>,
    /// What was called.
    pub function: CalledFunction,
}

/// A function that was called.
#[derive(JsonSchema)]
pub struct CalledFunction {
    /// Its name.
    pub name: String,
    /// Its arguments as the text of a JSON object.
    pub arguments: Option<String>,
}

/// A tool.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum Tool {
    /// A function.
    Function {
        /// The function.
        function: Function,
    },
}

/// A function that may be called.
#[derive(JsonSchema)]
pub struct Function {
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub parameters: Option<Object>,
    /// Whether the arguments keep to the schema.
    pub strict: Option<bool>,
}

/// Whether a tool is called.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum ToolChoice {
    /// Whether at all.
    Mode(ToolMode),
    /// A certain one.
    Named(NamedTool),
}

/// Whether a tool is called at all.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum ToolMode {
    /// As the model likes.
    Auto,
    /// None.
    None,
    /// One at least.
    Required,
}

/// A tool that is called.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum NamedTool {
    /// A function.
    Function {
        /// The function.
        function: FunctionName,
    },
}

/// A function by its name.
#[derive(JsonSchema)]
pub struct FunctionName {
    /// One of `tools`.
    pub name: String,
}

/// The form of an answer.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Any text.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// JSON that keeps to a schema.
    JsonSchema {
        /// The schema.
        json_schema: NamedSchema,
    },
}

/// A schema.
#[derive(JsonSchema)]
pub struct NamedSchema {
    /// Names it.
    pub name: Option<String>,
    /// The schema: an object, true, false, or one of these as a text.
    pub schema: Value,
    /// It is always kept to.
    pub strict: Option<bool>,
}
