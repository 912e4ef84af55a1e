//! What is kept of one prompt while it is scored: rows between layers, and keys and values of one layer.

use kernels::{Buffer, Device, DeviceError, KvLayer, PAGE_TOKENS, mean_pages};

use crate::hparams::{LayerKind, ModelConfig};
use crate::scorer::{PASS_ROWS, ScorerOptions, TAIL_ROWS};

/// Lengths of the buffers of a [`Prompt`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub tokens: usize,
    /// T.
    pub tail: usize,
    stream: usize,
    kv: usize,
    /// 0 where attention is dense.
    means: usize,
    tail_h: usize,
    tail_q: usize,
    products: usize,
}

impl Sizes {
    pub(super) fn new(config: &ModelConfig, options: &ScorerOptions, tokens: usize) -> Self {
        let tail = tokens.min(TAIL_ROWS);
        let kv_heads = |kind: &LayerKind| match *kind {
            LayerKind::Attention { num_kv_heads } => num_kv_heads,
            LayerKind::DeltaNet(_) => 0,
        };
        let kv_heads = config.layers.iter().map(kv_heads).max().unwrap_or(0);
        let page_len = PAGE_TOKENS * kv_heads * config.head_dim;
        Self {
            tokens,
            tail,
            stream: tokens * config.hidden_size,
            kv: tokens.div_ceil(PAGE_TOKENS) * page_len,
            means: options
                .sparsity
                .map_or(0, |_| mean_pages(tokens) * page_len),
            tail_h: tail * config.hidden_size,
            tail_q: tail * config.num_heads * config.head_dim,
            products: tail * config.num_heads * tokens,
        }
    }

    pub(super) fn bytes(&self, options: &ScorerOptions) -> u64 {
        let floats =
            self.stream + self.tail_h + self.tail_q + self.products + self.tail * self.tokens;
        let kept = 2 * self.kv + self.means;
        (floats * size_of::<f32>() + options.kv_type().bytes(kept)) as u64
    }
}

/// Buffers of a prompt.
#[derive(Debug)]
pub(super) struct Prompt {
    pub sizes: Sizes,
    /// Residual stream between layers, \[S, E\].
    pub stream: Buffer,
    /// Of the layer that is computed.
    pub kv: KvLayer,
    /// Mean keys of its key blocks.
    pub means: Buffer,
    pub pages: Vec<u32>,
    /// Parents of the rows of a pass.
    pub chain: Vec<i32>,
    /// Stream of the last rows, \[T, E\].
    pub tail_h: Buffer,
    /// Their queries, \[T, H, D\].
    pub tail_q: Buffer,
    /// Their products with all keys, \[T, H, S\].
    pub products: Buffer,
    /// The most that they attend to each token, \[T, S\].
    pub weights: Buffer,
}

impl Prompt {
    pub(super) fn new(
        device: &dyn Device,
        config: &ModelConfig,
        options: &ScorerOptions,
        tokens: usize,
    ) -> Result<Self, DeviceError> {
        let sizes = Sizes::new(config, options, tokens);
        let kv_type = options.kv_type();
        Ok(Self {
            stream: device.zeros(sizes.stream)?,
            kv: KvLayer {
                k: device.kv_zeros(sizes.kv, kv_type)?,
                v: device.kv_zeros(sizes.kv, kv_type)?,
            },
            means: device.kv_zeros(sizes.means, kv_type)?,
            pages: (0..tokens.div_ceil(PAGE_TOKENS) as u32).collect(),
            chain: (-1..).take(PASS_ROWS.min(tokens)).collect(),
            tail_h: device.zeros(sizes.tail_h)?,
            tail_q: device.zeros(sizes.tail_q)?,
            products: device.zeros(sizes.products)?,
            weights: device.zeros(sizes.tail * tokens)?,
            sizes,
        })
    }
}
