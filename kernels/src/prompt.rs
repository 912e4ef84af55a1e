//! What the operations that score a prompt take: S tokens of one sequence, of which the last T ask.

use crate::buffer::Buffer;
use crate::device::{HeadNorm, RopeArgs};

/// Products of the last queries with a run of keys: `out[t, h, first_key + j] = q[t, h] k[j, h Hkv / H] / sqrt(D)`, both
/// sides normed and rotated on the way.
#[derive(Debug)]
pub struct TailProductsArgs<'a> {
    /// H.
    pub num_heads: usize,
    /// Hkv.
    pub num_kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// S; token `i` stands at position `i`.
    pub num_tokens: usize,
    /// T; their rows are those of the last tokens.
    pub num_queries: usize,
    /// \[T, H, D\], as projected.
    pub q: &'a Buffer,
    /// Token that the first key is of.
    pub first_key: usize,
    /// N.
    pub num_keys: usize,
    /// \[N, Hkv, D\], as projected.
    pub k: &'a Buffer,
    /// Per-head norm, where the model has one.
    pub head_norm: Option<HeadNorm<'a>>,
    /// Rotation; without frequencies there is none.
    pub rope: RopeArgs<'a>,
    /// \[T, H, S\].
    pub out: &'a mut Buffer,
}

/// The most that the last queries attend to each token: `out[t, j]` becomes the largest of itself and, over the heads h, of the
/// softmax of `products[t, h]` at j. Query t sees tokens up to its own, `S - T + t`.
#[derive(Debug)]
pub struct TailWeightsArgs<'a> {
    /// H.
    pub num_heads: usize,
    /// S.
    pub num_tokens: usize,
    /// T.
    pub num_queries: usize,
    /// \[T, H, S\].
    pub products: &'a Buffer,
    /// \[T, S\].
    pub out: &'a mut Buffer,
}
