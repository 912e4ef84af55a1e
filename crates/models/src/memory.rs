//! Whether a model fits, before anything is allocated.

use gguf::GgufFile;
use kv_cache::CacheShape;

use crate::error::ModelError;
use crate::hparams::{LayerKind, ModelConfig};
use crate::model::LoadOptions;

/// Rows that the head is applied to at a time.
pub(crate) const HEAD_ROWS: usize = 32;

/// Bytes of activations: see `decoder::Scratch`, and the recurrence's rows, which verification keeps for every layer.
fn scratch_bytes(config: &ModelConfig, options: &LoadOptions) -> u64 {
    let heads = config.num_heads * config.head_dim;
    let (mut kv, mut inner, mut passing, mut kept) = (0, 0, 0, 0);
    for kind in &config.layers {
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
    let rows =
        (options.max_batch_rows as u64).saturating_mul((stream + mixer + passing + kept) as u64);
    let head = (HEAD_ROWS * (config.hidden_size + config.vocab_size)) as u64;
    rows.saturating_add(head)
        .saturating_mul(size_of::<f32>() as u64)
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
