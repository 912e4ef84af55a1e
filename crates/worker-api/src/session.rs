//! What sets up speculation between a target and a draft.

use generation::MemoryStats;
use tensor_channel::{Descriptor, Transport};

/// How a target speculates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeculationDescription {
    /// `off`, `chain`, `tree` or `auto`.
    pub mode: String,
    /// Hidden size of the target.
    pub hidden_size: u32,
    /// Layers of the target.
    pub num_layers: u32,
    /// Ways that a tensor channel to it can go, the best first.
    pub transports: Vec<Transport>,
}

/// The draft model that a worker has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftDescription {
    /// `general.name` of the model file, or its file name.
    pub name: String,
    /// Architecture as the model file names it.
    pub architecture: String,
    /// Positions of a draft block, the anchor's included.
    pub block_size: u32,
    /// Target layers whose output it reads, 0-based.
    pub capture_layers: Vec<u32>,
    /// Hidden size of the target that it is made for.
    pub hidden_size: u32,
    /// Tokens there are.
    pub vocab_size: u32,
    /// Tokens per position that a proposal has at most.
    pub max_top_k: u32,
    /// Sequences with a context at a time.
    pub max_sequences: u32,
    /// Tokens of context per sequence.
    pub context_length: u32,
    /// Device, for people.
    pub device: String,
}

/// What a target needs to attach to a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftSession {
    /// How to reach the draft.
    pub channel: Descriptor,
    /// What is there.
    pub draft: DraftDescription,
}

impl DraftSession {
    /// The way that the channel goes.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.channel.transport()
    }
}

/// Counters of a draft worker since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Targets attached now.
    pub sessions: u32,
    /// Sequences with a context now.
    pub sequences: u32,
    /// Forward passes over draft blocks.
    pub steps: u64,
    /// Proposals made.
    pub proposals: u64,
    /// Proposals refused.
    pub refusals: u64,
    /// Rows of features taken.
    pub feature_rows: u64,
    /// Contexts given up for other sequences.
    pub evicted_sequences: u64,
    /// What it takes now.
    pub memory: MemoryStats,
}
