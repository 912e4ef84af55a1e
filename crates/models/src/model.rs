//! A loaded model and its sequences.

mod parking;
mod sequences;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, PAGE_TOKENS};
use kv_cache::{Cache, SequenceId};

use crate::batch::{Batch, BatchSegment, LogitsWanted, Output};
use crate::decoder::{Commit, Decoder, Pass};
use crate::error::ModelError;
use crate::features::FeatureBlock;
use crate::hparams::ModelConfig;
use crate::memory::WARM_UP_ROWS;
use crate::model::parking::Made;
use crate::plan::Plan;
use crate::stage::{EarlierLayers, StageOutput};
use crate::window::DecodeWindow;

/// Steps of one row in which a device has chosen between its ways to launch them.
const PATH_STEPS: usize = 24;

/// A segment that waits for its commit.
#[derive(Debug)]
struct Pending {
    first_row: usize,
    parents: Vec<i32>,
}

/// Weights, graph and sequences: of all layers, or of those of a stage.
pub struct Model {
    device: Arc<dyn Device>,
    config: ModelConfig,
    /// Its own layers.
    stage: Range<usize>,
    /// Those before.
    earlier: Option<Box<dyn EarlierLayers>>,
    /// What they made of the last batch.
    given: StageOutput,
    /// Layers captured of the last batch.
    captured: Vec<usize>,
    /// `None` while the model is parked.
    decoder: Option<Decoder>,
    /// What the decoder had made beside its weights when the model was parked.
    made: Made,
    /// Where the weights are read from again.
    file: Option<GgufFile>,
    cache: Cache,
    pending: HashMap<SequenceId, Pending>,
    window: DecodeWindow,
    max_batch_rows: usize,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Model {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        config: ModelConfig,
        stage: Range<usize>,
        decoder: Decoder,
        cache: Cache,
        max_batch_rows: usize,
    ) -> Self {
        Self {
            device,
            config,
            stage,
            earlier: None,
            given: StageOutput::default(),
            captured: Vec::new(),
            decoder: Some(decoder),
            made: Made::default(),
            file: None,
            cache,
            pending: HashMap::new(),
            window: DecodeWindow::default(),
            max_batch_rows,
        }
    }

    /// Sizes and constants.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The layers that are here.
    #[must_use]
    pub fn stage(&self) -> &Range<usize> {
        &self.stage
    }

    /// Gives a stage the layers before its own, without which it computes nothing; they must have no sequences yet, nor the
    /// stage. `None` lets go of them.
    pub fn set_earlier(&mut self, earlier: Option<Box<dyn EarlierLayers>>) {
        self.earlier = earlier;
    }

