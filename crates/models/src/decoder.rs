//! What all decoders share: embedding, residual stream, feed-forward, captured rows, head.

use std::collections::HashMap;

use kernels::{
    Buffer, Device, DeviceError, GatedLinearArgs, LinearArgs, Matrix, Norm, Projection, Step,
    StoreColumnsArgs, TopKArgs, Visibility,
};
use kv_cache::{Cache, LayerMut};

use crate::attention::{Attention, Rope};
use crate::batch::Output;
use crate::delta_net::{DeltaNet, RecurrentRows};
use crate::error::ModelError;
use crate::hparams::{LayerKind, ModelConfig};
use crate::memory::{HEAD_ROWS, next_instance};
use crate::plan::Plan;
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
    mixer_norm: Buffer,
    mixer: Mixer,
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

/// Activations of a batch of at most `max_rows` rows.
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
    ffn: Buffer,
    /// Rows that logits are wanted for, \[HEAD_ROWS, E\].
    head_rows: Buffer,
    /// \[HEAD_ROWS, V\].
    logits: Buffer,
}

impl Scratch {
    fn new(device: &dyn Device, config: &ModelConfig, rows: usize) -> Result<Self, DeviceError> {
        let heads = config.num_heads * config.head_dim;
        let (mut kv, mut inner) = (0, 0);
        for kind in &config.layers {
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
            head_rows: device.zeros(HEAD_ROWS.min(rows) * config.hidden_size)?,
            logits: device.zeros(HEAD_ROWS.min(rows) * config.vocab_size)?,
        })
    }
}

/// The graph of a model and its activations.
#[derive(Debug)]
pub(crate) struct Decoder {
    embedding: Matrix,
    layers: Vec<Layer>,
    rope: Rope,
    output_norm: Buffer,
    /// `None`: the embedding is the head too.
    head: Option<Matrix>,
    scratch: Scratch,
    max_rows: usize,
    /// Inputs of the recurrence, overwritten layer after layer, for batches that nothing is committed from.
    passing: Option<RecurrentRows>,
    /// The same for every DeltaNet layer by its number, kept for a commit; made when first needed.
    kept: HashMap<usize, RecurrentRows>,
    features: Features,
    /// Of the buffers.
    instance: u64,
}

/// Outputs of captured layers of the last batch.
#[derive(Debug, Default)]
struct Features {
    /// \[max_rows, layers, E\]; made when first needed.
    all: Buffer,
    /// Rows on their way to the host.
    picked: Buffer,
    /// Values of a row: layers E.
    row_len: usize,
}

