//! The operations that a device offers, and their arguments.
//!
//! Shapes: N rows (nodes) in the batch, E hidden size, H query heads, Hkv key/value heads, D head dim; Hk, Hv
//! DeltaNet key/value heads with dims dk, dv. Buffers are row-major f32. Ops panic on a caller's shape mistake that
//! would read outside a buffer (a bug, not an input); everything that depends on a file is an error at load.

use std::fmt;

use tensor::DType;
use tensor_channel::ChannelDevice;

use crate::buffer::Buffer;
use crate::cpu::PackedMatrix;
use crate::decode_path::DecodePath;
use crate::error::DeviceError;
use crate::gpu::GpuMatrix;
use crate::kv::KvType;
use crate::prompt::{SparseAttentionArgs, TailProductsArgs, TailWeightsArgs};

/// Tokens in one page of KV rows; also the fixed split of attention, aligned to absolute positions.
pub const PAGE_TOKENS: usize = 64;

/// A weight matrix as it stands in a file: `rows` outputs of `cols` contiguous inputs.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// Element type.
    pub dtype: DType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The file's bytes.
    pub bytes: &'a [u8],
}

/// A weight matrix in the device's own layout: y\[r\] = sum over c of W\[r, c\] x\[c\].
#[derive(Debug)]
pub struct Matrix {
    weights: Weights,
}

#[derive(Debug)]
enum Weights {
    Host(PackedMatrix),
    Gpu(GpuMatrix),
}

impl Matrix {
    pub(crate) fn host(packed: PackedMatrix) -> Self {
        Self {
            weights: Weights::Host(packed),
        }
    }

    pub(crate) fn gpu(matrix: GpuMatrix) -> Self {
        Self {
            weights: Weights::Gpu(matrix),
        }
    }

    /// The weights of a matrix of the CPU.
    pub(crate) fn packed(&self) -> &PackedMatrix {
        match &self.weights {
            Weights::Host(packed) => packed,
            Weights::Gpu(_) => panic!("a matrix of another device"),
        }
    }

    /// The weights of a matrix of a GPU.
    pub(crate) fn on_gpu(&self) -> &GpuMatrix {
        match &self.weights {
            Weights::Gpu(matrix) => matrix,
            Weights::Host(_) => panic!("a matrix of another device"),
        }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        match &self.weights {
            Weights::Host(packed) => packed.rows,
            Weights::Gpu(matrix) => matrix.rows,
        }
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        match &self.weights {
            Weights::Host(packed) => packed.cols,
            Weights::Gpu(matrix) => matrix.cols,
        }
    }

    /// Bytes held on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::Host(packed) => packed.bytes.len(),
            Weights::Gpu(matrix) => matrix.memory.bytes(),
        }
    }
}

/// RMS normalisation over a whole row: `x / sqrt(mean(x^2) + eps) * gamma`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// `gamma`: \[E\].
    pub gamma: &'a Buffer,
    /// Added to the mean square.
    pub eps: f32,
}

/// One product of a [`LinearArgs`].
#[derive(Debug)]
pub struct Projection<'a> {
    /// \[rows, E\].
    pub weight: &'a Matrix,
    /// \[N, rows\].
    pub out: &'a mut Buffer,
}

/// `out_i = W_i norm(x)` for several matrices that read the same rows; `accumulate` adds to what `out` holds.
#[derive(Debug)]
pub struct LinearArgs<'a, 'b> {
    /// Rows in the batch.
    pub num_rows: usize,
    /// \[N, E\].
    pub x: &'a Buffer,
    /// Normalise `x` first.
    pub norm: Option<Norm<'a>>,
    /// Products, all with E columns.
    pub projections: &'b mut [Projection<'a>],
    /// Add to `out` (residual stream) instead of overwriting.
    pub accumulate: bool,
}

