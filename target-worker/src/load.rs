//! From a model file to a running engine.

use std::path::Path;

use anyhow::{Context, Result};
use engine::Engine;
use generation::ModelDescription;
use gguf::GgufFile;
use kernels::open_limited_device;
use models::LoadProgress;
use worker_api::SpeculationDescription;

use crate::config::{Config, context_length};

/// Loads the weights and starts the engine. Blocks for as long as that takes.
pub(crate) fn start_engine(
    config: &Config,
    file: &GgufFile,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(Engine, SpeculationDescription)> {
    let device = open_limited_device(config.device()?, config.threads, config.device_memory)
        .context("device")?;
    let context_length = context_length(file, config.ctx_size);
    let sizes = config.sizes(context_length)?;
    let kv_type = config
        .cache_type
        .as_deref()
        .map(str::parse)
        .transpose()
        .context("cache-type")?;
    let options = sizes.load_options(kv_type);
    let mut model = models::load(file, device.clone(), options, progress).with_context(|| {
        format!(
            "loading {} with ctx-size {context_length} and parallel {}",
            file.path().display(),
            config.parallel
        )
    })?;
    let draft_nodes = sizes.speculation.max_rows();
    model.warm_up(draft_nodes).context("the first step")?;
    let description = ModelDescription {
        name: name(file),
        architecture: model.config().architecture.name().to_owned(),
        context_length: u32::try_from(context_length).context("ctx-size")?,
        vocab_size: u32::try_from(model.config().vocab_size).context("vocabulary")?,
        max_sequences: u32::try_from(config.parallel).context("parallel")?,
        device: device.name(),
    };
    let speculates = SpeculationDescription {
        mode: sizes.speculation.mode.name().to_owned(),
        hidden_size: u32::try_from(model.config().hidden_size).context("hidden size")?,
        num_layers: u32::try_from(model.config().num_layers).context("layers")?,
        transports: tensor_channel::available(),
    };
    let engine = Engine::start(model, description, sizes).context("starting the engine")?;
    Ok((engine, speculates))
}

/// How a target worker and a draft worker of this host exchange tensors.
#[must_use]
pub fn local_transport() -> String {
    let best = tensor_channel::available().first().map(ToString::to_string);
    best.unwrap_or_default()
}

/// `general.name`, or the file's name.
fn name(file: &GgufFile) -> String {
    let named = file.metadata().str("general.name").ok().flatten();
    named.map_or_else(
        || {
            let path: &Path = file.path();
            path.file_stem()
                .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
        },
        str::to_owned,
    )
}
