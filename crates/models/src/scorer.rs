//! How much each token of a prompt matters to its end: the attention of the last tokens of a small dense model.
//!
//! Speculative prefill (arXiv 2502.02789, 2603.02631): the forward pass is the model's own; what is taken of it are the softmax
//! weights of the last [`TAIL_ROWS`] tokens in each layer. Their maximum over layers and heads is averaged over the rows and
//! smoothed over the tokens.

mod memory;
mod pass;
mod prompt;

use std::ops::ControlFlow;
use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, KEY_BLOCK_TOKENS, KvType, Matrix};

use crate::attention::Rope;
use crate::decoder::{Layer, Scratch};
use crate::dense;
use crate::error::ModelError;
use crate::hparams::{Architecture, ModelConfig};
use crate::stage::all_layers;
use crate::weights::{LoadProgress, WeightLoader};

pub use memory::scorer_memory_need;
use pass::Graph;

/// Last tokens of a prompt, whose attention counts.
const TAIL_ROWS: usize = 8;
/// Tokens that a score is averaged over: its own and as many on both sides.
const POOL: usize = 13;
/// Rows that go through a layer at a time.
const PASS_ROWS: usize = 2048;
const _: () = assert!(PASS_ROWS.is_multiple_of(KEY_BLOCK_TOKENS));

/// Tokens that a prompt can have, or as many as the model declares. What is longer than a model was made for is weighed all the same:
/// importance without positions needs none, and drafters are small models of short contexts.
const MAX_SCORED_TOKENS: usize = 262_144;

/// The sparsity of options where nothing else is asked for.
pub const DEFAULT_SPARSITY: f32 = 0.005;

/// Which queries and keys importance is taken of. The forward pass rotates them either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScorePositions {
    /// Before the rotation, so that what is far away does not weigh less for that.
    #[default]
    Unrotated,
    /// After it, as attention itself has them.
    Rotated,
}

/// How a prompt is scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScorerOptions {
    /// How many of the last layers count; `None`: all.
    pub scored_layers: Option<usize>,
    /// Which queries and keys.
    pub positions: ScorePositions,
    /// Attention leaves out blocks of keys of less than this part of the strongest block's weight; `None`: it is dense.
    pub sparsity: Option<f32>,
    /// Weights are expanded to f32, and no product rounds what it multiplies: slow, for comparisons.
    pub exact: bool,
}

impl Default for ScorerOptions {
    fn default() -> Self {
        Self {
            scored_layers: None,
            positions: ScorePositions::default(),
            sparsity: Some(DEFAULT_SPARSITY),
            exact: false,
        }
    }
}

impl ScorerOptions {
    /// How keys and values of the forward pass are kept. Kernels for GPUs find blocks of keys in f16 alone.
    fn kv_type(&self) -> KvType {
        match self.exact && self.sparsity.is_none() {
            true => KvType::F32,
            false => KvType::F16,
        }
    }

    fn check(&self, config: &ModelConfig) -> Result<(), ModelError> {
        match (self.scored_layers, self.sparsity) {
            (Some(got), _) if !(1..=config.num_layers).contains(&got) => {
                let layers = config.num_layers;
                Err(ModelError::ScoredLayers { got, layers })
            }
            (_, Some(got)) if !(got > 0.0 && got <= 1.0) => Err(ModelError::Sparsity { got }),
            _ => Ok(()),
        }
    }
}

/// How far scoring has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreProgress {
    /// Tokens that have gone through a layer, over all layers.
    pub done: u64,
    /// Tokens times layers.
    pub total: u64,
}

/// A dense model without its head.
pub struct PromptScorer {
    graph: Graph,
    scratch: Scratch,
}

impl std::fmt::Debug for PromptScorer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptScorer")
            .field("config", &self.graph.config)
            .field("options", &self.graph.options)
            .finish_non_exhaustive()
    }
}

impl PromptScorer {
    /// Loads a model file of the architectures qwen3 and llama onto a device. What prompts need beside the weights is
    /// taken when they come: see [`scorer_memory_need`].
    ///
    /// # Errors
    /// An architecture, key or tensor that no graph here can use, named; options that the model does not have; a model
    /// that does not fit in memory, told before anything is allocated.
    pub fn load(
        file: &GgufFile,
        device: Arc<dyn Device>,
        options: ScorerOptions,
    ) -> Result<Self, ModelError> {
        let config = read_config(file)?;
        options.check(&config)?;
        memory::need(file, &config, &options, 0)
            .on(device.as_ref())
            .check()?;
        let mut rehearsal = WeightLoader::rehearsal(file, device.as_ref());
        load_weights(&mut rehearsal, &config)?;
        rehearsal.finish(config.architecture.name(), |tensor| {
            ["output.weight", "output_norm.weight", dense::ROPE_DIVISORS].contains(&tensor)
        })?;
        let state = LoadProgress {
            bytes_done: 0,
            bytes_total: 0,
        };
        let progress = &mut |_| {};
        let mut weights = WeightLoader::new(file, device.as_ref(), progress, state);
        weights = weights.expanding(options.exact);
        let (embedding, layers, rope) = load_weights(&mut weights, &config)?;
        let stage = all_layers(&config);
        let scratch = Scratch::new(device.as_ref(), &config, &stage, PASS_ROWS, 0)?;
        device.finish()?;
        let graph = Graph {
            device,
            config,
            options,
            embedding,
            layers,
            rope,
        };
        Ok(Self { graph, scratch })
    }

