//! Whether a model fits, before anything is allocated.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use gguf::GgufFile;
use kernels::{Device, PAGE_TOKENS};

use crate::error::ModelError;
use crate::hparams::{LayerKind, ModelConfig};
use crate::load::{LoadOptions, cache_shape, check_kv_types};
use crate::qwen35;
use crate::stage::{Tensors, all_layers, check_stage};

/// Rows of steps that kernels of different sizes are made for.
pub(crate) const WARM_UP_ROWS: [usize; 14] =
    [1, 8, 9, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 512];

/// Rows that the head is applied to at a time: those of a large tree.
pub(crate) const HEAD_ROWS: usize = 72;

/// A number that no other set of buffers of this process has: what a device recorded with one set is of no use to another.
pub(crate) fn next_instance() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Bytes of activations: see `decoder::Scratch`, and the recurrence's rows, which verification keeps for every layer.
pub(crate) fn scratch_bytes(
    config: &ModelConfig,
    stage: &Range<usize>,
    rows: usize,
    head_rows: usize,
) -> u64 {
    let heads = config.num_heads * config.head_dim;
    let (mut kv, mut inner, mut passing, mut kept) = (0, 0, 0, 0);
    for kind in &config.layers[stage.clone()] {
        match kind {
            LayerKind::Attention { num_kv_heads } => kv = kv.max(num_kv_heads * config.head_dim),
            LayerKind::DeltaNet(shape) => {
                inner = inner.max(shape.num_v_heads * shape.v_dim);
                passing = shape.conv_channels() + 2 * shape.num_v_heads;
                kept += passing;
            }
        }
    }
    let stream = config.hidden_size + config.feed_forward_size;
    let mixer = 2 * heads + 2 * kv + inner + heads.max(inner);
    let rows = (rows as u64).saturating_mul((stream + mixer + passing + kept) as u64);
    let head = (head_rows * (config.hidden_size + config.vocab_size)) as u64;
    rows.saturating_add(head)
        .saturating_mul(size_of::<f32>() as u64)
}

/// Bytes that a model takes, and that the system has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights as the file stores them.
    pub weights: u64,
    /// KV rows and recurrent states of all sequences.
    pub cache: u64,
    /// Activations of a batch.
    pub scratch: u64,
    /// What the device says that it can give; `None` where it does not say, or was not asked.
    pub available: Option<u64>,
}

impl MemoryNeed {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.cache)
            .saturating_add(self.scratch)
    }

    /// Bytes that are not there.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.available
            .map_or(0, |available| self.total().saturating_sub(available))
    }

    /// The same on a device.
    #[must_use]
    pub fn on(self, device: &dyn Device) -> Self {
        Self {
            available: device.free_memory(),
            ..self
        }
    }

    /// Refuses what needs more than the device has to give; accepts where it does not say.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        match self.available {
            Some(available) if self.missing() > 0 => Err(ModelError::DoesNotFit {
                needed: self.total(),
                available,
                missing: self.missing(),
            }),
            _ => Ok(()),
        }
    }
}

/// Says what a model file would take, without loading it.
///
/// # Errors
/// No graph can be built from the file's keys.
pub fn memory_need(file: &GgufFile, options: &LoadOptions) -> Result<MemoryNeed, ModelError> {
    let config = ModelConfig::read(file)?;
    check_kv_types(config.head_dim, options.kv_type)?;
    Ok(need(file, &config, &all_layers(&config), options))
}

/// The same of some of its layers.
///
/// # Errors
/// As [`memory_need`], and where there are no such layers.
pub fn stage_memory_need(
    file: &GgufFile,
    stage: &Range<usize>,
    options: &LoadOptions,
) -> Result<MemoryNeed, ModelError> {
    let config = ModelConfig::read(file)?;
    check_stage(&config, stage)?;
    Ok(need(file, &config, stage, options))
}

/// Bytes that a token moves through the device's memory when it is decoded alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeTraffic {
    /// Weights as the file stores them, but for an embedding that only one row is read of.
    pub weights: u64,
    /// Recurrent states, read and written.
    pub states: u64,
    /// Keys and values of each token before it.
    pub kv_per_token: u64,
}

impl DecodeTraffic {
    /// Bytes after `depth` tokens.
    #[must_use]
    pub fn after(&self, depth: u64) -> u64 {
        let kv = self.kv_per_token.saturating_mul(depth);
        self.weights.saturating_add(self.states).saturating_add(kv)
    }
}

/// Says what a decoded token moves at least, from which the least time follows that it can take.
///
/// # Errors
/// No graph can be built from the file's keys.
pub fn decode_traffic(file: &GgufFile, options: &LoadOptions) -> Result<DecodeTraffic, ModelError> {
    let config = ModelConfig::read(file)?;
    let shape = cache_shape(file, &config, &all_layers(&config), options);
    let has_head = file.tensor("output.weight").is_some();
    let is_read =
        |name: &str| !(qwen35::ignores(&config, name) || has_head && name == "token_embd.weight");
    let read = file.tensors().filter(|tensor| is_read(tensor.name));
    Ok(DecodeTraffic {
        weights: read.map(|tensor| tensor.data.len() as u64).sum(),
        states: 2 * shape.bytes(0, 1) as u64,
        kv_per_token: (shape.bytes(PAGE_TOKENS, 0) / PAGE_TOKENS) as u64,
    })
}

/// What the layers of `stage` need.
pub(crate) fn need(
    file: &GgufFile,
    config: &ModelConfig,
    stage: &Range<usize>,
    options: &LoadOptions,
) -> MemoryNeed {
    let shape = cache_shape(file, config, stage, options);
    let head_rows = match stage.end == config.num_layers {
        true => HEAD_ROWS,
        false => 0,
    };
    MemoryNeed {
        weights: Tensors::of(file, config, stage).bytes(file),
        cache: shape.bytes(options.max_tokens, options.max_sequences) as u64,
        scratch: scratch_bytes(config, stage, options.max_batch_rows, head_rows),
        available: None,
    }
}
