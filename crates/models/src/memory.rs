//! Whether a model fits, before anything is allocated.

use gguf::GgufFile;
use kv_cache::CacheShape;

use crate::error::ModelError;
use crate::hparams::{LayerKind, ModelConfig};
use crate::model::LoadOptions;

/// Rows that the head is applied to at a time.
pub(crate) const HEAD_ROWS: usize = 32;

/// Bytes of activations: see `decoder::Scratch`, and rows that verification keeps.
fn scratch_bytes(config: &ModelConfig, options: &LoadOptions) -> u64 {
    let attention = 4 * config.num_heads * config.head_dim;
    let mut row = 2 * config.hidden_size + config.feed_forward_size + attention;
    for (layer, kind) in config.layers.iter().enumerate() {
        if let LayerKind::DeltaNet(shape) = kind {
            row += shape.conv_channels() + 2 * shape.num_v_heads;
            if layer == 0 {
                row += shape.conv_channels() + 2 * shape.num_v_heads * (shape.v_dim + 1);
            }
        }
    }
    4 * (options.max_batch_rows as u64 * row as u64 + (HEAD_ROWS * config.vocab_size) as u64)
}

/// Refuses a model that needs more than the system has to give; accepts where the system does not say.
pub(crate) fn check_fit(
    file: &GgufFile,
    config: &ModelConfig,
    cache: &CacheShape,
    options: &LoadOptions,
) -> Result<(), ModelError> {
    let weights: u64 = file.tensors().map(|tensor| tensor.data.len() as u64).sum();
    let cache = cache.bytes(options.max_tokens, options.max_sequences) as u64;
    let needed = weights
        .saturating_add(cache)
        .saturating_add(scratch_bytes(config, options));
    match available_bytes() {
        Some(available) if needed > available => Err(ModelError::DoesNotFit {
            needed,
            available,
            missing: needed - available,
        }),
        _ => Ok(()),
    }
}

fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
