//! Activations of a draft.

use kernels::{Buffer, Device, DeviceError};

use crate::dflash::config::DraftConfig;
use crate::memory::HEAD_ROWS;

/// Activations of at most N rows, of context or of draft blocks.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// \[context rows, taps E\].
    pub features: Buffer,
    /// Projected features, or the residual stream \[N, E\].
    pub h: Buffer,
    /// \[N, H, D\].
    pub q: Buffer,
    /// \[N, Hkv, D\].
    pub k: Buffer,
    /// \[N, Hkv, D\].
    pub v: Buffer,
    /// \[N, H, D\].
    pub mixed: Buffer,
    /// \[N, F\].
    pub ffn: Buffer,
    /// \[HEAD_ROWS, E\].
    pub head_rows: Buffer,
    /// \[HEAD_ROWS, V\].
    pub logits: Buffer,
}

/// Rows that a draft computes at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub context: usize,
    pub blocks: usize,
}

impl Rows {
    fn most(self) -> usize {
        self.context.max(self.blocks)
    }

    /// f32 values of all activations; saturates.
    pub(crate) fn scratch_len(self, config: &DraftConfig) -> u64 {
        let (q, kv) = (config.num_heads, 2 * config.num_kv_heads);
        let row = config.hidden_size + (2 * q + kv) * config.head_dim + config.feed_forward_size;
        let head = HEAD_ROWS * (config.hidden_size + config.vocab_size);
        (self.most() as u64)
            .saturating_mul(row as u64)
            .saturating_add((self.context as u64).saturating_mul(config.feature_len() as u64))
            .saturating_add(head as u64)
    }
}

impl Scratch {
    pub(crate) fn new(
        device: &dyn Device,
        config: &DraftConfig,
        rows: Rows,
    ) -> Result<Self, DeviceError> {
        let n = rows.most();
        let (q, kv) = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        );
        Ok(Self {
            features: device.zeros(rows.context * config.feature_len())?,
            h: device.zeros(n * config.hidden_size)?,
            q: device.zeros(n * q)?,
            k: device.zeros(n * kv)?,
            v: device.zeros(n * kv)?,
            mixed: device.zeros(n * q)?,
            ffn: device.zeros(n * config.feed_forward_size)?,
            head_rows: device.zeros(HEAD_ROWS * config.hidden_size)?,
            logits: device.zeros(HEAD_ROWS * config.vocab_size)?,
        })
    }
}