/// `out = silu(Wg norm(x)) * (Wu norm(x))`.
#[derive(Debug)]
pub struct GatedLinearArgs<'a> {
    /// Rows in the batch.
    pub num_rows: usize,
    /// \[N, E\].
    pub x: &'a Buffer,
    /// Normalise `x` first.
    pub norm: Option<Norm<'a>>,
    /// \[F, E\].
    pub gate: &'a Matrix,
    /// \[F, E\].
    pub up: &'a Matrix,
    /// \[N, F\].
    pub out: &'a mut Buffer,
}

/// Rows of one sequence in the batch. Row `first_row + i` is node `i`.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// First row of the batch that belongs to it.
    pub first_row: usize,
    /// Parent node of each node (-1: the committed state); a parent comes before its child.
    pub parents: &'a [i32],
    /// Committed tokens before this segment. Node `i` is written to slot `committed_len + i`.
    pub committed_len: usize,
    /// Position of slot 0; not 0 where a context begins later, or its oldest pages were dropped.
    pub first_position: usize,
    /// Pages of the sequence: token slot `s` lies in page `pages[s / PAGE_TOKENS]`.
    pub pages: &'a [u32],
    /// Index of the recurrent state of the sequence.
    pub state_index: usize,
    /// The nodes are a chain that is accepted already: recurrent states move along with it.
    pub advance: bool,
    /// Places that a node's attention sees at most, the last of them its own; `None`: all. Windows of layers are beside this.
    pub window: Option<usize>,
}

/// Which nodes of its own segment a node sees. Committed slots are seen by all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// Itself and its ancestors; its position is the committed length and its depth.
    #[default]
    Ancestors,
    /// Every node; node `i` stands at position `committed_len + i` and parents are not looked at.
    All,
}

/// Sliding window of a layer, in positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// W: keys W or more positions away are not seen. `usize::MAX` for a causal layer without a window.
    pub tokens: usize,
    /// Keys at later positions are not seen either.
    pub causal: bool,
}

/// How rotary pairs are laid out in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Pairs `(i, i + rd/2)`.
    Neox,
    /// Pairs `(2i, 2i + 1)`.
    Adjacent,
}

/// Rotary embedding: pair `i` turns by `position * inv_freq[i]`.
#[derive(Clone, Copy, Debug)]
pub struct RopeArgs<'a> {
    /// Pairing.
    pub style: RopeStyle,
    /// \[rd/2\] inverse frequencies; `2 * len` leading dims of a head turn, the rest pass.
    pub inv_freq: &'a [f32],
}

/// Per-head RMS norm of queries and keys, before the rotation.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a> {
    /// \[D\].
    pub q_gamma: &'a Buffer,
    /// \[D\].
    pub k_gamma: &'a Buffer,
    /// Added to the mean square.
    pub eps: f32,
}

impl<'a> HeadNorm<'a> {
    /// That of queries alone.
    pub(crate) fn of_queries(self) -> Norm<'a> {
        Norm {
            gamma: self.q_gamma,
            eps: self.eps,
        }
    }

    /// That of keys alone.
    pub(crate) fn of_keys(self) -> Norm<'a> {
        Norm {
            gamma: self.k_gamma,
            eps: self.eps,
        }
    }
}

/// Keys and values of one layer for all sequences: pages of [`PAGE_TOKENS`] slots.
/// `k`: \[page, Hkv, D, PAGE_TOKENS\] (transposed), `v`: \[page, Hkv, PAGE_TOKENS, D\]; where they are quantised, with what
/// a row is made of in place of D.
#[derive(Debug)]
pub struct KvLayer {
    /// Keys, at their positions.
    pub k: Buffer,
    /// Values.
    pub v: Buffer,
}

