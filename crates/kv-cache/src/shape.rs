//! Sizes of a cache.

use kernels::{DeltaNetShape, KvTypes, PAGE_TOKENS};

/// What one layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// Keys and values of every token.
    Attention {
        /// Hkv.
        num_kv_heads: usize,
        /// D.
        head_dim: usize,
    },
    /// A recurrent state and a convolution state.
    DeltaNet(DeltaNetShape),
}

/// What all layers remember, in layer order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// One entry a layer.
    pub layers: Vec<LayerState>,
    /// How keys and values are kept.
    pub kv_type: KvTypes,
}

impl CacheShape {
    /// Bytes that a cache of this shape takes; saturates.
    #[must_use]
    pub fn bytes(&self, max_tokens: usize, max_sequences: usize) -> usize {
        let slots = pages_for(max_tokens).saturating_mul(PAGE_TOKENS);
        self.layers.iter().fold(0usize, |sum, layer| {
            sum.saturating_add(match layer {
                LayerState::Attention {
                    num_kv_heads,
                    head_dim,
                } => slots.saturating_mul(num_kv_heads * self.kv_type.bytes(*head_dim)),
                LayerState::DeltaNet(shape) => {
                    let values = shape.state_len() + shape.conv_len();
                    max_sequences.saturating_mul(values * size_of::<f32>())
                }
            })
        })
    }
}

/// Pages that hold `tokens` tokens.
pub(crate) fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}
