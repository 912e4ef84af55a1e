//! Model graphs that read like the paper.
//!
//! [`load`] reads a GGUF file into a [`Model`]. Everything a model does is [`Model::forward`] over a [`Batch`] of node
//! segments and then, for segments that are only verified, [`Model::commit`] of the accepted path. [`load_draft`] reads a
//! [`DraftModel`], which proposes tokens for such segments.

#![forbid(unsafe_code)]

mod attention;
mod batch;
mod decoder;
mod delta_net;
mod dense;
mod dflash;
mod error;
mod hparams;
mod memory;
mod model;
mod plan;
mod qwen35;
mod tensor_file;
mod weights;

pub use batch::{Answer, Batch, BatchSegment, LogitsRow, LogitsWanted, Output};
pub use dflash::{
    DraftAttention, DraftBlock, DraftConfig, DraftDialect, DraftFile, DraftModel, DraftOptions,
    draft_memory_need, load_draft,
};
pub use error::ModelError;
pub use hparams::{Architecture, LayerKind, ModelConfig};
pub use kernels::{KvType, PAGE_TOKENS};
pub use kv_cache::{SequenceId, Snapshot};
pub use memory::{DecodeTraffic, MemoryNeed, decode_traffic, memory_need};
pub use model::{LoadOptions, Model, load, load_path};
pub use weights::LoadProgress;
