//! Model graphs that read like the paper.
//!
//! [`load`] reads a GGUF file into a [`Model`]. Everything a model does is [`Model::forward`] over a [`Batch`] of node
//! segments and then, for segments that are only verified, [`Model::commit`] of the accepted path. [`load_draft`] reads a
//! [`DraftModel`], which proposes tokens for such segments, and [`PromptScorer`] says which parts of a long prompt matter. [`load_stage`] reads some layers of a model that is split over
//! devices.

#![forbid(unsafe_code)]

mod attention;
mod batch;
mod decoder;
mod delta_net;
mod dense;
mod dflash;
mod error;
mod features;
mod hparams;
mod load;
mod memory;
mod model;
mod plan;
mod qwen35;
mod scorer;
mod stage;
mod tensor_file;
mod weights;
mod window;

pub use batch::{Answer, Batch, BatchSegment, LogitsRow, LogitsWanted, Output};
pub use dflash::{
    DraftAttention, DraftBlock, DraftConfig, DraftDialect, DraftFile, DraftModel, DraftOptions,
    draft_memory_need, load_draft,
};
pub use error::ModelError;
pub use features::{FeatureBlock, FeatureRows};
pub use hparams::{Architecture, LayerKind, ModelConfig};
pub use kernels::{KvType, KvTypes, PAGE_TOKENS};
pub use kv_cache::{PartBytes, SequenceId, Snapshot, StatePart};
pub use load::{LoadOptions, kv_types, load, load_path, load_stage};
pub use memory::{DecodeTraffic, MemoryNeed, decode_traffic, memory_need, stage_memory_need};
pub use model::Model;
pub use scorer::{
    DEFAULT_SPARSITY, PromptScorer, ScorePositions, ScoreProgress, ScorerOptions,
    max_scored_tokens, scorer_memory_need,
};
pub use stage::{EarlierLayers, EarlierLayersError, StageOutput, split_layers};
pub use weights::LoadProgress;
