//! What the operations that score a prompt take: S tokens of one sequence, of which the last T ask.

use crate::buffer::Buffer;
use crate::device::{AttentionArgs, HeadNorm, PAGE_TOKENS, RopeArgs, Segment, Visibility};

/// Keys of a key block, and rows of a query block: what sparse attention takes or leaves.
pub const KEY_BLOCK_TOKENS: usize = 128;
/// First key blocks, which all rows see.
pub(crate) const SINK_BLOCKS: usize = 2;
/// Key blocks that end with a row's own, and that it sees.
pub(crate) const NEAR_BLOCKS: usize = 4;
/// Last query blocks of a prompt, which see everything.
pub(crate) const DENSE_BLOCKS: usize = 2;

/// Attention of a run of a prompt's rows that leaves out key blocks of little weight.
///
/// Each row weighs the key blocks up to its own by the softmax of its products with their mean keys. A head's query block
/// takes those key blocks whose weight, over its rows, is at least `threshold` times the largest; and the first ones, its
/// nearest, and all if it is one of the last. After FlashPrefill (arXiv 2603.06199), but for the softmax: it makes weights
/// of different key blocks comparable. A device may take more, where it has no kernel for these heads.
#[derive(Debug)]
pub struct SparseAttentionArgs<'a> {
    /// As for dense attention over one segment, a chain that begins at a multiple of [`KEY_BLOCK_TOKENS`]; without gates
    /// and window.
    pub attention: AttentionArgs<'a>,
    /// S, of the whole prompt.
    pub num_tokens: usize,
    /// 0 takes everything and needs no means, 1 takes next to nothing.
    pub threshold: f32,
    /// Mean keys as if they were keys of tokens, of so many pages as [`mean_pages`] says and of the cache's type. Those of
    /// earlier rows are there, those of these rows are put there.
    pub means: &'a mut Buffer,
}

/// Pages that hold the mean keys of a prompt.
#[must_use]
pub const fn mean_pages(num_tokens: usize) -> usize {
    num_tokens.div_ceil(KEY_BLOCK_TOKENS).div_ceil(PAGE_TOKENS)
}

impl<'a> SparseAttentionArgs<'a> {
    /// The one segment.
    ///
    /// # Panics
    /// Where the operation is not made for such arguments.
    pub(crate) fn segment(&self) -> &'a Segment<'a> {
        let args = &self.attention;
        let [segment] = args.segments else {
            panic!("sparse_attention: {} segments", args.segments.len());
        };
        let rows = segment.parents.len();
        assert!(
            !args.gated && args.window.is_none() && args.visibility == Visibility::Ancestors,
            "sparse_attention: gates, a window or a draft block"
        );
        assert!(
            (-1..).zip(segment.parents).all(|(i, &parent)| i == parent) && segment.first_row == 0,
            "sparse_attention: rows that are no chain from the first on"
        );
        assert!(
            segment.committed_len.is_multiple_of(KEY_BLOCK_TOKENS)
                && segment.committed_len + rows <= self.num_tokens,
            "sparse_attention: {rows} rows from {} on of a prompt of {}",
            segment.committed_len,
            self.num_tokens
        );
        segment
    }
}

/// Whether a query block sees a key block, whatever its weight.
pub(crate) const fn is_forced(num_tokens: usize, query_block: usize, key_block: usize) -> bool {
    key_block < SINK_BLOCKS
        || query_block - key_block < NEAR_BLOCKS
        || query_block + DENSE_BLOCKS >= num_tokens.div_ceil(KEY_BLOCK_TOKENS)
}

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
