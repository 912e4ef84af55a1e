//! A loaded model and its sequences.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, KvType, PAGE_TOKENS};
use kv_cache::{Cache, CacheShape, LayerState, SequenceId, Snapshot};

use crate::batch::{Batch, BatchSegment, LogitsWanted, Output};
use crate::decoder::{Commit, Decoder};
use crate::error::ModelError;
use crate::hparams::{Architecture, LayerKind, ModelConfig};
use crate::memory::{WARM_UP_ROWS, check_fit};
use crate::plan::Plan;
use crate::weights::{LoadProgress, WeightLoader};
use crate::{dense, qwen35};

/// Sizes that a model is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Tokens of all sequences together; rounded up to whole pages.
    pub max_tokens: usize,
    /// Sequences at a time.
    pub max_sequences: usize,
    /// Rows of a batch.
    pub max_batch_rows: usize,
    /// How keys and values are kept. `None`: f16 where weights are quantised, so that products round activations to 8
    /// bits and what f16 rounds off is lost in that; f32 where weights and activations are floats.
    pub kv_type: Option<KvType>,
}

/// A segment that waits for its commit.
#[derive(Debug)]
struct Pending {
    first_row: usize,
    parents: Vec<i32>,
}

/// Weights, graph and sequences.
pub struct Model {
    device: Arc<dyn Device>,
    config: ModelConfig,
    decoder: Decoder,
    cache: Cache,
    pending: HashMap<SequenceId, Pending>,
    max_batch_rows: usize,
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
    let shape = cache_shape(file, &config, &options);
    check_fit(file, &config, &shape, &options, device.as_ref())?;
    let load_layers = match config.architecture {
        Architecture::Qwen35 => qwen35::load,
        Architecture::Qwen3 | Architecture::Llama => dense::load,
    };
    let mut rehearsal = WeightLoader::rehearsal(file, device.as_ref());
    Decoder::load(&mut rehearsal, device.as_ref(), &config, 0, load_layers)?;
    rehearsal.finish(config.architecture.name(), |tensor| {
        tensor == dense::ROPE_DIVISORS || qwen35::ignores(&config, tensor)
    })?;
    let mut weights = WeightLoader::new(file, device.as_ref(), progress);
    let decoder = Decoder::load(
        &mut weights,
        device.as_ref(),
        &config,
        options.max_batch_rows,
        load_layers,
    )?;
    let cache = Cache::new(
        device.as_ref(),
        shape,
        options.max_tokens,
        options.max_sequences,
    )?;
    device.finish()?;
    let max_batch_rows = options.max_batch_rows;
    Ok(Model {
        device,
        config,
        decoder,
        cache,
        pending: HashMap::new(),
        max_batch_rows,
    })
}

