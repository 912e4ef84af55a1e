//! Qwen3.5 / 3.6: gated DeltaNet layers with a gated full-attention layer now and then.

use std::ops::Range;

use kernels::RopeStyle;

use crate::attention::{Attention, AttentionStyle, Rope};
use crate::decoder::{Layer, Mixer};
use crate::delta_net::DeltaNet;
use crate::error::ModelError;
use crate::hparams::{LayerKind, ModelConfig};
use crate::weights::WeightLoader;

/// Differences of its attention.
const STYLE: AttentionStyle = AttentionStyle {
    gated: true,
    head_norm: true,
};

/// Trunk layers of a stage, and their rotation.
pub(crate) fn load(
    weights: &mut WeightLoader<'_>,
    config: &ModelConfig,
    stage: Range<usize>,
) -> Result<(Vec<Layer>, Rope), ModelError> {
    let mut layers = Vec::with_capacity(stage.len());
    for (layer, kind) in stage.clone().zip(&config.layers[stage]) {
        let mixer = match *kind {
            LayerKind::Attention { num_kv_heads } => Mixer::Attention(Attention::load(
                weights,
                config,
                layer,
                num_kv_heads,
                STYLE,
            )?),
            LayerKind::DeltaNet(shape) => {
                Mixer::DeltaNet(DeltaNet::load(weights, config, layer, shape)?)
            }
        };
        layers.push(Layer::load(
            weights,
            config,
            layer,
            mixer,
            "post_attention_norm",
        )?);
    }
    // In text the three position axes are equal, so that sectioned rotation is the plain one.
    let rope = Rope {
        style: RopeStyle::Neox,
        inv_freq: config.inverse_frequencies(None),
    };
    Ok((layers, rope))
}

/// Tensors of prediction blocks after the trunk, which a forward pass of the trunk has no use for.
pub(crate) fn ignores(config: &ModelConfig, tensor: &str) -> bool {
    let block = tensor
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let end = config.num_layers + config.num_prediction_blocks;
    block.is_some_and(|block| (config.num_layers..end).contains(&block))
}
