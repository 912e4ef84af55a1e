//! Products of rows with matrices.

use crate::buffer::Buffer;
use crate::device::matrix::Matrix;

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

/// `h += Wd (silu(Wg norm(h)) * (Wu norm(h)))`.
#[derive(Debug)]
pub struct FeedForwardArgs<'a> {
    /// Rows in the batch.
    pub num_rows: usize,
    /// \[N, E\], the residual stream.
    pub h: &'a mut Buffer,
    /// Of the rows that gate and up read.
    pub norm: Norm<'a>,
    /// \[F, E\].
    pub gate: &'a Matrix,
    /// \[F, E\].
    pub up: &'a Matrix,
    /// \[E, F\].
    pub down: &'a Matrix,
    /// \[N, F\], room for what is between; what it holds afterwards is the device's own business.
    pub hidden: &'a mut Buffer,
}

impl FeedForwardArgs<'_> {
    /// Its first product.
    pub(crate) fn gated(&mut self) -> GatedLinearArgs<'_> {
        GatedLinearArgs {
            num_rows: self.num_rows,
            x: self.h,
            norm: Some(self.norm),
            gate: self.gate,
            up: self.up,
            out: self.hidden,
        }
    }

    /// Has its second product computed.
    pub(crate) fn project<R>(self, compute: impl FnOnce(LinearArgs<'_, '_>) -> R) -> R {
        compute(LinearArgs {
            num_rows: self.num_rows,
            x: self.hidden,
            norm: None,
            projections: &mut [Projection {
                weight: self.down,
                out: self.h,
            }],
            accumulate: true,
        })
    }
}