pub(crate) fn cache_shape(
    file: &GgufFile,
    config: &ModelConfig,
    options: &LoadOptions,
) -> CacheShape {
    let is_quantised = || file.tensors().any(|tensor| tensor.dtype.is_quantised());
    let kv_type = options.kv_type.unwrap_or_else(|| {
        if is_quantised() {
            KvType::F16
        } else {
            KvType::F32
        }
    });
    let head_dim = config.head_dim;
    let state = |kind: &LayerKind| match *kind {
        LayerKind::Attention { num_kv_heads } => LayerState::Attention {
            num_kv_heads,
            head_dim,
        },
        LayerKind::DeltaNet(shape) => LayerState::DeltaNet(shape),
    };
    CacheShape {
        layers: config.layers.iter().map(state).collect(),
        kv_type,
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Sizes and constants.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Most rows of a batch.
    #[must_use]
    pub fn max_batch_rows(&self) -> usize {
        self.max_batch_rows
    }

    /// The cache, for its free room.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// An empty sequence.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn create_sequence(&mut self) -> Result<SequenceId, ModelError> {
        Ok(self.cache.create(self.device.as_ref())?)
    }

    /// Gives a sequence back.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn free_sequence(&mut self, sequence: SequenceId) -> Result<(), ModelError> {
        self.cache.free(sequence)?;
        self.pending.remove(&sequence);
        Ok(())
    }

    /// Committed tokens.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn sequence_len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        Ok(self.cache.len(sequence)?)
    }

    /// Copies a sequence's committed state to the host.
    ///
    /// # Errors
    /// The sequence does not exist, or the device failed.
    pub fn snapshot(&self, sequence: SequenceId) -> Result<Snapshot, ModelError> {
        let snapshot = self.cache.snapshot(self.device.as_ref(), sequence)?;
        self.device.finish()?;
        Ok(snapshot)
    }

    /// A new sequence that continues where `snapshot` was taken.
    ///
    /// # Errors
    /// The snapshot is of another model, or there is no room.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId, ModelError> {
        Ok(self.cache.restore(self.device.as_ref(), snapshot)?)
    }

    /// Computes a batch. Advancing segments are part of their sequences afterwards; others wait for
    /// [`Model::commit`], which the next forward pass makes impossible.
    ///
    /// # Errors
    /// The batch is refused before anything is computed: no sequence has changed then. Or the device failed, which is of no
    /// use any more.
    pub fn forward(&mut self, batch: &Batch) -> Result<Output, ModelError> {
        let plan = Plan::new(batch, &self.config, &mut self.cache, self.max_batch_rows)?;
        let device = self.device.as_ref();
        if plan.verifies() {
            self.decoder.keep_rows(device)?;
        }
        self.decoder
            .keep_features(device, &self.config, batch.capture_layers.len())?;
        self.pending.clear();
        let output = self.decoder.forward(
            device,
            &self.config,
            &mut self.cache,
            &plan,
            &batch.capture_layers,
        );
        if plan.is_read() {
            // What was read is nothing where the device failed. Otherwise it need not be waited for.
            device.finish()?;
        }
        for segment in plan.segments {
            if segment.advance {
                self.cache
                    .advance(segment.sequence, segment.parents.len())?;
            } else {
                let pending = Pending {
                    first_row: segment.first_row,
                    parents: segment.parents,
                };
                self.pending.insert(segment.sequence, pending);
            }
        }
        Ok(output)
    }

    /// Goes once through the steps that answers with trees of at most `draft_nodes` will need, where the device compiles its
    /// kernels when they are first called: what is compiled now lets no answer wait.
    ///
    /// # Errors
    /// A kernel that does not compile, or what else the device has against a step.
    pub fn warm_up(&mut self, draft_nodes: usize) -> Result<(), ModelError> {
        if !self.device.compiles_kernels() {
            return Ok(());
        }
        let room = self.cache.num_pages() * PAGE_TOKENS;
        let most = self
            .max_batch_rows
            .min(room)
            .min(self.config.context_length);
        // One more row each time than kernels of the size before take.
        let trees = WARM_UP_ROWS
            .into_iter()
            .filter(|rows| *rows <= draft_nodes + 1);
        let steps = trees.map(|rows| (rows, LogitsWanted::AllBest));
        let steps = steps.chain([(1, LogitsWanted::Last), (most, LogitsWanted::LastBest)]);
        for (rows, logits) in steps.filter(|(rows, _)| *rows <= most) {
            let sequence = self.create_sequence()?;
            let verifies = logits == LogitsWanted::AllBest;
            let segment = BatchSegment {
                sequence,
                tokens: vec![0; rows],
                parents: Vec::new(),
                advance: !verifies,
                logits,
            };
            self.forward(&Batch {
                segments: vec![segment],
                capture_layers: Vec::new(),
            })?;
            if verifies {
                self.commit(sequence, &[0])?;
            }
            self.free_sequence(sequence)?;
        }
        Ok(self.device.finish()?)
    }

    /// Outputs of the captured layers of rows of the last batch, \[rows, layers E\], as a draft reads them: what was
    /// captured of a row side by side.
    pub fn features(&mut self, rows: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let rows: Vec<usize> = rows.into_iter().collect();
        self.decoder.features(self.device.as_ref(), &rows)
    }

    /// Makes the nodes of `path` (root first, may be empty) of the segment verified last part of its sequence.
    ///
    /// # Errors
    /// There is no such segment, or `path` is no path of its tree; it can still be committed then.
    pub fn commit(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), ModelError> {
        let pending = self
            .pending
            .get(&sequence)
            .ok_or(ModelError::NothingToCommit)?;
        let mut parent = -1;
        for (place, &node) in path.iter().enumerate() {
            if pending.parents.get(node) != Some(&parent) {
                return Err(ModelError::BadPath { place, node });
            }
            parent = i32::try_from(node).map_err(|_| ModelError::BadPath { place, node })?;
        }
        if !path.is_empty() {
            let pages = self.cache.pages(sequence)?.to_vec();
            let commit = Commit {
                first_row: pending.first_row,
                path,
                pages: &pages,
                committed_len: self.cache.len(sequence)?,
                state_index: self.cache.state_index(sequence)?,
            };
            self.decoder
                .commit(self.device.as_ref(), &self.config, &mut self.cache, &commit);
            self.cache.advance(sequence, path.len())?;
        }
        self.pending.remove(&sequence);
        Ok(())
    }
}
