//! From model files to a loaded draft and its description.

use std::sync::Arc;

use anyhow::{Context, Result};
use draft_link::link_spec;
use gguf::GgufFile;
use kernels::{Device, open_limited_device};
use models::{DraftFile, DraftModel, DraftOptions, FeatureBlock, LoadProgress};
use worker_api::DraftDescription;

use crate::accept::link_shape;
use crate::config::Config;

/// Tokens per position that a proposal has at most. Trees of some dozen nodes rarely look past the tenth.
const MAX_TOP_K: u32 = 32;

/// A draft that is ready.
pub(crate) struct Loaded {
    pub model: DraftModel,
    /// Where features arrive: room for a slot of them.
    pub landing: FeatureBlock,
    pub description: DraftDescription,
    pub device: Arc<dyn Device>,
}

/// Loads the weights. Blocks for as long as that takes.
pub(crate) fn load(
    config: &Config,
    draft: &DraftFile,
    target: &GgufFile,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded> {
    let device = open_limited_device(config.device()?, config.threads, config.device_memory)
        .context("device")?;
    let options = DraftOptions {
        max_context_tokens: config.ctx_size,
        max_sequences: config.parallel,
        ..DraftOptions::default()
    };
    let model = models::load_draft(draft, target, device.clone(), options, progress);
    let mut model = model.with_context(|| {
        format!(
            "loading the draft {} for {} with ctx-size {} and parallel {}",
            draft.path().display(),
            target.path().display(),
            config.ctx_size,
            config.parallel
        )
    })?;
    model
        .warm_up(MAX_TOP_K as usize)
        .context("the first proposal")?;
    let sizes = model.config();
    let count = |what, size| u32::try_from(size).context(what);
    let capture_layers = sizes.capture_layers.iter();
    let description = DraftDescription {
        name: name(draft),
        architecture: format!("dflash ({:?})", sizes.dialect),
        block_size: count("block size", sizes.block_size)?,
        capture_layers: capture_layers
            .map(|&layer| count("captured layer", layer))
            .collect::<Result<_>>()?,
        hidden_size: count("hidden size", sizes.hidden_size)?,
        vocab_size: count("vocabulary", sizes.vocab_size)?,
        max_top_k: MAX_TOP_K.min(count("vocabulary", sizes.vocab_size)?),
        max_sequences: count("parallel", config.parallel)?,
        context_length: count("ctx-size", config.ctx_size)?,
        device: device.name(),
    };
    let slot_rows = link_spec(&link_shape(&description)).inbound.slot_rows;
    Ok(Loaded {
        landing: model
            .feature_block(slot_rows)
            .context("room for features")?,
        model,
        description,
        device,
    })
}

/// The file's name without its ending.
fn name(draft: &DraftFile) -> String {
    let stem = draft.path().file_stem();
    stem.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}