/// Attention of one layer over a batch: norm and rotate q and k, store k and v, attend along parents.
#[derive(Debug)]
pub struct AttentionArgs<'a> {
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Head dim D.
    pub head_dim: usize,
    /// \[N, H, D\], or \[N, H, 2D\] with a gate after each head's query.
    pub q: &'a mut Buffer,
    /// Whether `q` carries gates; the output is then multiplied by their sigmoid.
    pub gated: bool,
    /// \[N, Hkv, D\].
    pub k: &'a mut Buffer,
    /// \[N, Hkv, D\].
    pub v: &'a Buffer,
    /// Per-head norm, where the model has one.
    pub head_norm: Option<HeadNorm<'a>>,
    /// Rotation.
    pub rope: RopeArgs<'a>,
    /// Cache of this layer.
    pub cache: &'a mut KvLayer,
    /// The batch.
    pub segments: &'a [Segment<'a>],
    /// What a node sees of its segment.
    pub visibility: Visibility,
    /// What it sees of all that; `None`: everything.
    pub window: Option<Window>,
    /// \[N, H, D\].
    pub out: &'a mut Buffer,
}

/// Keys and values of rows that have no queries: norm and rotate k, store k and v. Row `first_row + i` of a segment goes
/// to slot `committed_len + i`; parents count the rows and are not looked at.
#[derive(Debug)]
pub struct KvAppendArgs<'a> {
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Head dim D.
    pub head_dim: usize,
    /// \[N, Hkv, D\].
    pub k: &'a mut Buffer,
    /// \[N, Hkv, D\].
    pub v: &'a Buffer,
    /// Norm of each key head, gamma \[D\], where the model has one.
    pub k_norm: Option<Norm<'a>>,
    /// Rotation.
    pub rope: RopeArgs<'a>,
    /// Cache of this layer.
    pub cache: &'a mut KvLayer,
    /// The rows.
    pub segments: &'a [Segment<'a>],
}

/// A layer of a [`KvCommitArgs`].
#[derive(Debug)]
pub struct KvCommitLayer<'a> {
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Cache of the layer.
    pub cache: &'a mut KvLayer,
}

/// Moves KV rows of an accepted path to the slots right after the committed ones, in all layers.
#[derive(Debug)]
pub struct KvCommitArgs<'a> {
    /// Head dim.
    pub head_dim: usize,
    /// Layers, which keep keys and values in the same way.
    pub layers: Vec<KvCommitLayer<'a>>,
    /// Pages of the sequence.
    pub pages: &'a [u32],
    /// Committed tokens before.
    pub committed_len: usize,
    /// Accepted nodes in path order.
    pub path: &'a [usize],
}

/// Copies rows into columns of wider rows: `out[i, first_column + j] = x[i, j]`.
#[derive(Debug)]
pub struct StoreColumnsArgs<'a> {
    /// N.
    pub num_rows: usize,
    /// \[N, row_len\].
    pub x: &'a Buffer,
    /// Values of a row of `x`.
    pub row_len: usize,
    /// \[N, out_len\].
    pub out: &'a mut Buffer,
    /// Values of a row of `out`.
    pub out_len: usize,
    /// Where the columns begin.
    pub first_column: usize,
}

/// A forward pass over a batch, as far as a device can know it before its operations are called.
#[derive(Debug)]
pub struct Step<'a> {
    /// Ids that are embedded.
    pub tokens: &'a [u32],
    /// The segments that all operations of the step get.
    pub segments: &'a [Segment<'a>],
    /// What they say of visibility.
    pub visibility: Visibility,
    /// What else decides which operations are called, and with which buffers.
    pub variant: &'a dyn fmt::Debug,
}

/// The likeliest ids of rows of logits, the likeliest first, equal logits in order of id.
#[derive(Debug)]
pub struct TopKArgs<'a> {
    /// N.
    pub num_rows: usize,
    /// V.
    pub vocab_size: usize,
    /// K, at most V.
    pub k: usize,
    /// \[N, V\].
    pub logits: &'a Buffer,
    /// \[N, K\].
    pub ids: &'a mut [u32],
    /// \[N, K\]: logit less the logarithm of the sum over the whole row of e^logit. `None`: nobody wants to know.
    pub log_probs: Option<&'a mut [f32]>,
    /// \[N, K\]: their logits; of what is no number minus infinity. `None`: as above.
    pub values: Option<&'a mut [f32]>,
}

