//! Plain text, and the tokenizer.

use schemars::JsonSchema;

use crate::bodies::options::Options;

/// Text to be gone on with.
#[derive(JsonSchema)]
pub struct CompletionBody {
    /// The text.
    pub prompt: Prompt,
    /// Whether the answer begins with it.
    pub echo: Option<bool>,
    /// Log-probabilities wanted, and of how many alternatives.
    #[schemars(range(max = 5))]
    pub logprobs: Option<u32>,
    /// Tokens at most.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Answers per prompt.
    #[schemars(range(min = 1, max = 16))]
    pub n: Option<u32>,
    /// How the answer is made and sent.
    #[schemars(flatten)]
    pub options: Options,
}

/// Text to be gone on with.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Prompt {
    /// One.
    One(OnePrompt),
    /// Several.
    Several(#[schemars(length(min = 1, max = 64))] Vec<OnePrompt>),
}

/// One text to be gone on with.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum OnePrompt {
    /// As it is.
    Text(String),
    /// As token ids.
    Tokens(#[schemars(length(min = 1))] Vec<u32>),
}

/// Text for the tokenizer.
#[derive(JsonSchema)]
pub struct TokenizeBody {
    /// The text.
    pub content: String,
    /// Whether it begins a sequence.
    pub add_special: Option<bool>,
    /// Whether the text of control tokens becomes those tokens.
    pub parse_special: Option<bool>,
    /// Whether the text of each token is wanted.
    pub with_pieces: Option<bool>,
}

/// Token ids for the tokenizer.
#[derive(JsonSchema)]
pub struct DetokenizeBody {
    /// The ids.
    pub tokens: Vec<u32>,
}
