//! DFlash: a small transformer that says a whole block of tokens in one pass (arXiv 2602.06036; z-lab/dflash).
//!
//! The target's layer outputs of every accepted position, projected, are the context: each draft layer keeps keys and
//! values of them. A *draft block* is the newest token (the anchor), which the target has not seen yet, and masks after
//! it; its rows see the context and each other, and row `j` says the token at its own position. Embedding and head are
//! the target's.

mod attention;
mod config;
mod file;
mod gguf_keys;
mod graph;
mod hf_config;
mod load;
mod names;
mod safetensors_file;
mod said;
mod scratch;
mod weights;

pub use attention::DraftAttention;
pub use config::{DraftConfig, DraftOptions};
pub use file::DraftFile;
pub use load::{draft_memory_need, load_draft};
pub use names::DraftDialect;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use kernels::{Buffer, Device, PAGE_TOKENS, Segment};
use kv_cache::{Cache, SequenceId};
use speculative::Proposal;

use crate::dflash::graph::Graph;
use crate::error::ModelError;
use crate::features::{FeatureBlock, FeatureRows};
use crate::memory::WARM_UP_ROWS;

/// Far beyond any context; bounds what a peer can ask for.
const MAX_POSITION: usize = 1 << 30;

/// One sequence's part of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBlock {
    /// Sequence whose context is seen.
    pub sequence: SequenceId,
    /// Newest token, at the position after the context.
    pub anchor: u32,
    /// Positions wanted after the anchor. The draft block is computed whole either way.
    pub depth: usize,
}

/// A loaded draft and its sequences.
pub struct DraftModel {
    device: Arc<dyn Device>,
    config: DraftConfig,
    graph: Graph,
    cache: Cache,
    /// Position of slot 0 of each live sequence.
    first_positions: HashMap<SequenceId, usize>,
    /// Positions that a sequence keeps, whole pages.
    context_limit: usize,
    max_rows: usize,
}

impl std::fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl DraftModel {
    /// Sizes and constants.
    #[must_use]
    pub fn config(&self) -> &DraftConfig {
        &self.config
    }

    /// Sequences that could still be created.
    #[must_use]
    pub fn free_sequences(&self) -> usize {
        self.cache.free_sequences()
    }

    /// An empty sequence whose context begins at position 0.
    ///
    /// # Errors
    /// All sequences are in use.
    pub fn create_sequence(&mut self) -> Result<SequenceId, ModelError> {
        let id = self.cache.create(self.device.as_ref())?;
        self.first_positions.insert(id, 0);
        Ok(id)
    }

