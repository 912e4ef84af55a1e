//! From a model file to a running engine.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use engine::Engine;
use generation::ModelDescription;
use gguf::GgufFile;
use kernels::{Device, DeviceName, open_limited_device};
use models::{LoadProgress, Model, ModelError};
use tensor_channel::{ChannelDevice, Transport, available, choose};
use worker_api::{LaterStage, SpeculationDescription, StageDescription};

use crate::config::{Config, context_length};
use crate::disk::disk_cache;
use crate::grammars::GrammarReader;
use crate::split::{Stage, layer_words};

/// A stage of a model on its device; the only one, where the model is not split.
#[derive(Debug)]
pub struct LoadedStage {
    /// Its layers.
    pub model: Model,
    /// What the others know of it.
    pub description: StageDescription,
    /// What the stage before it has to know.
    pub later: LaterStage,
}

/// Loads the weights of a stage. Blocks for as long as that takes.
///
/// # Errors
/// The device is not there, a setting cannot be, or the model cannot be loaded; named with the stage where there are several.
pub fn load_stage(
    config: &Config,
    file: &GgufFile,
    stage: &Stage,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<LoadedStage> {
    let device = open_limited_device(stage.device, config.threads, config.device_memory)
        .context(config.device_setting())?;
    device.set_decode_path(config.decode_path()?);
    let options = config.load_options(file)?;
    let layers = stage.layers.clone();
    let model = models::load_stage(file, layers, device.clone(), options, progress)
        .map_err(|error| not_loaded(config, file, stage, error))?;
    let number = |what, size: usize| u32::try_from(size).context(what);
    let description = StageDescription {
        device: device.name(),
        first_layer: number("layers", stage.layers.start)?,
        end_layer: number("layers", stage.layers.end)?,
        compiles_kernels: device.compiles_kernels(),
    };
    let sizes = model.config();
    let later = LaterStage {
        // Stages pass rows on through the host.
        transports: available(None),
        file_bytes: file.file_len(),
        num_layers: number("layers", sizes.num_layers)?,
        hidden_size: number("hidden size", sizes.hidden_size)?,
        first_layer: description.first_layer,
        max_tokens: options.max_tokens as u64,
        max_sequences: number("parallel", options.max_sequences)?,
        max_batch_rows: number("prefill-chunk", options.max_batch_rows)?,
    };
    Ok(LoadedStage {
        model,
        description,
        later,
    })
}

/// What was loaded, and what to change where it does not fit.
fn not_loaded(config: &Config, file: &GgufFile, stage: &Stage, error: ModelError) -> anyhow::Error {
    let context_length = context_length(file, config.ctx_size);
    let (path, parallel) = (file.path().display(), config.parallel);
    let mib = config.prefix_cache_mib;
    let sizes =
        format!("ctx-size {context_length}, parallel {parallel} and prefix-cache-mib {mib}");
    let fits = !matches!(error, ModelError::DoesNotFit { .. });
    let error = anyhow::Error::from(error);
    if stage.of == 1 {
        return error.context(format!("loading {path} with {sizes}"));
    }
    let words = format!("loading {stage} of {path} with {sizes}");
    if fits {
        return error.context(words);
    }
    error.context(format!(
        "{words}: lower these, or give the stage a smaller share with target-layer-split"
    ))
}

/// A running engine, and what setting up speculation takes.
pub(crate) struct Started {
    pub engine: Engine,
    pub speculates: SpeculationDescription,
    pub grammars: GrammarReader,
    /// Of the model's last layers.
    pub device: Arc<dyn Device>,
}

/// Starts the engine; `stages` are all there are. Blocks for as long as the first step of each kind takes.
pub(crate) fn start_engine(
    config: &Config,
    file: GgufFile,
    mut model: Model,
    stages: &[StageDescription],
) -> Result<Started> {
    let context_length = context_length(&file, config.ctx_size);
    let sizes = config.sizes(&file)?;
    let slots = sizes.prefix_cache.slots;
    if slots < config.prefix_cache_slots {
        let (asked, mib) = (config.prefix_cache_slots, config.prefix_cache_mib);
        tracing::info!(
            slots,
            asked,
            mib,
            "prefix-cache-mib has room for fewer prefixes"
        );
    }
    let draft_nodes = sizes.speculation.max_rows();
    if config.fa_window > 0 {
        model.set_decode_window(Some(config.fa_window))?;
    }
    model.warm_up(draft_nodes).context("the first step")?;
    let description = ModelDescription {
        name: name(&file),
        architecture: model.config().architecture.name().to_owned(),
        context_length: u32::try_from(context_length).context("ctx-size")?,
        vocab_size: u32::try_from(model.config().vocab_size).context("vocabulary")?,
        max_sequences: u32::try_from(config.parallel).context("parallel")?,
        device: devices(stages),
    };
    let device = Arc::clone(model.device());
    let speculates = SpeculationDescription {
        mode: sizes.speculation.mode.name().to_owned(),
        hidden_size: u32::try_from(model.config().hidden_size).context("hidden size")?,
        num_layers: u32::try_from(model.config().num_layers).context("layers")?,
        transports: available(device.channel_device().and_then(ChannelDevice::transport)),
    };
    let grammars = GrammarReader::new(&file, model.config().vocab_size);
    let disk = disk_cache(config, &sizes, &file, &model).context("kv-cache-dir")?;
    // Its weights may have to leave the device and come back.
    model.keep_file(file);
    let engine = Engine::start(model, description, sizes, disk).context("starting the engine")?;
    Ok(Started {
        engine,
        speculates,
        grammars,
        device,
    })
}

/// The devices of all stages in one line, with their layers where there are several.
#[must_use]
pub fn devices(stages: &[StageDescription]) -> String {
    if let [only] = stages {
        return only.device.clone();
    }
    let stage = |stage: &StageDescription| {
        let layers = layer_words(stage.first_layer as usize, stage.end_layer as usize);
        format!("{}: {layers}", stage.device)
    };
    stages.iter().map(stage).collect::<Vec<_>>().join(", ")
}

/// How a target worker on one of two devices of this host and a draft worker on the other would exchange tensors.
#[must_use]
pub fn transport_between(one: DeviceName, other: DeviceName) -> Option<Transport> {
    let ways = |device: DeviceName| available(device.memory_transport());
    choose(&ways(one), &ways(other))
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
