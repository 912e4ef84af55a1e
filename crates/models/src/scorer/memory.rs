//! Whether scoring fits, before anything is allocated.

use gguf::GgufFile;

use crate::error::ModelError;
use crate::hparams::ModelConfig;
use crate::memory::{MemoryNeed, scratch_bytes};
use crate::scorer::prompt::Sizes;
use crate::scorer::{PASS_ROWS, ScorerOptions, read_config};
use crate::stage::all_layers;

/// Says what a scorer would take for a prompt of `tokens` tokens, without loading it.
///
/// # Errors
/// No scorer can be made of the file, or with these options.
pub fn scorer_memory_need(
    file: &GgufFile,
    options: &ScorerOptions,
    tokens: usize,
) -> Result<MemoryNeed, ModelError> {
    let config = read_config(file)?;
    options.check(&config)?;
    Ok(need(file, &config, options, tokens))
}

pub(super) fn need(
    file: &GgufFile,
    config: &ModelConfig,
    options: &ScorerOptions,
    tokens: usize,
) -> MemoryNeed {
    let used = file
        .tensors()
        .filter(|tensor| !tensor.name.starts_with("output"));
    let bytes = |tensor: gguf::TensorView<'_>| match options.exact {
        true => tensor.dims.iter().product::<u64>() * size_of::<f32>() as u64,
        false => tensor.data.len() as u64,
    };
    MemoryNeed {
        weights: used.map(bytes).sum(),
        scratch: scratch_bytes(config, &all_layers(config), PASS_ROWS, 0),
        ..prompt_need(config, options, tokens)
    }
}

/// What a prompt needs beside a loaded scorer.
pub(super) fn prompt_need(
    config: &ModelConfig,
    options: &ScorerOptions,
    tokens: usize,
) -> MemoryNeed {
    MemoryNeed {
        weights: 0,
        cache: Sizes::new(config, options, tokens).bytes(options),
        scratch: 0,
        available: None,
    }
}