    /// Sizes and constants of the model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.graph.config
    }

    /// The importance of each token of a prompt to its end. `progress` is called now and then, and may stop it.
    ///
    /// # Errors
    /// No tokens, more than [`max_scored_tokens`], one outside the vocabulary; a prompt that does not fit in memory beside the
    /// weights; [`ModelError::ScoringStopped`]; the device failed.
    pub fn score(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(ScoreProgress) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        self.check(tokens)?;
        let weights = self
            .graph
            .tail_weights(&mut self.scratch, tokens, progress)?;
        Ok(smoothed(&weights, tokens.len()))
    }

    fn check(&self, tokens: &[u32]) -> Result<(), ModelError> {
        let segment = 0;
        if tokens.is_empty() {
            return Err(ModelError::EmptySegment { segment });
        }
        let limit = max_scored_tokens(&self.graph.config);
        if tokens.len() > limit {
            let wanted = tokens.len();
            return Err(ModelError::ContextOverflow {
                segment,
                limit,
                wanted,
            });
        }
        let vocab_size = self.graph.config.vocab_size;
        let outside = |token: &u32| *token as usize >= vocab_size;
        match tokens.iter().position(outside) {
            None => Ok(()),
            Some(index) => Err(ModelError::TokenOutOfRange {
                segment,
                index,
                token: tokens[index],
                vocab_size,
            }),
        }
    }
}

/// Tokens that a prompt can have which a model of these sizes scores.
#[must_use]
pub fn max_scored_tokens(config: &ModelConfig) -> usize {
    config.context_length.max(MAX_SCORED_TOKENS)
}

/// Sizes of a model that can score.
fn read_config(file: &GgufFile) -> Result<ModelConfig, ModelError> {
    let config = ModelConfig::read(file)?;
    match config.architecture {
        Architecture::Qwen3 | Architecture::Llama => Ok(config),
        Architecture::Qwen35 => Err(ModelError::UnknownArchitecture {
            path: file.path().to_owned(),
            expected: "qwen3, llama",
            got: config.architecture.name().to_owned(),
        }),
    }
}

fn load_weights(
    weights: &mut WeightLoader<'_>,
    config: &ModelConfig,
) -> Result<(Matrix, Vec<Layer>, Rope), ModelError> {
    let (v, e) = (config.vocab_size, config.hidden_size);
    let embedding = weights.matrix("token_embd.weight", v, e)?;
    let (layers, rope) = dense::load(weights, config, all_layers(config))?;
    Ok((embedding, layers, rope))
}

/// Mean over the rows of `weights`, \[rows, tokens\], and then over [`POOL`] tokens, of which there are fewer at the edges.
fn smoothed(weights: &[f32], tokens: usize) -> Vec<f32> {
    let rows = weights.len() / tokens;
    let score = |j: usize| {
        let column = (0..rows).map(|row| weights[row * tokens + j]);
        column.sum::<f32>() / rows as f32
    };
    let scores: Vec<f32> = (0..tokens).map(score).collect();
    let mean = |j: usize| {
        let near = &scores[j.saturating_sub(POOL / 2)..(j + POOL / 2 + 1).min(tokens)];
        near.iter().sum::<f32>() / near.len() as f32
    };
    (0..tokens).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_means_of_rows_and_then_of_neighbours() {
        // Two rows of twenty tokens; all weight on one of them.
        let mut weights = vec![0.0; 40];
        weights[10] = 13.0;
        weights[30] = 39.0;
        let smooth = smoothed(&weights, 20);
        // Mean 26 over 13 tokens, and over 10 to 13 near the end; nothing beyond six tokens away.
        assert_eq!(smooth[3], 0.0);
        assert_eq!(smooth[4], 26.0 / 11.0);
        assert_eq!(smooth[10], 2.0);
        assert_eq!(smooth[16], 26.0 / 10.0);
        assert_eq!(smooth[17], 0.0);
        assert_eq!(smoothed(&[1.0, 2.0], 2), [1.5, 1.5]);
    }
}
