//! Activations.

use std::ops::Range;

use kernels::{Buffer, Device, DeviceError};

use crate::hparams::{LayerKind, ModelConfig};

/// Activations of a batch of at most `rows` rows, and logits of at most `head_rows`.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Residual stream \[N, E\].
    pub h: Buffer,
    /// \[N, H, D\], twice as wide with gates.
    pub q: Buffer,
    /// \[N, Hkv, D\].
    pub k: Buffer,
    /// \[N, Hkv, D\].
    pub v: Buffer,
    /// \[N, Hv dv\].
    pub z: Buffer,
    /// Output of the mixer before its last projection: \[N, H, D\] or \[N, Hv dv\].
    pub mixed: Buffer,
    /// \[N, F\].
    pub ffn: Buffer,
    /// Rows that logits are wanted for, \[head rows, E\].
    pub head_rows: Buffer,
    /// \[head rows, V\].
    pub logits: Buffer,
}

impl Scratch {
    pub(crate) fn new(
        device: &dyn Device,
        config: &ModelConfig,
        stage: &Range<usize>,
        rows: usize,
        head_rows: usize,
    ) -> Result<Self, DeviceError> {
        let heads = config.num_heads * config.head_dim;
        let (mut kv, mut inner) = (0, 0);
        for kind in &config.layers[stage.clone()] {
            match kind {
                LayerKind::Attention { num_kv_heads } => {
                    kv = kv.max(num_kv_heads * config.head_dim)
                }
                LayerKind::DeltaNet(shape) => inner = inner.max(shape.num_v_heads * shape.v_dim),
            }
        }
        Ok(Self {
            h: device.zeros(rows * config.hidden_size)?,
            q: device.zeros(rows * heads * 2)?,
            k: device.zeros(rows * kv)?,
            v: device.zeros(rows * kv)?,
            z: device.zeros(rows * inner)?,
            mixed: device.zeros(rows * heads.max(inner))?,
            ffn: device.zeros(rows * config.feed_forward_size)?,
            head_rows: device.zeros(head_rows * config.hidden_size)?,
            logits: device.zeros(head_rows * config.vocab_size)?,
        })
    }
}
