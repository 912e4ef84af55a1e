//! The Responses API.

use schemars::JsonSchema;
use serde_json::Value;

use crate::bodies::chat::ToolMode;
use crate::bodies::options::{Compression, Object, Options};

/// A conversation to be gone on with.
#[derive(JsonSchema)]
pub struct ResponsesBody {
    /// The conversation.
    pub input: Input,
    /// What the model is to keep to.
    pub instructions: Option<String>,
    /// Tools that may be called.
    pub tools: Option<Vec<Tool>>,
    /// Whether one is called.
    pub tool_choice: Option<ToolChoice>,
    /// Whether several may be called in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the answer.
    pub text: Option<Text>,
    /// How much is thought, and how it is sent.
    pub reasoning: Option<Reasoning>,
    /// Tokens at most.
    #[schemars(range(min = 1))]
    pub max_output_tokens: Option<u32>,
    /// Alternatives told per token.
    #[schemars(range(max = 20))]
    pub top_logprobs: Option<u32>,
    /// What is sent only if it is wanted: `reasoning.encrypted_content`, `message.output_text.logprobs`.
    pub include: Option<Vec<String>>,
    /// For the client's own use.
    pub metadata: Option<Object>,
    /// Accepted, whatever it says; nothing is stored.
    pub store: Option<Value>,
    /// Names the user.
    pub safety_identifier: Option<String>,
    /// Names the conversation.
    pub prompt_cache_key: Option<String>,
    /// Whether a long prompt is made shorter.
    pub prefill_compression: Option<Compression>,
    /// How the answer is made and sent.
    #[schemars(flatten)]
    pub options: Options,
}

/// A conversation.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Input {
    /// What the user says.
    Text(String),
    /// All of it.
    Items(#[schemars(length(min = 1))] Vec<Item>),
}

/// A piece of a conversation.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum Item {
    /// A message.
    Message {
        /// Who says it.
        role: Role,
        /// What.
        content: Content,
    },
    /// What the model thought.
    Reasoning {
        /// Names it.
        id: Option<String>,
        /// The reasoning as a summary.
        summary: Option<Vec<ReasoningPart>>,
        /// The reasoning.
        content: Option<Vec<ReasoningPart>>,
        /// The reasoning as it was sent to be sent back.
        encrypted_content: Option<String>,
    },
    /// A function that was called.
    FunctionCall {
        /// Names the call.
        call_id: String,
        /// The function.
        name: String,
        /// The group that it was declared in.
        namespace: Option<String>,
        /// Its arguments as the text of a JSON object.
        arguments: String,
    },
    /// What it gave.
    FunctionCallOutput {
        /// The call.
        call_id: String,
        /// The result.
        output: Content,
    },
    /// A tool that takes text, which was called.
    CustomToolCall {
        /// Names the call.
        call_id: String,
        /// The tool.
        name: String,
        /// The group that it was declared in.
        namespace: Option<String>,
        /// What it was given.
        input: String,
    },
    /// What it gave.
    CustomToolCallOutput {
        /// The call.
        call_id: String,
        /// The result.
        output: Content,
    },
}

/// Who says something.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Role {
    /// Who runs the model.
    System,
    /// Who wrote the program.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A text.
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
    /// What was said to the model.
    InputText {
        /// The text.
        text: String,
    },
    /// What the model said.
    OutputText {
        /// The text.
        text: String,
    },
    /// What it would not say.
    Refusal {
        /// The text.
        refusal: String,
    },
}

/// A part of what the model thought.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ReasoningPart {
    /// As a summary.
    SummaryText {
        /// The text.
        text: String,
    },
    /// As it is.
    ReasoningText {
        /// The text.
        text: String,
    },
}

/// A tool. Types that are not listed are left out.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum Tool {
    /// A function.
    Function(FunctionTool),
    /// A tool that takes text.
    Custom(CustomTool),
    /// A group of tools.
    Namespace {
        /// Names the group.
        #[schemars(length(min = 1))]
        name: String,
        /// What it is for.
        description: Option<String>,
        /// What is in it.
        tools: Vec<GroupedTool>,
    },
}

/// A tool of a group.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum GroupedTool {
    /// A function.
    Function(FunctionTool),
    /// A tool that takes text.
    Custom(CustomTool),
}

/// A function that may be called.
#[derive(JsonSchema)]
pub struct FunctionTool {
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

/// A tool that takes text.
#[derive(JsonSchema)]
pub struct CustomTool {
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// What the text looks like.
    pub format: Option<TextFormat>,
}

/// What a text looks like.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum TextFormat {
    /// Like any text.
    Text {},
    /// As a grammar says; the model is told of it.
    Grammar {
        /// The language of the grammar.
        syntax: String,
        /// The grammar.
        definition: String,
    },
}

/// Whether a tool is called.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum ToolChoice {
    /// Whether at all.
    Mode(ToolMode),
    /// Certain ones.
    Named(NamedTools),
}

/// Tools that are called.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum NamedTools {
    /// This function.
    Function {
        /// One of `tools`.
        name: String,
    },
    /// This tool that takes text.
    Custom {
        /// One of `tools`.
        name: String,
    },
    /// Some of all.
    AllowedTools {
        /// Whether one of them is called.
        mode: Option<ToolMode>,
        /// Tools by their types and names.
        tools: Vec<Value>,
    },
}

/// The form of an answer.
#[derive(JsonSchema)]
pub struct Text {
    /// The form.
    pub format: Option<Format>,
    /// Accepted; changes nothing.
    pub verbosity: Option<String>,
}

/// The form of an answer.
#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum Format {
    /// Any text.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// JSON that keeps to a schema.
    JsonSchema {
        /// Names it.
        name: Option<String>,
        /// The schema: an object, true, false, or one of these as a text.
        schema: Value,
        /// It is always kept to.
        strict: Option<bool>,
    },
}

/// How much is thought, and how it is sent.
#[derive(JsonSchema)]
pub struct Reasoning {
    /// How much.
    pub effort: Option<String>,
    /// If there is a word, the reasoning is sent as a summary.
    pub summary: Option<String>,
}
