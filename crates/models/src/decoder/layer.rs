//! One layer: what mixes tokens, and the feed-forward part.

use kernels::{Buffer, Device, FeedForwardArgs, Matrix, Norm};

use crate::attention::Attention;
use crate::decoder::scratch::Scratch;
use crate::delta_net::DeltaNet;
use crate::error::ModelError;
use crate::hparams::ModelConfig;
use crate::weights::WeightLoader;

/// What mixes tokens in a layer.
#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(Attention),
    DeltaNet(DeltaNet),
}

/// One decoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) mixer_norm: Buffer,
    pub(crate) mixer: Mixer,
    ffn_norm: Buffer,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Layer {
    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        config: &ModelConfig,
        layer: usize,
        mixer: Mixer,
        ffn_norm: &str,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (e, f) = (config.hidden_size, config.feed_forward_size);
        Ok(Self {
            mixer_norm: weights.buffer(&name("attn_norm"), &[e])?,
            mixer,
            ffn_norm: weights.buffer(&name(ffn_norm), &[e])?,
            gate: weights.matrix(&name("ffn_gate"), f, e)?,
            up: weights.matrix(&name("ffn_up"), f, e)?,
            down: weights.matrix(&name("ffn_down"), e, f)?,
        })
    }
}

/// `h += down(silu(gate norm(h)) * up norm(h))`.
pub(crate) fn feed_forward(
    device: &dyn Device,
    layer: &Layer,
    eps: f32,
    num_rows: usize,
    s: &mut Scratch,
) {
    device.feed_forward(FeedForwardArgs {
        num_rows,
        h: &mut s.h,
        norm: Norm {
            gamma: &layer.ffn_norm,
            eps,
        },
        gate: &layer.gate,
        up: &layer.up,
        down: &layer.down,
        hidden: &mut s.ffn,
    });
}
