//! Why a request is not answered.

use sampling::SamplingError;

/// Why a request is refused, or ends early.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// There is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// No room for even one new token.
    #[error(
        "the prompt has {prompt_tokens} tokens; the context holds {context_length}, prompt and answer together"
    )]
    PromptTooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// Tokens that a sequence can hold.
        context_length: usize,
    },
    /// An id outside the vocabulary.
    #[error("{field}: token id {token} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// Where it stands.
        field: &'static str,
        /// The id.
        token: u32,
        /// Tokens there are.
        vocab_size: u32,
    },
    /// More alternatives than a worker gives.
    #[error("top_logprobs: {wanted} are wanted, {limit} is the most")]
    TooManyTopLogprobs {
        /// How many are asked for.
        wanted: u32,
        /// How many there may be.
        limit: u32,
    },
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A bound on reasoning that cannot be kept.
    #[error("thinking: {0}")]
    Thinking(&'static str),
    /// A grammar beyond what is read at all.
    #[error("the grammar has {bytes} bytes, {limit} is the most")]
    GrammarTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// What is no grammar, or asks for something that cannot be enforced.
    #[error("the grammar cannot be used: {0}")]
    Grammar(String),
    /// A grammar that an answer could begin with, and not end.
    #[error("the answer cannot go on under its grammar: {0}")]
    GrammarStuck(String),
    /// As many requests wait as may.
    #[error("{limit} requests are waiting already")]
    QueueFull {
        /// How many may wait.
        limit: usize,
    },
    /// The worker is going down.
    #[error("the worker is shutting down")]
    ShuttingDown,
    /// A part of the model is gone; the worker starts anew.
    #[error("the model is gone: {0}")]
    Gone(String),
    /// The model's weights gave way to others on its device, and there is no room for them yet.
    #[error("the model is not on its device: {0}")]
    Away(String),
    /// The model could not compute a step.
    #[error("the model could not go on: {0}")]
    Model(String),
}

/// Why a model's weights do not leave their device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParkError {
    /// Not this model's.
    #[error("a target that is split over devices cannot be parked")]
    Unsupported,
    /// Somebody wants them there, their time away is over, or the device failed.
    #[error("the weights were called back to their device, or could not leave it")]
    CalledBack,
    /// The worker is going down.
    #[error("the worker is shutting down")]
    ShuttingDown,
}