    /// Whether a step may take long the first time that it has some shape, here or in an earlier stage.
    #[must_use]
    pub fn compiles_kernels(&self) -> bool {
        let earlier = self.earlier.as_ref();
        self.device.compiles_kernels() || earlier.is_some_and(|earlier| earlier.compiles_kernels())
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

    /// Computes a batch. Advancing segments are part of their sequences afterwards; others wait for
    /// [`Model::commit`], which the next forward pass makes impossible. A stage before the last gives no logits, but
    /// [`Model::stage_output`].
    ///
    /// # Errors
    /// The batch is refused before anything is computed, as is any while the model is parked: no sequence has changed then. Or the device failed, or earlier layers
    /// are gone: then the model is of no use any more.
    pub fn forward(&mut self, batch: &Batch) -> Result<Output, ModelError> {
        if self.stage.start > 0 && self.earlier.is_none() {
            let start = self.stage.start;
            return Err(ModelError::NoEarlierLayers { start });
        }
        let decoder = self.decoder.as_mut().ok_or(ModelError::Parked)?;
        let plan = Plan::new(
            batch,
            &self.config,
            self.stage.end,
            &mut self.cache,
            &self.window,
            self.max_batch_rows,
        )?;
        self.captured.clone_from(&batch.capture_layers);
        if let Some(earlier) = &mut self.earlier {
            let is_earlier = |layer: &usize| *layer < self.stage.start;
            let theirs = batch.capture_layers.iter().copied().filter(is_earlier);
            let batch = Batch {
                segments: batch.segments.clone(),
                capture_layers: theirs.collect(),
            };
            earlier.forward(&batch, &mut self.given)?;
        }
        let device = self.device.as_ref();
        if plan.verifies() {
            decoder.keep_rows(device)?;
        }
        let own = batch.capture_layers.iter();
        let own = own.filter_map(|layer| layer.checked_sub(self.stage.start));
        let own: Vec<usize> = own.collect();
        decoder.keep_features(device, &self.config, own.len())?;
        self.pending.clear();
        let pass = Pass {
            plan: &plan,
            capture_layers: &own,
            hidden: &self.given.hidden,
        };
        let output = decoder.forward(device, &self.config, &mut self.cache, &pass);
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
        if !self.compiles_kernels() {
            return Ok(());
        }
        let room = self.cache.num_pages() * PAGE_TOKENS;
        let most = self
            .max_batch_rows
            .min(room)
            .min(self.config.context_length);
        // Products in company tell the device which kernels other numbers of rows will need.
        let company = self
            .cache
            .free_sequences()
            .min(self.cache.free_pages())
            .clamp(1, 2);
        if most > 1 {
            self.warm_up_step(company, 2 / company, LogitsWanted::LastBest)?;
            self.device.compile_for_rows(most);
        }
        // One more row each time than kernels of the size before take.
        let trees = WARM_UP_ROWS
            .into_iter()
            .filter(|rows| *rows <= draft_nodes + 1);
        let steps = trees.map(|rows| (rows, LogitsWanted::AllBest));
        let steps = steps.chain([(1, LogitsWanted::Last), (most, LogitsWanted::LastBest)]);
        for (rows, logits) in steps.filter(|(rows, _)| *rows <= most) {
            self.warm_up_step(1, rows, logits)?;
        }
        self.choose_path(most)?;
        Ok(self.device.finish()?)
    }

    /// A step of some sequences with so many rows each, which leaves nothing.
    fn warm_up_step(
        &mut self,
        sequences: usize,
        rows: usize,
        logits: LogitsWanted,
    ) -> Result<(), ModelError> {
        let verifies = logits == LogitsWanted::AllBest;
        let sequences: Vec<SequenceId> = (0..sequences)
            .map(|_| self.create_sequence())
            .collect::<Result<_, _>>()?;
        let segments = sequences.iter().map(|&sequence| BatchSegment {
            sequence,
            tokens: vec![0; rows],
            parents: Vec::new(),
            advance: !verifies,
            logits,
        });
        self.forward(&Batch {
            segments: segments.collect(),
            capture_layers: Vec::new(),
        })?;
        for sequence in sequences {
            if verifies {
                self.commit(sequence, &[0])?;
            }
            self.free_sequence(sequence)?;
        }
        Ok(())
    }

    /// Decodes a while, so that a device with several ways to launch a step finds out which one is the fastest.
    fn choose_path(&mut self, most: usize) -> Result<(), ModelError> {
        let sequence = self.create_sequence()?;
        for _ in 0..PATH_STEPS.min(most) {
            let segment = BatchSegment {
                sequence,
                tokens: vec![0],
                parents: Vec::new(),
                advance: true,
                logits: LogitsWanted::LastBest,
            };
            self.forward(&Batch {
                segments: vec![segment],
                capture_layers: Vec::new(),
            })?;
        }
        self.free_sequence(sequence)
    }

    /// Outputs of the captured layers of rows of the last batch, \[rows, layers E\], as a draft reads them: what was
    /// captured of a row side by side. None once the model was parked.
    pub fn features(&mut self, rows: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let rows: Vec<usize> = rows.into_iter().collect();
        let Some(decoder) = &mut self.decoder else {
            return Vec::new();
        };
        let own = decoder.features(self.device.as_ref(), &rows);
        let is_earlier = |layer: &&usize| **layer < self.stage.start;
        let theirs = self.captured.iter().filter(is_earlier).count();
        if theirs == 0 {
            return own;
        }
        let size = self.config.hidden_size;
        let ours = self.captured.len() - theirs;
        let mut features = Vec::with_capacity(rows.len() * self.captured.len() * size);
        for (place, row) in rows.into_iter().enumerate() {
            let mut given = self.given.features[row * theirs * size..].chunks_exact(size);
            let mut own = own[place * ours * size..].chunks_exact(size);
            for layer in &self.captured {
                let next = if is_earlier(&layer) {
                    given.next()
                } else {
                    own.next()
                };
                features.extend_from_slice(next.unwrap_or_default());
            }
        }
        features
    }

    /// Waits until the device has done all that it was asked, but for earlier layers.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(&self) -> Result<(), ModelError> {
        Ok(self.device.finish()?)
    }

