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
        num_rows(self.segments)
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

/// A whole layer over a batch: `h += W (norm(answers) silu(z))`, where the recurrence's inputs are products of rows of `h` that are normed. What it
/// leaves is what a [`LinearArgs`] for the inputs and a [`DeltaNetArgs`] leave, but that inputs of chains which states move along with may be left out.
#[derive(Debug)]
pub struct DeltaLayerArgs<'a> {
    /// Sizes.
    pub shape: DeltaNetShape,
    /// \[N, E\], the residual stream.
    pub h: &'a mut Buffer,
    /// Of the rows that inputs are made of.
    pub norm: Norm<'a>,
    /// \[channels, E\], \[Hv dv, E\], \[Hv, E\], \[Hv, E\]: what makes the inputs, in this order: qkv, z, alpha, beta.
    pub weights: [&'a Matrix; 4],
    /// The inputs, in the same order: \[N, channels\] before the convolution, \[N, Hv dv\], \[N, Hv\], \[N, Hv\].
    pub inputs: [&'a mut Buffer; 4],
    /// \[channels, taps\], last tap multiplies the current row.
    pub conv_weight: &'a Buffer,
    /// \[Hv\], already `-exp(A_log)`.
    pub a: &'a Buffer,
    /// \[Hv\].
    pub dt_bias: &'a Buffer,
    /// Output norm, gamma \[dv\].
    pub head_norm: Norm<'a>,
    /// States of the layer.
    pub state: &'a mut DeltaNetState,
    /// The batch.
    pub segments: &'a [Segment<'a>],
    /// \[N, Hv dv\], room for answers on their way; what it holds afterwards is the device's own business.
    pub answers: &'a mut Buffer,
    /// W: \[E, Hv dv\].
    pub output: &'a Matrix,
}

impl DeltaLayerArgs<'_> {
    /// Has its inputs computed.
    pub(crate) fn make_inputs<R>(&mut self, compute: impl FnOnce(LinearArgs<'_, '_>) -> R) -> R {
        let num_rows = num_rows(self.segments);
        let [of_qkv, of_z, of_alpha, of_beta] = self.weights;
        let [qkv, z, alpha, beta] = &mut self.inputs;
        compute(LinearArgs {
            num_rows,
            x: self.h,
            norm: Some(self.norm),
            projections: &mut [
                Projection {
                    weight: of_qkv,
                    out: qkv,
                },
                Projection {
                    weight: of_z,
                    out: z,
                },
                Projection {
                    weight: of_alpha,
                    out: alpha,
                },
                Projection {
                    weight: of_beta,
                    out: beta,
                },
            ],
            accumulate: false,
        })
    }

    /// What follows its inputs.
    pub(crate) fn recurrence(&mut self) -> DeltaNetArgs<'_> {
        let [qkv, z, alpha, beta] = &self.inputs;
        DeltaNetArgs {
            shape: self.shape,
            qkv,
            z,
            alpha,
            beta,
            conv_weight: self.conv_weight,
            a: self.a,
            dt_bias: self.dt_bias,
            norm: self.head_norm,
            state: self.state,
            segments: self.segments,
            answers: self.answers,
            output: self.output,
            out: self.h,
        }
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

fn num_rows(segments: &[Segment<'_>]) -> usize {
    let ends = segments.iter().map(|s| s.first_row + s.parents.len());
    ends.max().unwrap_or(0)
}
