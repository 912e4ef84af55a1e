//! The forward pass of a prompt, layer by layer, so that only one layer's keys and values are kept.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use kernels::{
    Device, LinearArgs, Matrix, Norm, Projection, RopeArgs, Segment, SparseAttentionArgs,
    TailProductsArgs, TailWeightsArgs,
};

use crate::attention::{Attention, Rope};
use crate::decoder::{Layer, Mixer, Scratch, feed_forward};
use crate::error::ModelError;
use crate::hparams::ModelConfig;
use crate::scorer::memory::prompt_need;
use crate::scorer::prompt::Prompt;
use crate::scorer::{PASS_ROWS, ScorePositions, ScoreProgress, ScorerOptions};

/// Tokens that go through a layer together.
fn passes(tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let firsts = (0..tokens).step_by(PASS_ROWS);
    firsts.map(move |first| first..(first + PASS_ROWS).min(tokens))
}

/// The model, and how it is asked.
pub(super) struct Graph {
    pub device: Arc<dyn Device>,
    pub config: ModelConfig,
    pub options: ScorerOptions,
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub rope: Rope,
}

impl Graph {
    /// The most that each of the last rows attends to each token, \[T, S\].
    pub(super) fn tail_weights(
        &self,
        s: &mut Scratch,
        tokens: &[u32],
        progress: &mut dyn FnMut(ScoreProgress) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        let device = self.device.as_ref();
        let count = tokens.len();
        prompt_need(&self.config, &self.options, count)
            .on(device)
            .check()?;
        let mut prompt = Prompt::new(device, &self.config, &self.options, count)?;
        for rows in passes(count) {
            device.embed(&self.embedding, &tokens[rows.clone()], &mut s.h);
            self.keep_rows(&mut prompt, rows, s);
        }
        let num_layers = self.layers.len();
        let scored = self.options.scored_layers.unwrap_or(num_layers);
        let mut state = ScoreProgress {
            done: 0,
            total: (num_layers * count) as u64,
        };
        for number in 0..num_layers {
            let is_scored = number + scored >= num_layers;
            if is_scored {
                self.ask(&mut prompt, number);
            }
            for rows in passes(count) {
                state.done += rows.len() as u64;
                self.layer(&mut prompt, number, rows, is_scored, s);
                if progress(state).is_break() {
                    device.finish()?;
                    return Err(ModelError::ScoringStopped);
                }
            }
            if is_scored {
                device.tail_weights(TailWeightsArgs {
                    num_heads: self.config.num_heads,
                    num_tokens: count,
                    num_queries: prompt.sizes.tail,
                    products: &prompt.products,
                    out: &mut prompt.weights,
                });
            }
            // No device falls behind what is said of progress by more than a layer.
            device.finish()?;
        }
        let mut weights = vec![0.0; prompt.weights.len()];
        device.read(&prompt.weights, 0, &mut weights);
        device.finish()?;
        Ok(weights)
    }

    fn attention(&self, number: usize) -> (&Layer, &Attention) {
        let layer = &self.layers[number];
        match &layer.mixer {
            Mixer::Attention(attention) => (layer, attention),
            Mixer::DeltaNet(_) => unreachable!("dense architectures have no other kind of layer"),
        }
    }

    fn norm<'a>(&self, layer: &'a Layer) -> Norm<'a> {
        Norm {
            gamma: &layer.mixer_norm,
            eps: self.config.norm_eps,
        }
    }

    /// Rows of the stream into the activations of a pass.
    fn take_rows(&self, prompt: &Prompt, rows: Range<usize>, s: &mut Scratch) {
        let len = self.config.hidden_size;
        let span = prompt.stream.span(rows.start * len..rows.end * len);
        s.h.copy_from(0, span);
    }

    /// And back.
    fn keep_rows(&self, prompt: &mut Prompt, rows: Range<usize>, s: &Scratch) {
        let len = self.config.hidden_size;
        let span = s.h.span(0..rows.len() * len);
        prompt.stream.copy_from(rows.start * len, span);
    }

    /// Queries of the last rows, before the layer changes their stream.
    fn ask(&self, prompt: &mut Prompt, number: usize) {
        let (layer, attention) = self.attention(number);
        let (tail, tokens) = (prompt.sizes.tail, prompt.sizes.tokens);
        let last: Vec<usize> = (tokens - tail..tokens).collect();
        let len = self.config.hidden_size;
        self.device
            .gather_rows(&prompt.stream, len, &last, &mut prompt.tail_h);
        self.device.linear(LinearArgs {
            num_rows: tail,
            x: &prompt.tail_h,
            norm: Some(self.norm(layer)),
            projections: &mut [Projection {
                weight: attention.q(),
                out: &mut prompt.tail_q,
            }],
            accumulate: false,
        });
    }

    /// One layer over some rows. Of the last one nothing is needed but its keys.
    fn layer(
        &self,
        prompt: &mut Prompt,
        number: usize,
        rows: Range<usize>,
        is_scored: bool,
        s: &mut Scratch,
    ) {
        let device = self.device.as_ref();
        let is_last = number + 1 == self.layers.len();
        let (layer, attention) = self.attention(number);
        self.take_rows(prompt, rows.clone(), s);
        if is_last {
            device.linear(LinearArgs {
                num_rows: rows.len(),
                x: &s.h,
                norm: Some(self.norm(layer)),
                projections: &mut [Projection {
                    weight: attention.k(),
                    out: &mut s.k,
                }],
                accumulate: false,
            });
        } else {
            attention.project(device, self.norm(layer), rows.len(), s);
        }
        if is_scored {
            self.multiply_tail(prompt, attention, rows.clone(), s);
        }
        if is_last {
            return;
        }
        let segments = [Segment {
            first_row: 0,
            parents: &prompt.chain[..rows.len()],
            committed_len: rows.start,
            first_position: 0,
            pages: &prompt.pages,
            state_index: 0,
            advance: true,
            window: None,
        }];
        let mixing = attention.mixing(&self.config, &self.rope, &mut prompt.kv, &segments, s);
        device.sparse_attention(SparseAttentionArgs {
            attention: mixing,
            num_tokens: prompt.sizes.tokens,
            threshold: self.options.sparsity.unwrap_or(0.0),
            means: &mut prompt.means,
        });
        attention.put(device, rows.len(), s);
        feed_forward(device, layer, self.config.norm_eps, rows.len(), s);
        self.keep_rows(prompt, rows, s);
    }

    /// Products of the last rows' queries with the keys of `rows`, as they are projected.
    fn multiply_tail(
        &self,
        prompt: &mut Prompt,
        attention: &Attention,
        rows: Range<usize>,
        s: &Scratch,
    ) {
        let rope = self.rope.args();
        let inv_freq = match self.options.positions {
            ScorePositions::Rotated => rope.inv_freq,
            ScorePositions::Unrotated => &[],
        };
        self.device.tail_products(TailProductsArgs {
            num_heads: self.config.num_heads,
            num_kv_heads: attention.num_kv_heads(),
            head_dim: self.config.head_dim,
            num_tokens: prompt.sizes.tokens,
            num_queries: prompt.sizes.tail,
            q: &prompt.tail_q,
            first_key: rows.start,
            num_keys: rows.len(),
            k: &s.k,
            head_norm: attention.head_norm(self.config.norm_eps),
            rope: RopeArgs { inv_freq, ..rope },
            out: &mut prompt.products,
        });
    }
}
