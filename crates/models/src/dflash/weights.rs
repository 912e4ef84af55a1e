//! Weights of a draft, and those that are its target's.

use kernels::{Buffer, Matrix};

use crate::dflash::attention::DraftAttention;
use crate::dflash::config::DraftConfig;
use crate::dflash::names::Part;
use crate::error::ModelError;
use crate::weights::WeightLoader;

/// Embedding and head, both the target's.
#[derive(Debug)]
pub(crate) struct TargetEnds {
    pub embedding: Matrix,
    /// `None`: the embedding is the head too.
    pub head: Option<Matrix>,
}

impl TargetEnds {
    /// Tensors that are taken from the target's file.
    pub(crate) const NAMES: [&str; 2] = ["token_embd.weight", "output.weight"];

    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        config: &DraftConfig,
    ) -> Result<Self, ModelError> {
        let (v, e) = (config.vocab_size, config.hidden_size);
        let [embedding, head] = Self::NAMES;
        Ok(Self {
            embedding: weights.matrix(embedding, v, e)?,
            head: if weights.has(head) {
                Some(weights.matrix(head, v, e)?)
            } else {
                None
            },
        })
    }
}

/// One draft layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub input_norm: Buffer,
    pub q: Matrix,
    pub k: Matrix,
    pub v: Matrix,
    pub output: Matrix,
    pub q_norm: Buffer,
    pub k_norm: Buffer,
    pub ffn_norm: Buffer,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    pub attention: DraftAttention,
}

impl Layer {
    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        config: &DraftConfig,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let name = |part| config.dialect.layer(layer, part);
        let (e, f, d) = (
            config.hidden_size,
            config.feed_forward_size,
            config.head_dim,
        );
        let (q, kv) = (config.num_heads * d, config.num_kv_heads * d);
        Ok(Self {
            input_norm: weights.buffer(&name(Part::InputNorm), &[e])?,
            q: weights.matrix(&name(Part::Q), q, e)?,
            k: weights.matrix(&name(Part::K), kv, e)?,
            v: weights.matrix(&name(Part::V), kv, e)?,
            output: weights.matrix(&name(Part::Output), e, q)?,
            q_norm: weights.buffer(&name(Part::QNorm), &[d])?,
            k_norm: weights.buffer(&name(Part::KNorm), &[d])?,
            ffn_norm: weights.buffer(&name(Part::FfnNorm), &[e])?,
            gate: weights.matrix(&name(Part::Gate), f, e)?,
            up: weights.matrix(&name(Part::Up), f, e)?,
            down: weights.matrix(&name(Part::Down), e, f)?,
            attention: config.attention[layer],
        })
    }
}
