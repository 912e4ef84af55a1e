//! What sets up a target that is split over stages.

use tensor_channel::{Descriptor, Transport};

/// A stage, and what it has room for, as the one before it has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterStage {
    /// Ways that a tensor channel to it can go, the best first.
    pub transports: Vec<Transport>,
    /// Bytes of its model file, parts together.
    pub file_bytes: u64,
    /// Layers of the whole model.
    pub num_layers: u32,
    /// Elements of a row.
    pub hidden_size: u32,
    /// Where its layers begin.
    pub first_layer: u32,
    /// Tokens of all sequences together.
    pub max_tokens: u64,
    /// Sequences at a time.
    pub max_sequences: u32,
    /// Rows of a batch.
    pub max_batch_rows: u32,
}

/// A stage that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageDescription {
    /// Device, for people.
    pub device: String,
    /// Its first layer.
    pub first_layer: u32,
    /// The layer after its last one.
    pub end_layer: u32,
    /// A step may take long the first time.
    pub compiles_kernels: bool,
}

/// What a stage needs to attach to the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSession {
    /// How to reach it.
    pub channel: Descriptor,
    /// All stages up to it, the first one first.
    pub stages: Vec<StageDescription>,
}
