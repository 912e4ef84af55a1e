//! What is asked of a prefill worker, and what it answers.

use std::ops::Range;
use std::time::Duration;

use generation::MemoryStats;

/// The model that scores prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefillDescription {
    /// `general.name` of the model file, or its file name.
    pub name: String,
    /// Architecture as the model file names it.
    pub architecture: String,
    /// Tokens that a prompt can have.
    pub context_length: u32,
    /// Tokens there are.
    pub vocab_size: u32,
    /// SHA-256 of the list of tokens, as `gguf::Strings::sha256` has it; `None` where the file has no such list.
    pub token_list: Option<[u8; 32]>,
    /// Device, for people.
    pub device: String,
    /// Whether the weights are in the device's memory now.
    pub is_resident: bool,
}

/// A prompt to be made shorter.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressRequest {
    /// For logs.
    pub request_id: String,
    /// The prompt, in tokens of the worker's model.
    pub tokens: Vec<u32>,
    /// Share of the chunks to keep, above 0 and up to 1; of those that are not protected as a whole.
    pub keep_ratio: f64,
    /// Positions that are kept in any case, in any order; they do not count towards the share.
    pub protected: Vec<Range<usize>>,
    /// The share holds even where the prompt's end names more passages than it has room for.
    pub within_budget: bool,
    /// Chunk scores are wanted.
    pub chunk_scores: bool,
}

/// What a prefill worker says on the way.
#[derive(Clone, Debug, PartialEq)]
pub enum CompressEvent {
    /// How far it is.
    Progress(CompressProgress),
    /// The last event.
    Finished(Compression),
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressProgress {
    /// What is going on.
    pub phase: CompressPhase,
    /// Out of `total`.
    pub done: u64,
    /// Other requests, bytes, or parts of the forward pass.
    pub total: u64,
}

/// The parts of a request's life that take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressPhase {
    /// `total` other requests come first.
    Waiting,
    /// The weights are on their way to the device.
    Loading,
    /// The model reads the prompt.
    Scoring,
}

/// Which parts of a prompt are kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compression {
    /// Positions in order, with a gap between any two.
    pub kept: Vec<Range<usize>>,
    /// Tokens of the prompt.
    pub tokens_in: usize,
    /// Tokens that are kept.
    pub tokens_out: usize,
    /// What it took.
    pub timings: CompressTimings,
    /// Mean importance of each 32 tokens, where wanted; none for a prompt that is too short to be scored.
    pub chunk_scores: Vec<f32>,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CompressTimings {
    /// In the queue.
    pub wait: Duration,
    /// Bringing the weights to the device; zero where they were there.
    pub load: Duration,
    /// The forward pass.
    pub score: Duration,
    /// Choosing chunks.
    pub select: Duration,
    /// Giving the device's memory back, which is free when the answer comes; zero where it is kept.
    pub park: Duration,
}

/// Why a prompt was not compressed. Named by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressError {
    /// The request must be changed.
    #[error("{0}")]
    Invalid(String),
    /// The model cannot read that much.
    #[error("the prompt has {prompt_tokens} tokens, the prefill drafter reads {context_length}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// What fits.
        context_length: usize,
    },
    /// Try again later.
    #[error("{limit} prompts wait to be compressed already")]
    QueueFull {
        /// What may wait.
        limit: usize,
    },
    /// The device has no room now; another process may give some back.
    #[error("no room for the prefill drafter: {0}")]
    NoRoom(String),
    /// The worker is going down.
    #[error("the prefill worker is shutting down")]
    ShuttingDown,
    /// The model could not go on.
    #[error("{0}")]
    Model(String),
}

/// Counters of a prefill worker since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillStats {
    /// Requests that wait now.
    pub queued_requests: u32,
    /// Whether the weights are in the device's memory now.
    pub is_resident: bool,
    /// Requests that were answered.
    pub finished_requests: u64,
    /// Requests whose stream was dropped.
    pub cancelled_requests: u64,
    /// Requests that the model could not answer.
    pub failed_requests: u64,
    /// Tokens of prompts that were answered.
    pub tokens_in: u64,
    /// Tokens of them that were kept.
    pub tokens_out: u64,
    /// Times that the weights were brought to the device.
    pub loads: u64,
    /// Times that its memory was given back.
    pub parks: u64,
    /// Microseconds of all loads.
    pub load_us: u64,
    /// Microseconds of all forward passes.
    pub score_us: u64,
    /// Microseconds of choosing chunks.
    pub select_us: u64,
    /// Microseconds of giving memory back.
    pub park_us: u64,
    /// What it takes now.
    pub memory: MemoryStats,
}
