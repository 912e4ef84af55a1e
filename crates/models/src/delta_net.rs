//! Gated DeltaNet layer: projections, convolution and delta rule, and the output projection.

use kernels::{
    Buffer, DeltaLayerArgs, DeltaNetCommitLayer, DeltaNetShape, DeltaNetState, Device, DeviceError,
    Matrix, Norm, Segment,
};

use crate::decoder::Scratch;
use crate::error::ModelError;
use crate::hparams::ModelConfig;
use crate::weights::WeightLoader;

/// Weights of one gated DeltaNet layer.
#[derive(Debug)]
pub(crate) struct DeltaNet {
    shape: DeltaNetShape,
    qkv: Matrix,
    z: Matrix,
    alpha: Matrix,
    beta: Matrix,
    output: Matrix,
    /// \[channels, taps\].
    conv: Buffer,
    /// \[Hv\].
    a: Buffer,
    /// \[Hv\].
    dt_bias: Buffer,
    /// \[dv\].
    norm: Buffer,
}

/// Inputs of the recurrence for the rows of a batch, from which a commit replays the accepted path.
#[derive(Debug, Default)]
pub(crate) struct RecurrentRows {
    /// \[N, channels\].
    qkv: Buffer,
    /// \[N, Hv\].
    alpha: Buffer,
    /// \[N, Hv\].
    beta: Buffer,
}

impl RecurrentRows {
    pub(crate) fn new(
        device: &dyn Device,
        shape: DeltaNetShape,
        rows: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            qkv: device.zeros(rows * shape.conv_channels())?,
            alpha: device.zeros(rows * shape.num_v_heads)?,
            beta: device.zeros(rows * shape.num_v_heads)?,
        })
    }
}

impl DeltaNet {
    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        config: &ModelConfig,
        layer: usize,
        shape: DeltaNetShape,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let e = config.hidden_size;
        let heads = shape.num_v_heads;
        let inner = heads * shape.v_dim;
        let channels = shape.conv_channels();
        Ok(Self {
            shape,
            qkv: weights.matrix(&name("attn_qkv.weight"), channels, e)?,
            z: weights.matrix(&name("attn_gate.weight"), inner, e)?,
            alpha: weights.matrix(&name("ssm_alpha.weight"), heads, e)?,
            beta: weights.matrix(&name("ssm_beta.weight"), heads, e)?,
            output: weights.matrix(&name("ssm_out.weight"), e, inner)?,
            conv: weights.buffer(&name("ssm_conv1d.weight"), &[shape.conv_taps, channels])?,
            a: weights.buffer(&name("ssm_a"), &[heads])?,
            dt_bias: weights.buffer(&name("ssm_dt.bias"), &[heads])?,
            norm: weights.buffer(&name("ssm_norm.weight"), &[shape.v_dim])?,
        })
    }

    /// `h += Wout delta_net(norm(h))`; the inputs of the recurrence go to `rows`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        config: &ModelConfig,
        norm: Norm<'_>,
        rows: &mut RecurrentRows,
        state: &mut DeltaNetState,
        segments: &[Segment<'_>],
        s: &mut Scratch,
    ) {
        device.delta_layer(DeltaLayerArgs {
            shape: self.shape,
            h: &mut s.h,
            norm,
            weights: [&self.qkv, &self.z, &self.alpha, &self.beta],
            inputs: [&mut rows.qkv, &mut s.z, &mut rows.alpha, &mut rows.beta],
            conv_weight: &self.conv,
            a: &self.a,
            dt_bias: &self.dt_bias,
            head_norm: Norm {
                gamma: &self.norm,
                eps: config.norm_eps,
            },
            state,
            segments,
            answers: &mut s.mixed,
            output: &self.output,
        });
    }

    /// What a commit needs of the layer, after the batch that filled `rows`.
    pub(crate) fn commit<'a>(
        &'a self,
        rows: &'a RecurrentRows,
        state: &'a mut DeltaNetState,
    ) -> DeltaNetCommitLayer<'a> {
        DeltaNetCommitLayer {
            qkv: &rows.qkv,
            alpha: &rows.alpha,
            beta: &rows.beta,
            conv_weight: &self.conv,
            a: &self.a,
            dt_bias: &self.dt_bias,
            state,
        }
    }

    /// Sizes.
    pub(crate) fn shape(&self) -> DeltaNetShape {
        self.shape
    }
}
