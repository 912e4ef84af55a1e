//! Stages: a model's layers in runs, each on a device of its own.
//!
//! The first stage has the embedding too, the last the head. A stage after the first computes from what the one before it
//! left, which it asks for through the port [`EarlierLayers`].

use std::fmt::Debug;
use std::ops::Range;

use gguf::GgufFile;
use kv_cache::SequenceId;

use crate::batch::Batch;
use crate::error::ModelError;
use crate::hparams::ModelConfig;

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// What the layers before a stage made of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageOutput {
    /// The residual stream of all rows, \[N, E\].
    pub hidden: Vec<f32>,
    /// Outputs of the captured layers before the stage, \[N, layers, E\].
    pub features: Vec<f32>,
}

/// The earlier layers are gone, for this reason; so is the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EarlierLayersError(pub String);

/// The layers before a model's own, wherever they are. They follow all that happens to the model's sequences, in order.
/// Any error means that they are gone.
pub trait EarlierLayers: Debug + Send {
    /// Whether a step may take long the first time, because a device compiles its kernels then.
    fn compiles_kernels(&self) -> bool;

    /// A new, empty sequence.
    ///
    /// # Errors
    /// The layers are gone.
    fn create_sequence(&mut self, sequence: SequenceId) -> Result<(), EarlierLayersError>;

    /// A new sequence `fork` with the committed state of `sequence`.
    ///
    /// # Errors
    /// The layers are gone.
    fn fork_sequence(
        &mut self,
        sequence: SequenceId,
        fork: SequenceId,
    ) -> Result<(), EarlierLayersError>;

    /// The sequence has ended.
    ///
    /// # Errors
    /// The layers are gone.
    fn free_sequence(&mut self, sequence: SequenceId) -> Result<(), EarlierLayersError>;

    /// Computes a batch, which was checked. It captures layers of theirs only; the logits that it wants are of no concern.
    ///
    /// # Errors
    /// The layers are gone.
    fn forward(
        &mut self,
        batch: &Batch,
        output: &mut StageOutput,
    ) -> Result<(), EarlierLayersError>;

    /// Makes `path` of the segment verified last part of the sequence.
    ///
    /// # Errors
    /// The layers are gone.
    fn commit(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), EarlierLayersError>;
}

/// Divides a file's layers into as many stages as there are `shares`, by their bytes: the embedding counts for the first
/// stage, the head for the last, and each stage has a layer at least. Only what the shares are to each other counts.
///
/// # Errors
/// No graph can be built from the file's keys; there are fewer layers than shares; a share that is no positive number.
pub fn split_layers(file: &GgufFile, shares: &[f64]) -> Result<Vec<Range<usize>>, ModelError> {
    let config = ModelConfig::read(file)?;
    let (stages, layers) = (shares.len(), config.num_layers);
    if stages == 0 || stages > layers {
        return Err(ModelError::Stages { stages, layers });
    }
    if let Some(share) = shares
        .iter()
        .find(|share| !(share.is_finite() && **share > 0.0))
    {
        return Err(ModelError::Share { share: *share });
    }
    let bytes = |stage: Range<usize>| Tensors::of(file, &config, &stage).bytes(file) as f64;
    // Of everything before each layer, and of all stages: an embedding that is the head too is in the first and the last.
    let before: Vec<f64> = (0..layers).map(|layer| bytes(0..layer)).collect();
    let all = bytes(0..layers - 1) + bytes(layers - 1..layers);
    let sum: f64 = shares.iter().sum();
    let (mut ranges, mut start, mut share) = (Vec::with_capacity(stages), 0, 0.0);
    for (stage, own) in shares.iter().enumerate() {
        share += own / sum;
        // As near as it gets, with a layer left for each stage after it.
        let distance = |cut: &usize| (before[*cut] - share * all).abs();
        let end = match stages - stage - 1 {
            0 => layers,
            after => (start + 1..=layers - after)
                .min_by(|a, b| distance(a).total_cmp(&distance(b)))
                .expect("there are as many layers as stages"),
        };
        ranges.push(start..end);
        start = end;
    }
    Ok(ranges)
}

/// The only stage of a model that is not split.
pub(crate) fn all_layers(config: &ModelConfig) -> Range<usize> {
    0..config.num_layers
}

/// Refuses what is no run of layers.
pub(crate) fn check_stage(config: &ModelConfig, stage: &Range<usize>) -> Result<(), ModelError> {
    if stage.start < stage.end && stage.end <= config.num_layers {
        return Ok(());
    }
    Err(ModelError::NoSuchLayers {
        start: stage.start,
        end: stage.end,
        layers: config.num_layers,
    })
}

/// Which tensors of a file a stage holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensors<'a> {
    config: &'a ModelConfig,
    stage: &'a Range<usize>,
    /// The file has a head apart from the embedding.
    has_head: bool,
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(config: &'a ModelConfig, stage: &'a Range<usize>, has_head: bool) -> Self {
        Self {
            config,
            stage,
            has_head,
        }
    }

    pub(crate) fn of(file: &GgufFile, config: &'a ModelConfig, stage: &'a Range<usize>) -> Self {
        Self::new(config, stage, file.tensor(HEAD).is_some())
    }

    pub(crate) fn begins_model(&self) -> bool {
        self.stage.start == 0
    }

    pub(crate) fn ends_model(&self) -> bool {
        self.stage.end == self.config.num_layers
    }

    /// The matrix of the head, where it is not the embedding that the stage has anyway.
    pub(crate) fn own_head(&self) -> Option<&'static str> {
        match (self.ends_model(), self.has_head, self.begins_model()) {
            (true, true, _) => Some(HEAD),
            (true, false, false) => Some(EMBEDDING),
            _ => None,
        }
    }

    fn holds(&self, tensor: &str) -> bool {
        let mut parts = tensor.split('.');
        if parts.next() == Some("blk") {
            let layer = parts.next().and_then(|layer| layer.parse().ok());
            return layer.is_some_and(|layer: usize| self.stage.contains(&layer));
        }
        match tensor {
            EMBEDDING => self.begins_model() || self.own_head() == Some(EMBEDDING),
            HEAD | "output_norm.weight" => self.ends_model(),
            // What all layers share.
            _ => true,
        }
    }

    /// Bytes of them, as the file stores them.
    pub(crate) fn bytes(&self, file: &GgufFile) -> u64 {
        let held = file.tensors().filter(|tensor| self.holds(tensor.name));
        held.map(|tensor| tensor.data.len() as u64).sum()
    }
}
