//! The JSON of the APIs of OpenAI and Anthropic: requests checked once into types that cannot be wrong, and the shapes of the answers.
//! Knows no tokenizer, no template and no transport.

#![forbid(unsafe_code)]

mod answer;
mod anthropic;
mod bodies;
mod chat;
mod completion;
mod compression;
mod error;
mod fields;
mod format;
mod messages;
mod options;
mod responses;
mod thinking;
mod tokens;
mod tools;

pub use answer::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprob, ChatLogprobs,
    ChatMessage, ChatTopLogprob, Completion, CompletionChoice, CompletionLogprobs,
    CompletionTokensDetails, CompressionReport, FinishDetails, FunctionCall, PromptProgress,
    PromptTokensDetails, ReasoningDetail, SpeculationReport, SpeculationStages, Timings, ToolCall,
    ToolCallDelta, Usage,
};
pub use anthropic::answer::{
    AnthropicBlock, AnthropicDelta, AnthropicEnd, AnthropicEvent, AnthropicMessage,
    AnthropicOutputDetails, AnthropicUsage,
};
pub use bodies::{
    ChatBody, CompletionBody, DetokenizeBody, MessagesBody, ResponsesBody, TokenizeBody,
};
pub use chat::ChatRequest;
pub use completion::{CompletionRequest, Prompt};
pub use compression::{CompressionMode, CompressionOptions};
pub use error::RequestError;
pub use format::{FormatGrammar, ResponseFormat};
pub use options::{AnswerOptions, SamplingOptions};
pub use responses::{
    Asked, ContentPart, DeclaredTool, IncompleteDetails, InputTokens, InputTokensDetails,
    ItemStatus, OutputItem, OutputTokensDetails, REASONING_MARK, ReasoningSettings, ResponseError,
    ResponseEvent, ResponseEventKind, ResponseObject, ResponseStatus, ResponseUsage,
    ResponsesRequest, TextSettings,
};
pub use thinking::{Effort, ThinkingOptions};
pub use tokens::{DetokenizeRequest, TokenizeRequest};
pub use tools::ToolChoice;
