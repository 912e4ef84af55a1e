//! What all decoders share: embedding, residual stream, feed-forward, head.

mod features;
mod layer;
mod scratch;

use std::collections::HashMap;
use std::ops::Range;

use kernels::{
    Buffer, DeltaNetCommitArgs, Device, DeviceError, KvCommitArgs, KvCommitLayer, LinearArgs,
    Matrix, Norm, Projection, Step, StoreColumnsArgs, TopKArgs, Visibility,
};
use kv_cache::{Cache, LayerMut};

use features::Features;
pub(crate) use layer::{Layer, Mixer, feed_forward};
pub(crate) use scratch::Scratch;

use crate::attention::Rope;
use crate::batch::Output;
use crate::delta_net::RecurrentRows;
use crate::error::ModelError;
use crate::features::FeatureBlock;
use crate::hparams::{LayerKind, ModelConfig};
use crate::memory::{HEAD_ROWS, next_instance};
use crate::plan::Plan;
use crate::stage::Tensors;
use crate::weights::WeightLoader;

/// From the residual stream to logits.
#[derive(Debug)]
struct Head {
    norm: Buffer,
    /// `None`: the embedding, where both are of one stage.
    matrix: Option<Matrix>,
}

impl Head {
    /// `out = W norm(x)` for some rows; `embedding`: what stands in for a matrix of its own.
    fn logits(
        &self,
        device: &dyn Device,
        config: &ModelConfig,
        embedding: Option<&Matrix>,
        (x, num_rows): (&Buffer, usize),
        out: &mut Buffer,
    ) {
        let Some(weight) = self.matrix.as_ref().or(embedding) else {
            return;
        };
        device.linear(LinearArgs {
            num_rows,
            x,
            norm: Some(Norm {
                gamma: &self.norm,
                eps: config.norm_eps,
            }),
            projections: &mut [Projection { weight, out }],
            accumulate: false,
        });
    }
}

/// The graph of a model, or of some of its layers, and its activations.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The first stage's.
    embedding: Option<Matrix>,
    layers: Vec<Layer>,
    rope: Rope,
    /// The last stage's.
    head: Option<Head>,
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