/// Sizes of a gated DeltaNet layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Hk.
    pub num_k_heads: usize,
    /// Hv; value head p reads key head `p mod Hk`.
    pub num_v_heads: usize,
    /// dk.
    pub k_dim: usize,
    /// dv.
    pub v_dim: usize,
    /// Convolution taps.
    pub conv_taps: usize,
}

impl DeltaNetShape {
    /// Channels of the convolution: `2 Hk dk + Hv dv`.
    #[must_use]
    pub fn conv_channels(&self) -> usize {
        2 * self.num_k_heads * self.k_dim + self.num_v_heads * self.v_dim
    }

    /// f32 values of one sequence's recurrent state: Hv dk dv.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.num_v_heads * self.k_dim * self.v_dim
    }

    /// f32 values of one sequence's convolution state: (taps - 1) x channels, oldest first.
    #[must_use]
    pub fn conv_len(&self) -> usize {
        (self.conv_taps - 1) * self.conv_channels()
    }
}

/// Recurrent and convolution states of one layer for all sequences, by `state_index`.
#[derive(Debug)]
pub struct DeltaNetState {
    /// \[sequences, Hv, dk, dv\].
    pub recurrent: Buffer,
    /// \[sequences, taps - 1, channels\].
    pub conv: Buffer,
}

/// Convolution, gated delta rule and gated norm of one layer over a batch.
#[derive(Debug)]
pub struct DeltaNetArgs<'a> {
    /// Sizes.
    pub shape: DeltaNetShape,
    /// \[N, channels\], before the convolution.
    pub qkv: &'a Buffer,
    /// \[N, Hv dv\].
    pub z: &'a Buffer,
    /// \[N, Hv\].
    pub alpha: &'a Buffer,
    /// \[N, Hv\].
    pub beta: &'a Buffer,
    /// \[channels, taps\], last tap multiplies the current row.
    pub conv_weight: &'a Buffer,
    /// \[Hv\], already `-exp(A_log)`.
    pub a: &'a Buffer,
    /// \[Hv\].
    pub dt_bias: &'a Buffer,
    /// Output norm, gamma \[dv\].
    pub norm: Norm<'a>,
    /// States of the layer.
    pub state: &'a mut DeltaNetState,
    /// The batch.
    pub segments: &'a [Segment<'a>],
    /// \[N, Hv dv\].
    pub out: &'a mut Buffer,
}

/// A layer of a [`DeltaNetCommitArgs`].
#[derive(Debug)]
pub struct DeltaNetCommitLayer<'a> {
    /// \[N, channels\] of the forward pass.
    pub qkv: &'a Buffer,
    /// \[N, Hv\].
    pub alpha: &'a Buffer,
    /// \[N, Hv\].
    pub beta: &'a Buffer,
    /// \[channels, taps\].
    pub conv_weight: &'a Buffer,
    /// \[Hv\].
    pub a: &'a Buffer,
    /// \[Hv\].
    pub dt_bias: &'a Buffer,
    /// States of the layer.
    pub state: &'a mut DeltaNetState,
}

/// Moves one sequence's states along an accepted path in all layers, with the operation order of the forward pass.
#[derive(Debug)]
pub struct DeltaNetCommitArgs<'a> {
    /// Sizes.
    pub shape: DeltaNetShape,
    /// Layers.
    pub layers: Vec<DeltaNetCommitLayer<'a>>,
    /// Which sequence.
    pub state_index: usize,
    /// Rows of the accepted path, in order.
    pub rows: &'a [usize],
}

/// A device: memory and fused operations. One thread drives it.
pub trait Device: Send + Sync {
    /// Name and instruction set or chip, for people.
    fn name(&self) -> String;

    /// The number by which the libraries of its maker know the device, where it has one.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// What of the device decides the bits of a result, beside this program: states of another one are not its own.
    fn arithmetic(&self) -> String {
        self.name()
    }

    /// Bytes a second that this device reads from memory, measured now (takes about a second).
    fn read_bandwidth(&self) -> f64;

    /// What tensor channels need of it; `None` where its memory is the host's.
    fn channel_device(&self) -> Option<&dyn ChannelDevice> {
        None
    }

