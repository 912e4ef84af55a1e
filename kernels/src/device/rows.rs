//! Rows copied, and rows of logits.

use crate::buffer::Buffer;

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