impl Decoder {
    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        device: &dyn Device,
        config: &ModelConfig,
        max_rows: usize,
        load_layers: impl FnOnce(
            &mut WeightLoader<'_>,
            &ModelConfig,
        ) -> Result<(Vec<Layer>, Rope), ModelError>,
    ) -> Result<Self, ModelError> {
        let (v, e) = (config.vocab_size, config.hidden_size);
        // The largest matrices first: while one is repacked, file and device copy are both resident.
        let embedding = weights.matrix("token_embd.weight", v, e)?;
        let head = if weights.has("output.weight") {
            Some(weights.matrix("output.weight", v, e)?)
        } else {
            None
        };
        let (layers, rope) = load_layers(weights, config)?;
        let output_norm = weights.buffer("output_norm.weight", &[e])?;
        let shape = config.layers.iter().find_map(|kind| match kind {
            LayerKind::DeltaNet(shape) => Some(*shape),
            LayerKind::Attention { .. } => None,
        });
        Ok(Self {
            embedding,
            layers,
            rope,
            output_norm,
            head,
            scratch: Scratch::new(device, config, max_rows)?,
            max_rows,
            passing: shape
                .map(|shape| RecurrentRows::new(device, shape, max_rows))
                .transpose()?,
            kept: HashMap::new(),
            features: Features::default(),
            instance: next_instance(),
        })
    }

    /// Makes room for what `layers` captured layers give.
    pub(crate) fn keep_features(
        &mut self,
        device: &dyn Device,
        config: &ModelConfig,
        layers: usize,
    ) -> Result<(), DeviceError> {
        self.features.row_len = layers * config.hidden_size;
        let len = self.max_rows * self.features.row_len;
        if self.features.all.len() < len {
            self.features.all = device.zeros(len)?;
            self.features.picked = device.zeros(len)?;
            self.instance = next_instance();
        }
        Ok(())
    }

    /// Features of rows of the last batch, \[rows, layers E\].
    pub(crate) fn features(&mut self, device: &dyn Device, rows: &[usize]) -> Vec<f32> {
        let Features {
            all,
            picked,
            row_len,
        } = &mut self.features;
        let mut values = vec![0.0; rows.len() * *row_len];
        if values.is_empty() {
            // Where nothing was ever captured, the buffers are not the device's.
            return values;
        }
        let is_run = rows.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        match rows.first() {
            Some(first) if is_run => device.read(all, first * *row_len, &mut values),
            _ => {
                device.gather_rows(all, *row_len, rows, picked);
                device.read(picked, 0, &mut values);
            }
        }
        values
    }

    /// Makes the buffers that a commit replays from.
    pub(crate) fn keep_rows(&mut self, device: &dyn Device) -> Result<(), DeviceError> {
        for (number, layer) in self.layers.iter().enumerate() {
            if let Mixer::DeltaNet(mixer) = &layer.mixer
                && !self.kept.contains_key(&number)
            {
                self.kept.insert(
                    number,
                    RecurrentRows::new(device, mixer.shape(), self.max_rows)?,
                );
            }
        }
        Ok(())
    }

    /// Computes a batch. Sequences do not grow here, except that recurrent states of advancing segments move.
    pub(crate) fn forward(
        &mut self,
        device: &dyn Device,
        config: &ModelConfig,
        cache: &mut Cache,
        plan: &Plan,
        capture_layers: &[usize],
    ) -> Output {
        let num_rows = plan.tokens.len();
        let verifies = plan.verifies();
        let segments = plan.device_segments();
        let Self {
            embedding,
            layers,
            rope,
            scratch: s,
            passing,
            kept,
            features,
            ..
        } = self;
        let step = Step {
            tokens: &plan.tokens,
            segments: &segments,
            visibility: Visibility::Ancestors,
            variant: &(self.instance, verifies, capture_layers),
        };
        device.step(&step, &mut || {
            device.embed(embedding, &plan.tokens, &mut s.h);
            for (number, layer) in layers.iter().enumerate() {
                let norm = Norm {
                    gamma: &layer.mixer_norm,
                    eps: config.norm_eps,
                };
                match (&layer.mixer, cache.layer_mut(number)) {
                    (Mixer::Attention(mixer), Some(LayerMut::Attention(kv))) => {
                        mixer.forward(device, config, norm, rope, kv, &segments, num_rows, s);
                    }
                    (Mixer::DeltaNet(mixer), Some(LayerMut::DeltaNet(state))) => {
                        let rows = if verifies {
                            kept.get_mut(&number)
                        } else {
                            passing.as_mut()
                        };
                        if let Some(rows) = rows {
                            mixer
                                .forward(device, config, norm, rows, state, &segments, num_rows, s);
                        }
                    }
                    _ => unreachable!("cache and graph are made from the same layer kinds"),
                }
                feed_forward(device, layer, config.norm_eps, num_rows, s);
                for tap in (0..capture_layers.len()).filter(|&tap| capture_layers[tap] == number) {
                    device.store_columns(StoreColumnsArgs {
                        num_rows,
                        x: &s.h,
                        row_len: config.hidden_size,
                        out: &mut features.all,
                        out_len: features.row_len,
                        first_column: tap * config.hidden_size,
                    });
                }
            }
        });
        let mut output = Output {
            logits: vec![0.0; plan.wanted_rows.len() * config.vocab_size],
            rows: plan.wanted.clone(),
            best: Vec::new(),
        };
        let values = &mut output.logits;
        self.head(device, config, &plan.wanted_rows, |logits, first, rows| {
            let values = &mut values[first * config.vocab_size..][..rows * config.vocab_size];
            device.read(logits, 0, values);
        });
        let mut best = vec![0; plan.best_rows.len()];
        self.head(device, config, &plan.best_rows, |logits, first, rows| {
            device.top_k(TopKArgs {
                num_rows: rows,
                vocab_size: config.vocab_size,
                k: 1,
                logits,
                ids: &mut best[first..first + rows],
                log_probs: &mut vec![0.0; rows],
            });
        });
        output.best = plan.best.iter().copied().zip(best).collect();
        output
    }

    /// Logits of rows of the batch, at most [`HEAD_ROWS`] at a time, each time handed to `take` with the place of the
    /// first in `rows` and their number.
    fn head(
        &mut self,
        device: &dyn Device,
        config: &ModelConfig,
        rows: &[usize],
        mut take: impl FnMut(&Buffer, usize, usize),
    ) {
        let s = &mut self.scratch;
        for (first, rows) in (0..).step_by(HEAD_ROWS).zip(rows.chunks(HEAD_ROWS)) {
            device.gather_rows(&s.h, config.hidden_size, rows, &mut s.head_rows);
            device.linear(LinearArgs {
                num_rows: rows.len(),
                x: &s.head_rows,
                norm: Some(Norm {
                    gamma: &self.output_norm,
                    eps: config.norm_eps,
                }),
                projections: &mut [Projection {
                    weight: self.head.as_ref().unwrap_or(&self.embedding),
                    out: &mut s.logits,
                }],
                accumulate: false,
            });
            take(&s.logits, first, rows.len());
        }
    }

    /// Makes `path` (nodes of the segment that began at `first_row`) part of a sequence's state.
    pub(crate) fn commit(
        &self,
        device: &dyn Device,
        config: &ModelConfig,
        cache: &mut Cache,
        commit: &Commit<'_>,
    ) {
        let rows: Vec<usize> = commit
            .path
            .iter()
            .map(|node| commit.first_row + node)
            .collect();
        for (number, layer) in self.layers.iter().enumerate() {
            match (&layer.mixer, cache.layer_mut(number)) {
                (Mixer::Attention(mixer), Some(LayerMut::Attention(kv))) => {
                    device.kv_commit(kernels::KvCommitArgs {
                        num_kv_heads: mixer.num_kv_heads(),
                        head_dim: config.head_dim,
                        cache: kv,
                        pages: commit.pages,
                        committed_len: commit.committed_len,
                        path: commit.path,
                    });
                }
                (Mixer::DeltaNet(mixer), Some(LayerMut::DeltaNet(state))) => {
                    if let Some(kept) = self.kept.get(&number) {
                        mixer.commit(device, kept, state, commit.state_index, &rows);
                    }
                }
                _ => unreachable!("cache and graph are made from the same layer kinds"),
            }
        }
    }
}

/// An accepted path of one sequence.
#[derive(Debug)]
pub(crate) struct Commit<'a> {
    pub first_row: usize,
    pub path: &'a [usize],
    pub pages: &'a [u32],
    pub committed_len: usize,
    pub state_index: usize,
}

/// `h += down(silu(gate norm(h)) * up norm(h))`.
fn feed_forward(device: &dyn Device, layer: &Layer, eps: f32, num_rows: usize, s: &mut Scratch) {
    device.gated_linear(GatedLinearArgs {
        num_rows,
        x: &s.h,
        norm: Some(Norm {
            gamma: &layer.ffn_norm,
            eps,
        }),
        gate: &layer.gate,
        up: &layer.up,
        out: &mut s.ffn,
    });
    device.linear(LinearArgs {
        num_rows,
        x: &s.ffn,
        norm: None,
        projections: &mut [Projection {
            weight: &layer.down,
            out: &mut s.h,
        }],
        accumulate: true,
    });
}