impl Decoder {
    /// Loads `stage`, a run of the model's layers; the embedding belongs to its first, the head to its last.
    pub(crate) fn load(
        weights: &mut WeightLoader<'_>,
        device: &dyn Device,
        config: &ModelConfig,
        stage: &Range<usize>,
        max_rows: usize,
        load_layers: impl FnOnce(
            &mut WeightLoader<'_>,
            &ModelConfig,
            Range<usize>,
        ) -> Result<(Vec<Layer>, Rope), ModelError>,
    ) -> Result<Self, ModelError> {
        let (v, e) = (config.vocab_size, config.hidden_size);
        let tensors = Tensors::new(config, stage, weights.has("output.weight"));
        // The largest matrices first: while one is repacked, file and device copy are both resident.
        let embedding = if tensors.begins_model() {
            Some(weights.matrix("token_embd.weight", v, e)?)
        } else {
            None
        };
        let head = match tensors.own_head() {
            Some(name) => Some(weights.matrix(name, v, e)?),
            None => None,
        };
        let (layers, rope) = load_layers(weights, config, stage.clone())?;
        let head = if tensors.ends_model() {
            Some(Head {
                norm: weights.buffer("output_norm.weight", &[e])?,
                matrix: head,
            })
        } else {
            None
        };
        let shape = config.layers[stage.clone()]
            .iter()
            .find_map(|kind| match kind {
                LayerKind::DeltaNet(shape) => Some(*shape),
                LayerKind::Attention { .. } => None,
            });
        let head_rows = match head {
            Some(_) => HEAD_ROWS.min(max_rows),
            None => 0,
        };
        Ok(Self {
            embedding,
            layers,
            rope,
            head,
            scratch: Scratch::new(device, config, stage, max_rows, head_rows)?,
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
        let row_len = layers * config.hidden_size;
        if self.features.keep(device, self.max_rows, row_len)? {
            self.instance = next_instance();
        }
        Ok(())
    }

    /// Layers that there is room for the features of.
    pub(crate) fn num_feature_layers(&self, config: &ModelConfig) -> usize {
        let row_len = self.max_rows * config.hidden_size;
        self.features.all.len().checked_div(row_len).unwrap_or(0)
    }

    /// Whether there are buffers that a commit replays from.
    pub(crate) fn keeps_rows(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Features of rows of the last batch, \[rows, layers E\].
    pub(crate) fn features(&mut self, device: &dyn Device, rows: &[usize]) -> Vec<f32> {
        self.features.read(device, rows)
    }

    /// The residual stream after the last layer here, \[rows, E\], of all rows of the last batch.
    pub(crate) fn hidden(
        &self,
        device: &dyn Device,
        config: &ModelConfig,
        rows: usize,
    ) -> Vec<f32> {
        let mut values = vec![0.0; rows * config.hidden_size];
        device.read(&self.scratch.h, 0, &mut values);
        values
    }

    /// Copies features of rows of the last batch to `to_row` of a block and after.
    pub(crate) fn copy_features(
        &mut self,
        device: &dyn Device,
        rows: &[usize],
        to: &mut FeatureBlock,
        to_row: usize,
    ) {
        self.features.copy(device, rows, to, to_row);
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
        pass: &Pass<'_>,
    ) -> Output {
        let Pass {
            plan,
            capture_layers,
            hidden,
        } = *pass;
        let num_rows = plan.tokens.len();
        let verifies = plan.verifies();
        let segments = plan.device_segments();
        if self.embedding.is_none() {
            // Before the step: a recording of it takes what lies there.
            device.write(&mut self.scratch.h, 0, hidden);
        }
        let Self {
            embedding,
            layers,
            rope,
            scratch: s,
            passing,
            kept,
            features,
            head,
            ..
        } = self;
        // A row by itself is all that logits can be wanted of: then they are part of the step.
        let own_head = head.as_ref().filter(|_| num_rows == 1 && plan.is_read());
        let has_logits = own_head.is_some();
        let sought = plan.sought(config.vocab_size).filter(|_| has_logits);
        let step = Step {
            tokens: &plan.tokens,
            segments: &segments,
            visibility: Visibility::Ancestors,
            variant: &(self.instance, verifies, capture_layers, has_logits, sought),
        };
        device.step(&step, &mut || {
            if let Some(embedding) = embedding {
                device.embed(embedding, &plan.tokens, &mut s.h);
            }
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
                            mixer.forward(device, config, norm, rows, state, &segments, s);
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
            if let Some(head) = own_head {
                let embedding = embedding.as_ref();
                head.logits(device, config, embedding, (&s.h, 1), &mut s.logits);
            }
            if let Some(k) = sought {
                device.seek_top(&s.logits, config.vocab_size, k);
            }
        });
        if self.head.is_none() {
            return Output::default();
        }
        let mut output = Output {
            logits: vec![0.0; plan.wanted_rows.len() * config.vocab_size],
            rows: plan.wanted.clone(),
            ..Output::default()
        };
        let values = &mut output.logits;
        self.head(
            device,
            config,
            &plan.wanted_rows,
            has_logits,
            |logits, first, rows| {
                let values = &mut values[first * config.vocab_size..][..rows * config.vocab_size];
                device.read(logits, 0, values);
            },
        );
        let mut best = vec![0; plan.best_rows.len()];
        self.head(
            device,
            config,
            &plan.best_rows,
            has_logits,
            |logits, first, rows| {
                device.top_k(TopKArgs {
                    num_rows: rows,
                    vocab_size: config.vocab_size,
                    k: 1,
                    logits,
                    ids: &mut best[first..first + rows],
                    log_probs: None,
                    values: None,
                });
            },
        );
        output.best = plan.best.iter().copied().zip(best).collect();
        let most = plan.top_k.iter().copied().max().unwrap_or(0);
        let k = most.min(config.vocab_size);
        let mut ids = vec![0; plan.top_rows.len() * k];
        let mut values = vec![0.0; ids.len()];
        self.head(
            device,
            config,
            &plan.top_rows,
            has_logits,
            |logits, first, rows| {
                let place = first * k..(first + rows) * k;
                device.top_k(TopKArgs {
                    num_rows: rows,
                    vocab_size: config.vocab_size,
                    k,
                    logits,
                    ids: &mut ids[place.clone()],
                    log_probs: None,
                    values: Some(&mut values[place]),
                });
            },
        );
        let tops = ids.chunks(k.max(1)).zip(values.chunks(k.max(1)));
        for (((ids, values), row), wanted) in tops.zip(&plan.top).zip(&plan.top_k) {
            let top = ids.iter().copied().zip(values.iter().copied());
            output.tops.push((*row, top.take(*wanted).collect()));
        }
        output
    }

    /// Logits of rows of the batch, at most [`HEAD_ROWS`] at a time, each time handed to `take` with the place of the
    /// first in `rows` and their number. `has_logits`: the step has left those of its one row.
    fn head(
        &mut self,
        device: &dyn Device,
        config: &ModelConfig,
        rows: &[usize],
        has_logits: bool,
        mut take: impl FnMut(&Buffer, usize, usize),
    ) {
        let Self {
            embedding,
            head: Some(head),
            scratch: s,
            ..
        } = self
        else {
            return;
        };
        for (first, rows) in (0..).step_by(HEAD_ROWS).zip(rows.chunks(HEAD_ROWS)) {
            if !has_logits {
                // All rows of a tree are there as they are wanted.
                let are_first = rows.iter().copied().eq(0..rows.len());
                if !are_first {
                    device.gather_rows(&s.h, config.hidden_size, rows, &mut s.head_rows);
                }
                let x = if are_first { &s.h } else { &s.head_rows };
                head.logits(
                    device,
                    config,
                    embedding.as_ref(),
                    (x, rows.len()),
                    &mut s.logits,
                );
            }
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
        let mut attention = Vec::new();
        let mut recurrent = Vec::new();
        let mut shape = None;
        for ((number, layer), cached) in self.layers.iter().enumerate().zip(cache.layers_mut()) {
            match (&layer.mixer, cached) {
                (Mixer::Attention(mixer), LayerMut::Attention(cache)) => {
                    attention.push(KvCommitLayer {
                        num_kv_heads: mixer.num_kv_heads(),
                        cache,
                    });
                }
                (Mixer::DeltaNet(mixer), LayerMut::DeltaNet(state)) => {
                    if let Some(kept) = self.kept.get(&number) {
                        shape = Some(mixer.shape());
                        recurrent.push(mixer.commit(kept, state));
                    }
                }
                _ => unreachable!("cache and graph are made from the same layer kinds"),
            }
        }
        device.kv_commit(KvCommitArgs {
            head_dim: config.head_dim,
            layers: attention,
            pages: commit.pages,
            committed_len: commit.committed_len,
            path: commit.path,
        });
        let path = commit.path.iter();
        let rows: Vec<usize> = path.map(|node| commit.first_row + node).collect();
        if let Some(shape) = shape {
            device.delta_net_commit(DeltaNetCommitArgs {
                shape,
                layers: recurrent,
                state_index: commit.state_index,
                rows: &rows,
            });
        }
    }
}

/// What is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass<'a> {
    pub plan: &'a Plan,
    /// Counted from the first layer here.
    pub capture_layers: &'a [usize],
    /// The residual stream \[N, E\] that earlier layers left; of no concern where there are none.
    pub hidden: &'a [f32],
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
