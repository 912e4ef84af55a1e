//! Softmax attention of a layer: projections, rotation, cache, and the output projection.

use kernels::{
    AttentionArgs, Buffer, Device, HeadNorm, KvLayer, LinearArgs, Matrix, Norm, Projection,
    RopeArgs, RopeStyle, Segment, Visibility,
};

use crate::decoder::Scratch;
use crate::error::ModelError;
use crate::hparams::ModelConfig;
use crate::weights::WeightLoader;

/// How an architecture's attention differs from plain grouped-query attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionStyle {
    /// `attn_q` carries a gate after each head's query.
    pub gated: bool,
    /// Queries and keys are normalised per head.
    pub head_norm: bool,
}

/// Weights of one attention layer.
#[derive(Debug)]
pub(crate) struct Attention {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    output: Matrix,
    /// (query gamma, key gamma), each \[D\].
    head_norm: Option<(Buffer, Buffer)>,
    gated: bool,
    num_kv_heads: usize,
}

/// Rotation, the same in all layers.
#[derive(Debug)]
pub(crate) struct Rope {
    pub style: RopeStyle,
    /// \[rd/2\].
    pub inv_freq: Vec<f32>,
}

impl Rope {
    /// As operations take it.
    pub(crate) fn args(&self) -> RopeArgs<'_> {
        RopeArgs {
            style: self.style,
            inv_freq: &self.inv_freq,
        }
    }
}

impl Attention {
    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        config: &ModelConfig,
        layer: usize,
        num_kv_heads: usize,
        style: AttentionStyle,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let e = config.hidden_size;
        let d = config.head_dim;
        let q_rows = config.num_heads * d * if style.gated { 2 } else { 1 };
        Ok(Self {
            q: weights.matrix(&name("attn_q"), q_rows, e)?,
            k: weights.matrix(&name("attn_k"), num_kv_heads * d, e)?,
            v: weights.matrix(&name("attn_v"), num_kv_heads * d, e)?,
            output: weights.matrix(&name("attn_output"), e, config.num_heads * d)?,
            head_norm: if style.head_norm {
                Some((
                    weights.buffer(&name("attn_q_norm"), &[d])?,
                    weights.buffer(&name("attn_k_norm"), &[d])?,
                ))
            } else {
                None
            },
            gated: style.gated,
            num_kv_heads,
        })
    }

    /// `h += Wo attention(norm(h))`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        config: &ModelConfig,
        norm: Norm<'_>,
        rope: &Rope,
        cache: &mut KvLayer,
        segments: &[Segment<'_>],
        num_rows: usize,
        s: &mut Scratch,
    ) {
        self.project(device, norm, num_rows, s);
        device.attention(self.mixing(config, rope, cache, segments, s));
        self.put(device, num_rows, s);
    }

    /// Queries, keys and values of `norm(h)`.
    pub(crate) fn project(
        &self,
        device: &dyn Device,
        norm: Norm<'_>,
        num_rows: usize,
        s: &mut Scratch,
    ) {
        device.linear(LinearArgs {
            num_rows,
            x: &s.h,
            norm: Some(norm),
            projections: &mut [
                Projection {
                    weight: &self.q,
                    out: &mut s.q,
                },
                Projection {
                    weight: &self.k,
                    out: &mut s.k,
                },
                Projection {
                    weight: &self.v,
                    out: &mut s.v,
                },
            ],
            accumulate: false,
        });
    }

    /// What attends to them.
    pub(crate) fn mixing<'a>(
        &'a self,
        config: &ModelConfig,
        rope: &'a Rope,
        cache: &'a mut KvLayer,
        segments: &'a [Segment<'a>],
        s: &'a mut Scratch,
    ) -> AttentionArgs<'a> {
        AttentionArgs {
            num_heads: config.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: config.head_dim,
            q: &mut s.q,
            gated: self.gated,
            k: &mut s.k,
            v: &s.v,
            head_norm: self.head_norm(config.norm_eps),
            rope: rope.args(),
            cache,
            segments,
            visibility: Visibility::Ancestors,
            window: None,
            out: &mut s.mixed,
        }
    }

    /// `h += Wo mixed`.
    pub(crate) fn put(&self, device: &dyn Device, num_rows: usize, s: &mut Scratch) {
        device.linear(LinearArgs {
            num_rows,
            x: &s.mixed,
            norm: None,
            projections: &mut [Projection {
                weight: &self.output,
                out: &mut s.h,
            }],
            accumulate: true,
        });
    }

    /// The norm of heads, where there is one.
    pub(crate) fn head_norm(&self, eps: f32) -> Option<HeadNorm<'_>> {
        let gammas = self.head_norm.as_ref();
        gammas.map(|(q_gamma, k_gamma)| HeadNorm {
            q_gamma,
            k_gamma,
            eps,
        })
    }

    /// What makes queries.
    pub(crate) fn q(&self) -> &Matrix {
        &self.q
    }

    /// What makes keys.
    pub(crate) fn k(&self) -> &Matrix {
        &self.k
    }

    /// Hkv.
    pub(crate) fn num_kv_heads(&self) -> usize {
        self.num_kv_heads
    }
}
