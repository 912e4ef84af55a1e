//! The graph of a draft: projected features become keys and values of the context; a draft block of an anchor and masks
//! goes through the layers and sees that context and itself.

use kernels::{
    AttentionArgs, Buffer, Device, FeedForwardArgs, HeadNorm, KvAppendArgs, KvLayer, LinearArgs,
    Matrix, Norm, Projection, RopeArgs, RopeStyle, Segment, Step, TopKArgs, Visibility,
};
use kv_cache::{Cache, LayerMut};

use crate::dflash::config::DraftConfig;
use crate::dflash::scratch::{Rows, Scratch};
use crate::dflash::weights::{Layer, TargetEnds};
use crate::error::ModelError;
use crate::memory::{HEAD_ROWS, next_instance};
use crate::weights::WeightLoader;

/// Weights and activations of a draft.
#[derive(Debug)]
pub(crate) struct Graph {
    ends: TargetEnds,
    fc: Matrix,
    hidden_norm: Buffer,
    layers: Vec<Layer>,
    output_norm: Buffer,
    inv_freq: Vec<f32>,
    scratch: Scratch,
    instance: u64,
}

impl Graph {
    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        device: &dyn Device,
        config: &DraftConfig,
        ends: TargetEnds,
        rows: Rows,
    ) -> Result<Self, ModelError> {
        let (e, dialect) = (config.hidden_size, config.dialect);
        Ok(Self {
            ends,
            fc: weights.matrix(dialect.fc(), e, config.feature_len())?,
            hidden_norm: weights.buffer(dialect.hidden_norm(), &[e])?,
            layers: (0..config.num_layers)
                .map(|layer| Layer::load(weights, config, layer))
                .collect::<Result<_, _>>()?,
            output_norm: weights.buffer(dialect.output_norm(), &[e])?,
            inv_freq: config.inverse_frequencies(),
            scratch: Scratch::new(device, config, rows)?,
            instance: next_instance(),
        })
    }

    /// Features \[N, taps E\] of the rows that [`Graph::append`] appends next.
    pub(crate) fn features_mut(&mut self) -> &mut Buffer {
        &mut self.scratch.features
    }

    /// Keys and values of rows of context, for all layers: `c = norm(fc f)`, `k = rope(norm(Wk c))`, `v = Wv c`.
    /// The features are those of [`Graph::features_mut`].
    pub(crate) fn append(
        &mut self,
        device: &dyn Device,
        config: &DraftConfig,
        cache: &mut Cache,
        segment: &Segment<'_>,
    ) {
        let num_rows = segment.parents.len();
        let Self {
            fc,
            hidden_norm,
            layers,
            inv_freq,
            scratch: s,
            ..
        } = self;
        let step = Step {
            tokens: &[],
            segments: std::slice::from_ref(segment),
            visibility: Visibility::All,
            variant: &("draft context", self.instance),
        };
        device.step(&step, &mut || {
            device.linear(LinearArgs {
                num_rows,
                x: &s.features,
                norm: None,
                projections: &mut [Projection {
                    weight: fc,
                    out: &mut s.h,
                }],
                accumulate: false,
            });
            for (number, layer) in layers.iter().enumerate() {
                device.linear(LinearArgs {
                    num_rows,
                    x: &s.h,
                    norm: Some(Norm {
                        gamma: hidden_norm,
                        eps: config.norm_eps,
                    }),
                    projections: &mut [
                        Projection {
                            weight: &layer.k,
                            out: &mut s.k,
                        },
                        Projection {
                            weight: &layer.v,
                            out: &mut s.v,
                        },
                    ],
                    accumulate: false,
                });
                device.kv_append(KvAppendArgs {
                    num_kv_heads: config.num_kv_heads,
                    head_dim: config.head_dim,
                    k: &mut s.k,
                    v: &s.v,
                    k_norm: Some(Norm {
                        gamma: &layer.k_norm,
                        eps: config.norm_eps,
                    }),
                    rope: RopeArgs {
                        style: RopeStyle::Neox,
                        inv_freq,
                    },
                    cache: kv_layer(cache, number),
                    segments: std::slice::from_ref(segment),
                });
            }
        });
    }

    /// Residual stream of whole draft blocks, one a segment; their keys and values are scratch after the contexts.
    pub(crate) fn blocks(
        &mut self,
        device: &dyn Device,
        config: &DraftConfig,
        cache: &mut Cache,
        segments: &[Segment<'_>],
        tokens: &[u32],
    ) {
        let num_rows = tokens.len();
        let eps = config.norm_eps;
        let Self {
            ends,
            layers,
            inv_freq,
            scratch: s,
            ..
        } = self;
        let step = Step {
            tokens,
            segments,
            visibility: Visibility::All,
            variant: &("draft block", self.instance),
        };
        device.step(&step, &mut || {
            device.embed(&ends.embedding, tokens, &mut s.h);
            for (number, layer) in layers.iter().enumerate() {
                device.linear(LinearArgs {
                    num_rows,
                    x: &s.h,
                    norm: Some(Norm {
                        gamma: &layer.input_norm,
                        eps,
                    }),
                    projections: &mut [
                        Projection {
                            weight: &layer.q,
                            out: &mut s.q,
                        },
                        Projection {
                            weight: &layer.k,
                            out: &mut s.k,
                        },
                        Projection {
                            weight: &layer.v,
                            out: &mut s.v,
                        },
                    ],
                    accumulate: false,
                });
                device.attention(AttentionArgs {
                    num_heads: config.num_heads,
                    num_kv_heads: config.num_kv_heads,
                    head_dim: config.head_dim,
                    q: &mut s.q,
                    gated: false,
                    k: &mut s.k,
                    v: &s.v,
                    head_norm: Some(HeadNorm {
                        q_gamma: &layer.q_norm,
                        k_gamma: &layer.k_norm,
                        eps,
                    }),
                    rope: RopeArgs {
                        style: RopeStyle::Neox,
                        inv_freq,
                    },
                    cache: kv_layer(cache, number),
                    segments,
                    visibility: Visibility::All,
                    window: layer.attention.window(),
                    out: &mut s.mixed,
                });
                add(device, num_rows, &s.mixed, &layer.output, &mut s.h);
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
        });
    }

    /// Logits of rows of the last [`Graph::blocks`], at most [`HEAD_ROWS`] at a time, each time handed to `take` with the
    /// number of rows.
    pub(crate) fn head(
        &mut self,
        device: &dyn Device,
        config: &DraftConfig,
        rows: &[usize],
        mut take: impl FnMut(&Buffer, usize),
    ) {
        let s = &mut self.scratch;
        for rows in rows.chunks(HEAD_ROWS) {
            device.gather_rows(&s.h, config.hidden_size, rows, &mut s.head_rows);
            device.linear(LinearArgs {
                num_rows: rows.len(),
                x: &s.head_rows,
                norm: Some(Norm {
                    gamma: &self.output_norm,
                    eps: config.norm_eps,
                }),
                projections: &mut [Projection {
                    weight: self.ends.head.as_ref().unwrap_or(&self.ends.embedding),
                    out: &mut s.logits,
                }],
                accumulate: false,
            });
            take(&s.logits, rows.len());
        }
    }

    /// The `k` likeliest tokens of rows and their log-probabilities, each \[rows, k\].
    pub(crate) fn top_k(
        &mut self,
        device: &dyn Device,
        config: &DraftConfig,
        rows: &[usize],
        k: usize,
    ) -> (Vec<u32>, Vec<f32>) {
        let (mut ids, mut log_probs) = (vec![0; rows.len() * k], vec![0.0; rows.len() * k]);
        let mut done = 0;
        self.head(device, config, rows, |logits, num_rows| {
            device.top_k(TopKArgs {
                num_rows,
                vocab_size: config.vocab_size,
                k,
                logits,
                ids: &mut ids[done * k..][..num_rows * k],
                log_probs: Some(&mut log_probs[done * k..][..num_rows * k]),
                values: None,
            });
            done += num_rows;
        });
        (ids, log_probs)
    }

    /// Rows of the residual stream after the last layer \[N, E\], and gamma of the norm that follows, for tests.
    pub(crate) fn stream(&self, device: &dyn Device, len: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut h, mut gamma) = (vec![0.0; len], vec![0.0; self.output_norm.len()]);
        device.read(&self.scratch.h, 0, &mut h);
        device.read(&self.output_norm, 0, &mut gamma);
        (h, gamma)
    }
}

/// `h += W x`.
fn add(device: &dyn Device, num_rows: usize, x: &Buffer, weight: &Matrix, h: &mut Buffer) {
    device.linear(LinearArgs {
        num_rows,
        x,
        norm: None,
        projections: &mut [Projection { weight, out: h }],
        accumulate: true,
    });
}

fn kv_layer(cache: &mut Cache, number: usize) -> &mut KvLayer {
    match cache.layer_mut(number) {
        Some(LayerMut::Attention(kv)) => kv,
        _ => unreachable!("cache and graph are made from the same layers"),
    }
}
