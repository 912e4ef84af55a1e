//! The shapes of answers.

use schemars::JsonSchema;
use serde::Serialize;

/// An answer to a chat.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatCompletion {
    /// Names the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The program that answered.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// Tokens it took.
    pub usage: Usage,
    /// Time it took.
    pub timings: Timings,
}

/// One of the answers to a chat.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChoice {
    /// Its place among the answers.
    pub index: usize,
    /// The answer.
    pub message: ChatMessage,
    /// Log-probabilities, if wanted.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: &'static str,
    /// How its reasoning ended, where the request says something of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_details: Option<FinishDetails>,
}

/// How an answer and its reasoning ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FinishDetails {
    /// `natural`: the model closed its reasoning, `hard`: the budget did; null where it was not closed, or there is none.
    pub close_kind: Option<&'static str>,
    /// Tokens of the reasoning, its marks and what was forced among them.
    pub thinking_tokens: u32,
    /// Those of the rest.
    pub content_tokens: u32,
    /// Both.
    pub total_tokens: u32,
    /// Whether the answer ran in a loop behind a forced close, and was ended.
    pub degenerate_decode: bool,
}

/// An assistant's message.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatMessage {
    /// `assistant`.
    pub role: &'static str,
    /// What it says; null where it only calls.
    pub content: Option<String>,
    /// What it thought before, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same by the name of other servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The same once more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasoning_details: Vec<ReasoningDetail>,
    /// The tools it calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Always null.
    pub refusal: Option<String>,
}

/// A part of an assistant's thoughts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ReasoningDetail {
    /// `reasoning.text`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What it thought.
    pub text: String,
}

/// A call of a tool.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ToolCall {
    /// Names the call.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    pub function: FunctionCall,
}

/// The function of a call.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct FunctionCall {
    /// Its name; in a stream only where the call begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its arguments as JSON text; in a stream what is new of them.
    pub arguments: String,
}

/// What is new of a call.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ToolCallDelta {
    /// The call's place among those of the answer.
    pub index: usize,
    /// Names the call, where it begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, where it begins.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is called.
    pub function: FunctionCall,
}

/// A part of an answer to a chat.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChunk {
    /// Names the answer; the same in all its parts.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970; the same in all parts.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// The program that answers.
    pub system_fingerprint: String,
    /// One answer, or none in the part that carries the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Tokens it took, in a part of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Time it took, in the last part of each answer and beside the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// How far the prompt is, in parts before the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<PromptProgress>,
}

/// How far a prompt is, by the names of llama.cpp's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptProgress {
    /// What is going on.
    pub stage: &'static str,
    /// What `processed` comes to: prompt tokens, where the model reads them.
    pub total: u64,
    /// Prompt tokens whose state was cached.
    pub cache: u64,
    /// How much of it is done, with what was cached.
    pub processed: u64,
    /// Milliseconds since the request.
    pub time_ms: u64,
}

/// What is new in one of the answers.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChunkChoice {
    /// Its place among the answers.
    pub index: usize,
    /// The new text.
    pub delta: ChatDelta,
    /// Log-probabilities of the new tokens, if wanted.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended, in the last part.
    pub finish_reason: Option<&'static str>,
    /// How its reasoning ended, in the last part, where the request says something of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_details: Option<FinishDetails>,
}

/// New text.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct ChatDelta {
    /// `assistant`, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// New reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same by the name of other servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// What is new of one call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// Log-probabilities of an answer to a chat.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct ChatLogprobs {
    /// Of the tokens of the content.
    pub content: Vec<ChatLogprob>,
    /// Always null.
    pub refusal: Option<Vec<ChatLogprob>>,
}

/// A token and what else it could have been.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ChatLogprob {
    /// Its text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The most likely tokens.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// A likely token.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ChatTopLogprob {
    /// Its text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A continued text, or a part of one.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Completion {
    /// Names the answer.
    pub id: String,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The program that answered.
    pub system_fingerprint: String,
    /// The answers; none in the part of a stream that carries the usage.
    pub choices: Vec<CompletionChoice>,
    /// Tokens it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Time it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One of the continuations, or what is new in it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CompletionChoice {
    /// Its place among the answers.
    pub index: usize,
    /// The text.
    pub text: String,
    /// Log-probabilities, if wanted.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended; null before the end.
    pub finish_reason: Option<&'static str>,
}

/// Log-probabilities of a continuation, in lists of equal length.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct CompletionLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Natural logarithms of their probabilities.
    pub token_logprobs: Vec<f32>,
    /// The most likely tokens by text.
    pub top_logprobs: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Where the tokens begin in the text, in characters.
    pub text_offset: Vec<usize>,
}

/// Tokens that a request took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Both.
    pub total_tokens: u32,
    /// Where the prompt tokens came from.
    pub prompt_tokens_details: PromptTokensDetails,
    /// What the generated tokens were.
    pub completion_tokens_details: CompletionTokensDetails,
    /// How the prompt was made shorter, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionReport>,
}

/// How a prompt was made shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompressionReport {
    /// `prompt`, or `messages` where each was shortened by itself.
    pub scope: &'static str,
    /// Tokens of the prompt as it was sent.
    pub original_tokens: u32,
    /// Tokens of it that the model saw.
    pub kept_tokens: u32,
    /// Milliseconds that choosing them took.
    pub ms: u64,
    /// What the model saw, where the request asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// Where prompt tokens came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Tokens whose state was cached.
    pub cached_tokens: u32,
}

/// What generated tokens were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of the reasoning.
    pub reasoning_tokens: u32,
}

/// Time that a request took, by the names of llama.cpp's server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Timings {
    /// Prompt tokens whose state was cached.
    pub cache_n: u32,
    /// Prompt tokens computed.
    pub prompt_n: u32,
    /// Milliseconds to the first token.
    pub prompt_ms: f64,
    /// Prompt tokens per second.
    pub prompt_per_second: f64,
    /// Tokens generated.
    pub predicted_n: u32,
    /// Milliseconds from the first token to the last.
    pub predicted_ms: f64,
    /// Generated tokens per second.
    pub predicted_per_second: f64,
    /// What speculation did, if it did anything.
    #[serde(flatten)]
    pub speculation: Option<SpeculationReport>,
}

/// What speculation did for an answer: two names of llama.cpp's server, and more beside them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct SpeculationReport {
    /// Draft tokens verified.
    pub draft_n: u32,
    /// Draft tokens accepted.
    pub draft_n_accepted: u32,
    /// The rounds.
    pub speculation: SpeculationStages,
}

/// The rounds of an answer and their stages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct SpeculationStages {
    /// Steps that verified a draft.
    pub rounds: u32,
    /// Tokens per round, the target's own token included.
    pub acceptance_length: f64,
    /// Milliseconds that the draft computed.
    pub draft_ms: f64,
    /// Milliseconds on the way to the draft and back, but for commits, which lie beside it.
    pub channel_ms: f64,
    /// Milliseconds of building trees.
    pub tree_ms: f64,
    /// Milliseconds of the target's passes over drafts.
    pub verify_ms: f64,
    /// Milliseconds of choosing tokens and committing them.
    pub commit_ms: f64,
}
