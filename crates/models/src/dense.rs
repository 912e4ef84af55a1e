//! Qwen3 and Llama: the same decoder, with and without head norms, and with other rotary pairs.

use std::ops::Range;

use kernels::RopeStyle;

use crate::attention::{Attention, AttentionStyle, Rope};
use crate::decoder::{Layer, Mixer};
use crate::error::ModelError;
use crate::hparams::{Architecture, LayerKind, ModelConfig};
use crate::weights::WeightLoader;

/// Tensor of rotary divisors; some converters write it where it has no use.
pub(crate) const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// The layers of a stage, and their rotation.
pub(crate) fn load(
    weights: &mut WeightLoader<'_>,
    config: &ModelConfig,
    stage: Range<usize>,
) -> Result<(Vec<Layer>, Rope), ModelError> {
    let llama = config.architecture == Architecture::Llama;
    let style = AttentionStyle {
        gated: false,
        head_norm: !llama,
    };
    let mut layers = Vec::with_capacity(stage.len());
    for (layer, kind) in stage.clone().zip(&config.layers[stage]) {
        // Dense architectures have no other kind of layer.
        if let LayerKind::Attention { num_kv_heads } = *kind {
            let mixer = Mixer::Attention(Attention::load(
                weights,
                config,
                layer,
                num_kv_heads,
                style,
            )?);
            layers.push(Layer::load(weights, config, layer, mixer, "ffn_norm")?);
        }
    }
    let divisors = if llama && weights.has(ROPE_DIVISORS) {
        Some(weights.values(ROPE_DIVISORS, &[config.rope_dims / 2])?)
    } else {
        None
    };
    let rope = Rope {
        // Converters permute Llama's query and key rows so that pairs are adjacent.
        style: if llama {
            RopeStyle::Adjacent
        } else {
            RopeStyle::Neox
        },
        inv_freq: config.inverse_frequencies(divisors.as_deref()),
    };
    Ok((layers, rope))
}
