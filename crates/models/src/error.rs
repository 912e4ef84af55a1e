//! What a model refuses.

use std::path::PathBuf;

use gguf::GgufError;
use kernels::{DeviceError, KvType};
use kv_cache::CacheError;
use tensor::QuantError;

use crate::stage::EarlierLayersError;

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is not a model file, or a key is missing or of the wrong type.
    #[error(transparent)]
    File(#[from] GgufError),
    /// No graph for this architecture.
    #[error("{}: architecture \"{got}\" is not supported, expected one of {expected}", path.display())]
    UnknownArchitecture {
        /// File.
        path: PathBuf,
        /// Architectures there are graphs for.
        expected: &'static str,
        /// What the file says.
        got: String,
    },
    /// A key has a value that no graph can be built from.
    #[error("{}: key \"{key}\": expected {expected}, got {got}", path.display())]
    Key {
        /// File.
        path: PathBuf,
        /// Key.
        key: String,
        /// What would do.
        expected: String,
        /// What the file says.
        got: String,
    },
    /// A tensor has another shape than the keys ask for.
    #[error("{}: tensor \"{tensor}\": expected shape {expected:?}, got {got:?}", path.display())]
    TensorShape {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// ne0 first.
        expected: Vec<u64>,
        /// ne0 first.
        got: Vec<u64>,
    },
    /// A tensor that the graph has no use for: computing without it would give wrong results.
    #[error("{}: tensor \"{tensor}\" is not known for architecture {architecture}", path.display())]
    UnknownTensor {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Architecture.
        architecture: &'static str,
    },
    /// A tensor's bytes could not be decoded.
    #[error("{}: tensor \"{tensor}\": {source}", path.display())]
    TensorData {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Why.
        source: QuantError,
    },
    /// The device could not take a tensor.
    #[error("{}: tensor \"{tensor}\": {source}", path.display())]
    TensorDevice {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Why.
        source: DeviceError,
    },
    /// Model and options do not fit in memory.
    #[error(
        "model does not fit: {needed} bytes needed, {available} available, {missing} missing; fewer or shorter sequences take less, \
         and so do keys and values of fewer bits (cache-type-k, cache-type-v), and weights"
    )]
    DoesNotFit {
        /// Weights, cache and scratch.
        needed: u64,
        /// Memory that the system can give.
        available: u64,
        /// The difference.
        missing: u64,
    },
    /// Heads that a type of keys and values does not take.
    #[error(
        "keys and values of {head_dim} dims a head cannot be kept as {kv_type}, which takes multiples of 32"
    )]
    KvHeadDim {
        /// The type asked for.
        kv_type: KvType,
        /// Dims of the model's heads.
        head_dim: usize,
    },
    /// The system refused to open or read a file.
    #[error("{}: cannot read the file: {source}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of JSON is none.
    #[error("{}: no JSON: {source}", path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A file of tensors is damaged or of another format.
    #[error("{}: no safetensors file: {source}", path.display())]
    Safetensors {
        /// File.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
    /// A tensor is of a type that this service does not compute with.
    #[error("{}: tensor \"{tensor}\": type {got} is not supported, expected F32, F16 or BF16", path.display())]
    TensorType {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Type.
        got: String,
    },
    /// A draft model has a part that the graph does not compute; without it, it would propose badly.
    #[error("{}: \"{name}\" belongs to {what}, which is not supported", path.display())]
    DraftExtra {
        /// File.
        path: PathBuf,
        /// Tensor or key.
        name: String,
        /// What it is.
        what: &'static str,
    },
    /// No draft model is where one was said to be.
    #[error("{}: {what}", path.display())]
    NoDraft {
        /// File or folder.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// Features that are no whole number of rows.
    #[error("{got} values of features, expected a multiple of {row_len}")]
    FeatureLen {
        /// Captured layers times hidden size.
        row_len: usize,
        /// Values given.
        got: usize,
    },
    /// A draft block of another depth than the model was made for, or without tokens.
    #[error(
        "draft of depth {depth} with {top_k} tokens a position, expected 1 to {limit} positions and at least 1 token"
    )]
    DraftDepth {
        /// Positions asked for.
        depth: usize,
        /// Tokens a position asked for.
        top_k: usize,
        /// Positions that a draft block has.
        limit: usize,
    },
    /// A batch has no rows, or a segment has none.
    #[error("segment {segment} has no tokens")]
    EmptySegment {
        /// Its number in the batch; 0 for a batch without segments.
        segment: usize,
    },
    /// More rows than the model was loaded for.
    #[error("batch has {got} rows, at most {limit} fit")]
    TooManyRows {
        /// `max_batch_rows`.
        limit: usize,
        /// Rows of the batch.
        got: usize,
    },
    /// A token id outside the vocabulary.
    #[error(
        "segment {segment}, token {index}: id {token} is outside the vocabulary of {vocab_size}"
    )]
    TokenOutOfRange {
        /// Its number in the batch.
        segment: usize,
        /// Its number in the segment.
        index: usize,
        /// The id.
        token: u32,
        /// Ids there are.
        vocab_size: usize,
    },
    /// The parents of a segment are no tree in topological order, or no chain where one is asked for.
    #[error("segment {segment}: {what}")]
    Parents {
        /// Its number in the batch.
        segment: usize,
        /// What is wrong.
        what: String,
    },
    /// A sequence appears in two segments of a batch.
    #[error("segment {segment}: its sequence is in the batch already")]
    RepeatedSequence {
        /// Its number in the batch.
        segment: usize,
    },
    /// The sequence would be longer than the model's context.
    #[error("segment {segment}: {wanted} tokens exceed the context of {limit}")]
    ContextOverflow {
        /// Its number in the batch.
        segment: usize,
        /// Context length of the model.
        limit: usize,
        /// Committed tokens and those of the batch.
        wanted: usize,
    },
    /// A layer to capture does not exist.
    #[error("layer {layer} cannot be captured, the model has {num_layers}")]
    CaptureLayer {
        /// Layer asked for.
        layer: usize,
        /// Layers there are.
        num_layers: usize,
    },
    /// A model cannot be split into so many stages.
    #[error("a model of {layers} layers cannot be split into {stages} stages")]
    Stages {
        /// Stages asked for.
        stages: usize,
        /// Layers there are.
        layers: usize,
    },
    /// A stage cannot have such a share of the layers.
    #[error("a stage cannot have the share {share} of the layers, expected a number above 0")]
    Share {
        /// What was asked for.
        share: f64,
    },
    /// A stage of layers that the model does not have.
    #[error("there are no layers {start} to {end}, the end not included: the model has {layers}")]
    NoSuchLayers {
        /// First layer asked for.
        start: usize,
        /// Layer after the last one asked for.
        end: usize,
        /// Layers there are.
        layers: usize,
    },
    /// A prompt cannot be scored by so many layers.
    #[error("a model of {layers} layers cannot score with {got} of them")]
    ScoredLayers {
        /// Layers asked for.
        got: usize,
        /// Layers there are.
        layers: usize,
    },
    /// What is no share of attention.
    #[error("a sparsity of {got} was asked for, expected a number above 0 and up to 1")]
    Sparsity {
        /// What was asked for.
        got: f32,
    },
    /// Nobody wants the scores of a prompt any more.
    #[error("the scoring of a prompt was stopped")]
    ScoringStopped,
    /// A stage after the first has nothing to compute from.
    #[error("the layers before layer {start} are not there")]
    NoEarlierLayers {
        /// First layer of the stage.
        start: usize,
    },
    /// The layers before a stage are gone: the model is of no use any more.
    #[error(transparent)]
    EarlierLayers(#[from] EarlierLayersError),
    /// The state of a sequence lies in several stages.
    #[error("a model that is split over devices takes no snapshots")]
    SplitSnapshot,
    /// Rows of a split model would see further in some layers than in others.
    #[error("a model that is split over devices takes no window of attention")]
    SplitWindow,
    /// The weights could not be read again.
    #[error("a model that is split over devices, or whose file is not kept, cannot be parked")]
    CannotPark,
    /// The weights are not on the device.
    #[error("the model is parked")]
    Parked,
    /// Commit without a verified segment in the last batch.
    #[error("the last batch holds no verified segment of this sequence")]
    NothingToCommit,
    /// The accepted path is no path of the verified tree.
    #[error("node {node} at place {place} of the path does not follow its predecessor")]
    BadPath {
        /// Position in the path.
        place: usize,
        /// Node there.
        node: usize,
    },
    /// Sequences, pages and snapshots.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The device refused.
    #[error("device: {0}")]
    Device(#[from] DeviceError),
}