    /// What the last batch, of `rows` rows, became in a stage before the last.
    ///
    /// # Errors
    /// The device failed, or the model is parked.
    pub fn stage_output(&mut self, rows: usize) -> Result<StageOutput, ModelError> {
        let decoder = self.decoder.as_ref().ok_or(ModelError::Parked)?;
        let hidden = decoder.hidden(self.device.as_ref(), &self.config, rows);
        let features = self.features(0..rows);
        self.device.finish()?;
        Ok(StageOutput { hidden, features })
    }

    /// Room on the device for what is captured of `num_rows` tokens, rows of `row_len` values.
    ///
    /// # Errors
    /// There is no memory.
    pub fn feature_block(
        &self,
        num_rows: usize,
        row_len: usize,
    ) -> Result<FeatureBlock, ModelError> {
        FeatureBlock::new(self.device.as_ref(), num_rows, row_len)
    }

    /// Copies what [`Model::features`] gives to `to_row` of a block and after, on the device.
    ///
    /// # Panics
    /// There is no room.
    pub fn copy_features(&mut self, rows: &[usize], to: &mut FeatureBlock, to_row: usize) {
        let device = self.device.as_ref();
        if self.captured.iter().all(|layer| *layer >= self.stage.start) {
            if let Some(decoder) = &mut self.decoder {
                decoder.copy_features(device, rows, to, to_row);
            }
            return;
        }
        // What earlier stages captured is on the host.
        let values = self.features(rows.iter().copied());
        to.write(self.device.as_ref(), to_row, &values);
    }

    /// The device of the model's own layers.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Makes the nodes of `path` (root first, may be empty) of the segment verified last part of its sequence.
    ///
    /// # Errors
    /// There is no such segment, or `path` is no path of its tree; it can still be committed then. Or
    /// [`ModelError::EarlierLayers`].
    pub fn commit(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), ModelError> {
        let decoder = self.decoder.as_ref().ok_or(ModelError::Parked)?;
        let pending = self.pending.get(&sequence);
        let pending = pending.ok_or(ModelError::NothingToCommit)?;
        let mut parent = -1;
        for (place, &node) in path.iter().enumerate() {
            if pending.parents.get(node) != Some(&parent) {
                return Err(ModelError::BadPath { place, node });
            }
            parent = i32::try_from(node).map_err(|_| ModelError::BadPath { place, node })?;
        }
        if let Some(earlier) = &mut self.earlier {
            // First, so that all stages do it at a time.
            earlier.commit(sequence, path)?;
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
            let device = self.device.as_ref();
            decoder.commit(device, &self.config, &mut self.cache, &commit);
            self.cache.advance(sequence, path.len())?;
        }
        self.pending.remove(&sequence);
        Ok(())
    }
}