    /// Gives a sequence back.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn free_sequence(&mut self, id: SequenceId) -> Result<(), ModelError> {
        self.cache.free(id)?;
        self.first_positions.remove(&id);
        Ok(())
    }

    /// Positions of context that the sequence holds.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn context_len(&self, id: SequenceId) -> Result<usize, ModelError> {
        Ok(self.cache.len(id)?)
    }

    /// Position after the context: the next one to append, and the anchor's.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn next_position(&self, id: SequenceId) -> Result<usize, ModelError> {
        Ok(self.first_position(id) + self.cache.len(id)?)
    }

    /// Forgets the context and goes on with one that begins at `first_position`.
    ///
    /// # Errors
    /// The sequence does not exist, or no context could begin there.
    pub fn reset_sequence(
        &mut self,
        id: SequenceId,
        first_position: usize,
    ) -> Result<(), ModelError> {
        if first_position > MAX_POSITION {
            return Err(ModelError::ContextOverflow {
                segment: 0,
                limit: MAX_POSITION,
                wanted: first_position,
            });
        }
        self.cache.clear(self.device.as_ref(), id)?;
        self.first_positions.insert(id, first_position);
        Ok(())
    }

    /// Appends features \[n, taps E\] of the next `n` positions, any number of them. Where the context grows past its
    /// limit the oldest pages go; which ones depends on how many positions there were in all, not on how they came.
    ///
    /// # Errors
    /// The sequence does not exist, or the features are no whole rows.
    pub fn append(&mut self, id: SequenceId, features: &[f32]) -> Result<(), ModelError> {
        let row_len = self.config.feature_len();
        if !features.len().is_multiple_of(row_len) {
            return Err(ModelError::FeatureLen {
                row_len,
                got: features.len(),
            });
        }
        self.append_with(id, features.len() / row_len, |device, rows, to| {
            device.write(to, 0, &features[rows.start * row_len..rows.end * row_len]);
        })
    }

    /// [`DraftModel::append`] of rows that lie on the device already.
    ///
    /// # Errors
    /// The sequence does not exist, or the features are no rows of the model's.
    pub fn append_rows(
        &mut self,
        id: SequenceId,
        features: FeatureRows<'_>,
    ) -> Result<(), ModelError> {
        let row_len = self.config.feature_len();
        if features.row_len() != row_len {
            return Err(ModelError::FeatureLen {
                row_len,
                got: features.row_len(),
            });
        }
        self.append_with(id, features.num_rows(), |_, rows, to| {
            to.copy_from(0, features.slice(rows).span());
        })
    }

    /// Room on the device for features of `num_rows` positions.
    ///
    /// # Errors
    /// There is no memory.
    pub fn feature_block(&self, num_rows: usize) -> Result<FeatureBlock, ModelError> {
        FeatureBlock::new(self.device.as_ref(), num_rows, self.config.feature_len())
    }

    /// Appends `num_rows` positions; `fill` puts some of their features into the graph's buffer.
    fn append_with(
        &mut self,
        id: SequenceId,
        num_rows: usize,
        fill: impl Fn(&dyn Device, Range<usize>, &mut Buffer),
    ) -> Result<(), ModelError> {
        let mut next = self.make_room(id, num_rows)?;
        while next < num_rows {
            let rows = next..num_rows.min(next + self.max_rows);
            next = rows.end;
            let num_rows = rows.len();
            self.cache.reserve(id, num_rows)?;
            let parents = chain(num_rows);
            let segment = self.segment(id, 0, &parents)?;
            let pages = self.cache.pages(id)?.to_vec();
            let segment = Segment {
                pages: &pages,
                ..segment
            };
            let device = self.device.as_ref();
            fill(device, rows, self.graph.features_mut());
            self.graph
                .append(device, &self.config, &mut self.cache, &segment);
            self.cache.advance(id, num_rows)?;
        }
        Ok(())
    }

    /// Drops the pages that the next `num_rows` positions push out; the number of those rows that would go with them.
    fn make_room(&mut self, id: SequenceId, num_rows: usize) -> Result<usize, ModelError> {
        let len = self.cache.len(id)?;
        let over = (len + num_rows).saturating_sub(self.context_limit);
        let dropped = over.next_multiple_of(PAGE_TOKENS);
        let first_position = self.first_position(id) + dropped;
        if dropped >= len && dropped > 0 {
            self.reset_sequence(id, first_position)?;
            return Ok(dropped - len);
        }
        self.cache.drop_oldest(id, dropped / PAGE_TOKENS)?;
        self.first_positions.insert(id, first_position);
        Ok(0)
    }

    /// The `top_k` likeliest tokens of positions after the anchors, all draft blocks in one forward pass.
    ///
    /// # Errors
    /// A sequence does not exist or comes twice, an anchor is outside the vocabulary, or a depth is none of the model's:
    /// nothing was computed then. Or the device failed, which is of no use any more.
    pub fn propose(
        &mut self,
        blocks: &[DraftBlock],
        top_k: usize,
    ) -> Result<Vec<Proposal>, ModelError> {
        let limit = self.config.max_depth();
        if let Some(block) = blocks
            .iter()
            .find(|b| !(1..=limit).contains(&b.depth) || top_k == 0)
        {
            return Err(ModelError::DraftDepth {
                depth: block.depth,
                top_k,
                limit,
            });
        }
        self.run(blocks)?;
        let rows: Vec<usize> = blocks
            .iter()
            .enumerate()
            .flat_map(|(i, b)| (1..=b.depth).map(move |row| (i, row)))
            .map(|(i, row)| i * self.config.block_size + row)
            .collect();
        let top_k = top_k.min(self.config.vocab_size);
        let device = self.device.as_ref();
        let (ids, log_probs) = self.graph.top_k(device, &self.config, &rows, top_k);
        // What was read is nothing where the device failed.
        device.finish()?;
        let (mut ids, mut log_probs) = (ids.as_slice(), log_probs.as_slice());
        let mut proposals = Vec::with_capacity(blocks.len());
        for block in blocks {
            let (own_ids, rest) = ids.split_at(block.depth * top_k);
            let (own_log_probs, rest_log_probs) = log_probs.split_at(block.depth * top_k);
            (ids, log_probs) = (rest, rest_log_probs);
            proposals.push(Proposal {
                top_k,
                ids: own_ids.to_vec(),
                log_probs: own_log_probs.to_vec(),
            });
        }
        Ok(proposals)
    }

    /// Goes once through what proposals of `top_k` tokens need, where the device compiles its kernels when they are first
    /// called.
    ///
    /// # Errors
    /// A kernel that does not compile, or what else the device has against it.
    pub fn warm_up(&mut self, top_k: usize) -> Result<(), ModelError> {
        if !self.device.compiles_kernels() {
            return Ok(());
        }
        let most = self.max_rows.min(self.context_limit);
        let sizes = WARM_UP_ROWS.into_iter().chain([most]);
        for (nth, rows) in sizes.filter(|rows| *rows <= most).enumerate() {
            // Of a block's rows, and then of several features: both kinds of products that there are.
            if nth == 2 {
                self.device.compile_for_rows(most);
            }
            let sequence = self.create_sequence()?;
            self.append(sequence, &vec![0.0; rows * self.config.feature_len()])?;
            let block = DraftBlock {
                sequence,
                anchor: 0,
                depth: self.config.max_depth(),
            };
            self.propose(&[block], top_k)?;
            self.free_sequence(sequence)?;
        }
        Ok(())
    }

    /// All logits \[B - 1, V\] of one draft block, for tests and probes.
    ///
    /// # Errors
    /// As [`DraftModel::propose`].
    pub fn block_logits(&mut self, id: SequenceId, anchor: u32) -> Result<Vec<f32>, ModelError> {
        self.run_one(id, anchor)?;
        let (rows, vocab) = (1..self.config.block_size, self.config.vocab_size);
        let mut logits = Vec::with_capacity(rows.len() * vocab);
        let device = self.device.as_ref();
        let rows: Vec<usize> = rows.collect();
        self.graph.head(device, &self.config, &rows, |buffer, n| {
            let mut values = vec![0.0; n * vocab];
            device.read(buffer, 0, &mut values);
            logits.extend(values);
        });
        Ok(logits)
    }

    /// Rows \[B, E\] of one draft block that the head reads, its norm included, for tests.
    ///
    /// # Errors
    /// As [`DraftModel::propose`].
    pub fn block_hidden(&mut self, id: SequenceId, anchor: u32) -> Result<Vec<f32>, ModelError> {
        self.run_one(id, anchor)?;
        let e = self.config.hidden_size;
        let device = self.device.as_ref();
        let (mut h, gamma) = self.graph.stream(device, self.config.block_size * e);
        for row in h.chunks_exact_mut(e) {
            let square: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
            let inverse = 1.0 / (square / e as f64 + f64::from(self.config.norm_eps)).sqrt();
            for (value, gamma) in row.iter_mut().zip(&gamma) {
                *value = (f64::from(*value) * inverse) as f32 * gamma;
            }
        }
        Ok(h)
    }

    fn run_one(&mut self, sequence: SequenceId, anchor: u32) -> Result<(), ModelError> {
        self.run(&[DraftBlock {
            sequence,
            anchor,
            depth: self.config.max_depth(),
        }])
    }

    /// Computes whole draft blocks, checked first.
    fn run(&mut self, blocks: &[DraftBlock]) -> Result<(), ModelError> {
        let size = self.config.block_size;
        let mut seen = HashSet::new();
        let mut tokens = Vec::with_capacity(blocks.len() * size);
        for (number, block) in blocks.iter().enumerate() {
            self.cache.len(block.sequence)?;
            if !seen.insert(block.sequence) {
                return Err(ModelError::RepeatedSequence { segment: number });
            }
            let vocab_size = self.config.vocab_size;
            if block.anchor as usize >= vocab_size {
                return Err(ModelError::TokenOutOfRange {
                    segment: number,
                    index: 0,
                    token: block.anchor,
                    vocab_size,
                });
            }
            tokens.push(block.anchor);
            tokens.resize((number + 1) * size, self.config.mask_token_id);
        }
        for block in blocks {
            self.cache.reserve(block.sequence, size)?;
        }
        let parents = chain(size);
        let pages: Vec<Vec<u32>> = blocks
            .iter()
            .map(|block| Ok(self.cache.pages(block.sequence)?.to_vec()))
            .collect::<Result<_, ModelError>>()?;
        let mut segments = Vec::with_capacity(blocks.len());
        for (number, (block, pages)) in blocks.iter().zip(&pages).enumerate() {
            let segment = self.segment(block.sequence, number * size, &parents)?;
            segments.push(Segment { pages, ..segment });
        }
        let device = self.device.as_ref();
        self.graph
            .blocks(device, &self.config, &mut self.cache, &segments, &tokens);
        Ok(())
    }

    /// Rows that follow a sequence's context; without its pages.
    fn segment<'a>(
        &self,
        id: SequenceId,
        first_row: usize,
        parents: &'a [i32],
    ) -> Result<Segment<'a>, ModelError> {
        Ok(Segment {
            first_row,
            parents,
            committed_len: self.cache.len(id)?,
            first_position: self.first_position(id),
            pages: &[],
            state_index: 0,
            advance: false,
            window: None,
        })
    }

    fn first_position(&self, id: SequenceId) -> usize {
        self.first_positions.get(&id).copied().unwrap_or(0)
    }
}

/// Parents of rows that follow one another.
fn chain(num_rows: usize) -> Vec<i32> {
    (-1..).take(num_rows).collect()
}
