//! Attention, and its keys and values.

use crate::buffer::Buffer;
use crate::device::batch::{Segment, Visibility};
use crate::device::linear::Norm;

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

/// Keys and values of one layer for all sequences: pages of [`PAGE_TOKENS`](crate::PAGE_TOKENS) slots.
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
