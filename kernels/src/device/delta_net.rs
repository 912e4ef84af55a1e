//! Gated DeltaNet layers, and their states.

use crate::buffer::Buffer;
use crate::device::batch::Segment;
use crate::device::linear::{LinearArgs, Norm, Projection};
use crate::device::matrix::Matrix;

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

/// Convolution, gated delta rule, gated norm and output projection of one layer over a batch: `out += W (norm(answers) silu(z))`, with
/// a norm of each head.
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
    /// \[N, Hv dv\], room for answers on their way; what it holds afterwards is the device's own business.
    pub answers: &'a mut Buffer,
    /// W: \[E, Hv dv\].
    pub output: &'a Matrix,
    /// \[N, E\].
    pub out: &'a mut Buffer,
}

impl DeltaNetArgs<'_> {
    /// N.
    pub(crate) fn num_rows(&self) -> usize {
        let ends = self.segments.iter().map(|s| s.first_row + s.parents.len());
        ends.max().unwrap_or(0)
    }

    /// Has the output projection computed, of answers that are normed and gated.
    pub(crate) fn project<R>(self, compute: impl FnOnce(LinearArgs<'_, '_>) -> R) -> R {
        compute(LinearArgs {
            num_rows: self.num_rows(),
            x: self.answers,
            norm: None,
            projections: &mut [Projection {
                weight: self.output,
                out: self.out,
            }],
            accumulate: true,
        })
    }
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
