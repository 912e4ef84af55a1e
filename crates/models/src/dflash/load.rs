//! Loads a draft: settled, measured, rehearsed, and only then onto the device.

use std::collections::HashMap;
use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, KvType, KvTypes, PAGE_TOKENS};
use kv_cache::{Cache, CacheShape, LayerState};

use crate::dflash::DraftModel;
use crate::dflash::config::{DraftConfig, DraftOptions};
use crate::dflash::file::DraftFile;
use crate::dflash::graph::Graph;
use crate::dflash::names::extra;
use crate::dflash::scratch::Rows;
use crate::dflash::weights::TargetEnds;
use crate::error::ModelError;
use crate::hparams::ModelConfig;
use crate::load::check_kv_types;
use crate::memory::MemoryNeed;
use crate::weights::{LoadProgress, WeightLoader};

/// Loads a draft onto a device, with embedding and head of its target's file. `progress` is called after every tensor.
///
/// # Errors
/// A key or tensor that the graph cannot use, named; a draft of another target; a draft that does not fit in memory,
/// told before anything is allocated.
pub fn load_draft(
    draft: &DraftFile,
    target: &GgufFile,
    device: Arc<dyn Device>,
    options: DraftOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<DraftModel, ModelError> {
    let config = DraftConfig::settle(draft, &ModelConfig::read(target)?, &options)?;
    refuse_extras(draft)?;
    check_kv_types(config.head_dim, options.kv_type.map(KvTypes::both))?;
    let sizes = Sizes::new(draft, &config, &options);
    sizes
        .need(draft, target, &config)
        .on(device.as_ref())
        .check()?;
    rehearse(draft, target, device.as_ref(), &config)?;

    let state = LoadProgress {
        bytes_done: 0,
        bytes_total: weight_bytes(draft, target),
    };
    let mut weights = WeightLoader::new(target, device.as_ref(), progress, state);
    let ends = TargetEnds::load(&mut weights, &config)?;
    let state = weights.state();
    let mut weights = WeightLoader::new(draft.tensors(), device.as_ref(), progress, state);
    let graph = Graph::load(&mut weights, device.as_ref(), &config, ends, sizes.rows)?;
    let cache = Cache::new(
        device.as_ref(),
        sizes.cache,
        sizes.cache_tokens,
        options.max_sequences,
    )?;
    device.finish()?;
    Ok(DraftModel {
        device,
        config,
        graph,
        cache,
        first_positions: HashMap::new(),
        context_limit: sizes.context_limit,
        max_rows: sizes.rows.context,
    })
}

/// Says what a draft would take, without loading it.
///
/// # Errors
/// As [`load_draft`], for what files and options say.
pub fn draft_memory_need(
    draft: &DraftFile,
    target: &GgufFile,
    options: &DraftOptions,
) -> Result<MemoryNeed, ModelError> {
    let config = DraftConfig::settle(draft, &ModelConfig::read(target)?, options)?;
    Ok(Sizes::new(draft, &config, options).need(draft, target, &config))
}

/// What options come to.
struct Sizes {
    cache: CacheShape,
    /// Positions that a sequence keeps, whole pages.
    context_limit: usize,
    /// Room of all sequences, a draft block's scratch included.
    cache_tokens: usize,
    rows: Rows,
}

impl Sizes {
    fn new(draft: &DraftFile, config: &DraftConfig, options: &DraftOptions) -> Self {
        let is_quantised = || draft.tensors().tensors().any(|t| t.dtype.is_quantised());
        let kv_type = options.kv_type.unwrap_or_else(|| {
            if is_quantised() {
                KvType::F16
            } else {
                KvType::F32
            }
        });
        let layer = LayerState::Attention {
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
        };
        let pages = |tokens: usize| tokens.max(1).div_ceil(PAGE_TOKENS);
        let context_pages = pages(options.max_context_tokens);
        let sequence_pages = context_pages.saturating_add(pages(config.block_size));
        Self {
            cache: CacheShape {
                layers: vec![layer; config.num_layers],
                kv_type: KvTypes::both(kv_type),
            },
            context_limit: context_pages.saturating_mul(PAGE_TOKENS),
            cache_tokens: sequence_pages
                .saturating_mul(PAGE_TOKENS)
                .saturating_mul(options.max_sequences),
            rows: Rows {
                context: options.max_rows.max(1),
                blocks: options.max_sequences.saturating_mul(config.block_size),
            },
        }
    }

    fn need(&self, draft: &DraftFile, target: &GgufFile, config: &DraftConfig) -> MemoryNeed {
        MemoryNeed {
            weights: weight_bytes(draft, target),
            cache: self.cache.bytes(self.cache_tokens, 0) as u64,
            scratch: (self.rows.scratch_len(config)).saturating_mul(size_of::<f32>() as u64),
            available: None,
        }
    }
}

/// Bytes of all that is loaded.
fn weight_bytes(draft: &DraftFile, target: &GgufFile) -> u64 {
    let ends = TargetEnds::NAMES
        .iter()
        .filter_map(|name| target.tensor(name));
    let own = draft.tensors().tensors();
    own.chain(ends).map(|tensor| tensor.data.len() as u64).sum()
}

/// Refuses drafts of other designs by what they have more.
fn refuse_extras(draft: &DraftFile) -> Result<(), ModelError> {
    let file = draft.tensors();
    match file.tensors().find_map(|t| Some((t.name, extra(t.name)?))) {
        None => Ok(()),
        Some((name, what)) => Err(ModelError::DraftExtra {
            path: file.path().to_owned(),
            name: name.to_owned(),
            what,
        }),
    }
}

/// Checks every name and shape without loading.
fn rehearse(
    draft: &DraftFile,
    target: &GgufFile,
    device: &dyn Device,
    config: &DraftConfig,
) -> Result<(), ModelError> {
    let ends = TargetEnds::load(&mut WeightLoader::rehearsal(target, device), config)?;
    let mut weights = WeightLoader::rehearsal(draft.tensors(), device);
    let none = Rows {
        context: 0,
        blocks: 0,
    };
    Graph::load(&mut weights, device, config, ends, none)?;
    weights.finish("dflash", |_| false)
}
