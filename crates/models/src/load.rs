//! From a file to a model, or to a stage of one.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, KvType, KvTypes};
use kv_cache::{Cache, CacheShape, LayerState};

use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::hparams::{Architecture, LayerKind, ModelConfig};
use crate::memory::need;
use crate::model::Model;
use crate::stage::{all_layers, check_stage};
use crate::weights::{LoadProgress, WeightLoader};
use crate::{dense, qwen35};
use tensor::DType;

/// Sizes that a model is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Tokens of all sequences together; rounded up to whole pages.
    pub max_tokens: usize,
    /// Sequences at a time.
    pub max_sequences: usize,
    /// Rows of a batch.
    pub max_batch_rows: usize,
    /// How keys and values are kept. `None`: both as [`kv_types`] says.
    pub kv_type: Option<KvTypes>,
}

/// Loads a model file; see [`load`].
///
/// # Errors
/// As [`load`], and where the file cannot be opened.
pub fn load_path(
    path: impl AsRef<Path>,
    device: Arc<dyn Device>,
    options: LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model, ModelError> {
    load(&GgufFile::open(path)?, device, options, progress)
}

/// Loads a model onto a device. `progress` is called after every tensor.
///
/// # Errors
/// An architecture, key or tensor that no graph here can use, named; a model that does not fit in memory, told before
/// anything is allocated.
pub fn load(
    file: &GgufFile,
    device: Arc<dyn Device>,
    options: LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model, ModelError> {
    let config = ModelConfig::read(file)?;
    let stage = all_layers(&config);
    load_layers(file, config, stage, device, options, progress)
}

/// Loads some of a model's layers, the embedding with the first and the head with the last: see [`Model::set_earlier`].
///
/// # Errors
/// As [`load`]; there are no such layers.
pub fn load_stage(
    file: &GgufFile,
    stage: Range<usize>,
    device: Arc<dyn Device>,
    options: LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model, ModelError> {
    let config = ModelConfig::read(file)?;
    check_stage(&config, &stage)?;
    load_layers(file, config, stage, device, options, progress)
}

fn load_layers(
    file: &GgufFile,
    config: ModelConfig,
    stage: Range<usize>,
    device: Arc<dyn Device>,
    options: LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model, ModelError> {
    check_kv_types(config.head_dim, options.kv_type)?;
    let need = need(file, &config, &stage, &options).on(device.as_ref());
    need.check()?;
    // Of all layers: whichever stage reads it, a file is refused for the same.
    let all = all_layers(&config);
    let mut rehearsal = WeightLoader::rehearsal(file, device.as_ref());
    load_decoder(&mut rehearsal, device.as_ref(), &config, &all, 0)?;
    rehearsal.finish(config.architecture.name(), |tensor| {
        tensor == dense::ROPE_DIVISORS || qwen35::ignores(&config, tensor)
    })?;
    let state = LoadProgress {
        bytes_done: 0,
        bytes_total: need.weights,
    };
    let mut weights = WeightLoader::new(file, device.as_ref(), progress, state);
    let rows = options.max_batch_rows;
    let decoder = load_decoder(&mut weights, device.as_ref(), &config, &stage, rows)?;
    let cache = Cache::new(
        device.as_ref(),
        cache_shape(file, &config, &stage, &options),
        options.max_tokens,
        options.max_sequences,
    )?;
    device.finish()?;
    Ok(Model::new(device, config, stage, decoder, cache, rows))
}

/// The graph of a stage and its weights, for batches of at most `max_rows` rows.
pub(crate) fn load_decoder(
    weights: &mut WeightLoader<'_>,
    device: &dyn Device,
    config: &ModelConfig,
    stage: &Range<usize>,
    max_rows: usize,
) -> Result<Decoder, ModelError> {
    let of_architecture = match config.architecture {
        Architecture::Qwen35 => qwen35::load,
        Architecture::Qwen3 | Architecture::Llama => dense::load,
    };
    Decoder::load(weights, device, config, stage, max_rows, of_architecture)
}

/// How keys and values are kept where nothing else is asked for: f16, in which they are as exact as weights are; f32 where all weights
/// are f32.
#[must_use]
pub fn kv_types(file: &GgufFile, k: Option<KvType>, v: Option<KvType>) -> KvTypes {
    let is_exact = || file.tensors().all(|tensor| tensor.dtype == DType::F32);
    let or_default = |side: Option<KvType>| {
        side.unwrap_or_else(|| match is_exact() {
            true => KvType::F32,
            false => KvType::F16,
        })
    };
    KvTypes {
        k: or_default(k),
        v: or_default(v),
    }
}

/// Refuses types that heads of the model cannot be kept in.
pub(crate) fn check_kv_types(head_dim: usize, types: Option<KvTypes>) -> Result<(), ModelError> {
    let types = types.into_iter().flat_map(|types| [types.k, types.v]);
    match types.into_iter().find(|kv_type| !kv_type.takes(head_dim)) {
        Some(kv_type) => Err(ModelError::KvHeadDim { kv_type, head_dim }),
        None => Ok(()),
    }
}

pub(crate) fn cache_shape(
    file: &GgufFile,
    config: &ModelConfig,
    stage: &Range<usize>,
    options: &LoadOptions,
) -> CacheShape {
    let kv_type = options
        .kv_type
        .unwrap_or_else(|| kv_types(file, None, None));
    let head_dim = config.head_dim;
    let state = |kind: &LayerKind| match *kind {
        LayerKind::Attention { num_kv_heads } => LayerState::Attention {
            num_kv_heads,
            head_dim,
        },
        LayerKind::DeltaNet(shape) => LayerState::DeltaNet(shape),
    };
    CacheShape {
        layers: config.layers[stage.clone()].iter().map(state).collect(),
        kv_type,
    }
}