    /// Whether an operation takes long the first time that it meets a shape, because its kernel is compiled then.
    fn compiles_kernels(&self) -> bool {
        false
    }

    /// Chooses how steps are launched that were not launched before.
    fn set_decode_path(&self, path: DecodePath) {
        let _ = path;
    }

    /// Bytes that it can still give, where that is known.
    fn free_memory(&self) -> Option<u64>;

    /// Gives no more than so many bytes together from now on, for a plan that must fit a smaller device. The CPU gives
    /// what it is asked for, and only says that it has no more.
    fn limit_memory(&self, bytes: u64);

    /// Gives back what operations keep for themselves from call to call, and forgets recorded steps. Buffers and matrices stay.
    fn release_working_memory(&self) {}

    /// Takes as much again as was released, so that no operation has to ask for it later.
    ///
    /// # Errors
    /// No memory.
    fn restore_working_memory(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Brings a matrix into the device's layout.
    ///
    /// # Errors
    /// Wrong byte count, row length or no memory.
    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Matrix, DeviceError>;

    /// `len` zeros.
    ///
    /// # Errors
    /// No memory.
    fn zeros(&self, len: usize) -> Result<Buffer, DeviceError>;

    /// `len` zeros for keys or values, kept as `kv_type`; whole heads of them. Only attention and the copies to and from the
    /// host take them.
    ///
    /// # Errors
    /// No memory.
    fn kv_zeros(&self, len: usize, kv_type: KvType) -> Result<Buffer, DeviceError>;

    /// Copies host values to `buffer[offset..]`, of f32 or f16.
    fn write(&self, buffer: &mut Buffer, offset: usize, values: &[f32]);

    /// Copies `buffer[offset..]`, of f32 or f16, to host values.
    fn read(&self, buffer: &Buffer, offset: usize, values: &mut [f32]);

    /// Waits until everything asked is done.
    ///
    /// # Errors
    /// What went wrong in an operation since the device was made; a device with an error is of no use any more.
    fn finish(&self) -> Result<(), DeviceError>;

    /// `out[i] = x[rows[i]]`, rows of `row_len` values.
    fn gather_rows(&self, x: &Buffer, row_len: usize, rows: &[usize], out: &mut Buffer);

    /// `out[i] = table[ids[i]]`.
    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Buffer);

    /// Calls `work`, which calls operations of this device: always the same, with the same buffers, for steps with the same
    /// variant and shapes. A device may record them, for which it may call `work` more than once, and, the next time, repeat what it
    /// recorded instead of calling it.
    fn step(&self, step: &Step<'_>, work: &mut dyn FnMut()) {
        let _ = step;
        work();
    }

    /// See [`StoreColumnsArgs`].
    fn store_columns(&self, args: StoreColumnsArgs<'_>);

    /// See [`LinearArgs`].
    fn linear(&self, args: LinearArgs<'_, '_>);

    /// See [`GatedLinearArgs`].
    fn gated_linear(&self, args: GatedLinearArgs<'_>);

    /// See [`AttentionArgs`].
    fn attention(&self, args: AttentionArgs<'_>);

    /// See [`KvCommitArgs`].
    fn kv_commit(&self, args: KvCommitArgs<'_>);

    /// See [`KvAppendArgs`].
    fn kv_append(&self, args: KvAppendArgs<'_>);

    /// See [`TopKArgs`].
    fn top_k(&self, args: TopKArgs<'_>);

    /// See [`DeltaNetArgs`].
    fn delta_net(&self, args: DeltaNetArgs<'_>);

    /// See [`DeltaNetCommitArgs`].
    fn delta_net_commit(&self, args: DeltaNetCommitArgs<'_>);

    /// See [`SparseAttentionArgs`].
    fn sparse_attention(&self, args: SparseAttentionArgs<'_>);

    /// See [`TailProductsArgs`].
    fn tail_products(&self, args: TailProductsArgs<'_>);

    /// See [`TailWeightsArgs`].
    fn tail_weights(&self, args: TailWeightsArgs<'_>);
}
