//! A batch, checked in full before anything is computed.

use std::collections::HashSet;

use kernels::Segment;
use kv_cache::{Cache, CacheError, SequenceId};

use crate::batch::{Batch, BatchSegment, LogitsRow};
use crate::error::ModelError;
use crate::hparams::ModelConfig;
use crate::window::DecodeWindow;

/// One segment, with everything the device asks for.
#[derive(Debug)]
pub(crate) struct PlannedSegment {
    pub sequence: SequenceId,
    pub first_row: usize,
    pub parents: Vec<i32>,
    pub advance: bool,
    window: Option<usize>,
    committed_len: usize,
    pages: Vec<u32>,
    state_index: usize,
}

/// A checked batch whose sequences hold the pages it needs.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub tokens: Vec<u32>,
    pub segments: Vec<PlannedSegment>,
    /// Origin of each row of logits.
    pub wanted: Vec<LogitsRow>,
    /// The same as rows of the batch.
    pub wanted_rows: Vec<usize>,
    /// Origin of each row that only the likeliest token is wanted of.
    pub best: Vec<LogitsRow>,
    /// The same as rows of the batch.
    pub best_rows: Vec<usize>,
    /// Origin of each row that only some of the likeliest tokens are wanted of.
    pub top: Vec<LogitsRow>,
    /// The same as rows of the batch.
    pub top_rows: Vec<usize>,
    /// How many are wanted of each.
    pub top_k: Vec<usize>,
}

impl Plan {
    /// `end`: the layer after the last one that can be captured.
    pub(crate) fn new(
        batch: &Batch,
        config: &ModelConfig,
        end: usize,
        cache: &mut Cache,
        window: &DecodeWindow,
        max_rows: usize,
    ) -> Result<Self, ModelError> {
        check_batch(batch, config, end, max_rows)?;
        let mut pages_to_add = 0;
        let mut parents = Vec::with_capacity(batch.segments.len());
        for (number, segment) in batch.segments.iter().enumerate() {
            parents.push(checked_parents(number, segment)?);
            let nodes = segment.tokens.len();
            // A tree is wider than it is long: its nodes take more rows of the cache than positions.
            let wanted = cache
                .len(segment.sequence)?
                .saturating_add(height(&parents[number]));
            if wanted > config.context_length {
                return Err(ModelError::ContextOverflow {
                    segment: number,
                    limit: config.context_length,
                    wanted,
                });
            }
            pages_to_add += cache.pages_to_add(segment.sequence, nodes)?;
        }
        let free = cache.free_pages();
        if pages_to_add > free {
            let missing = pages_to_add - free;
            return Err(CacheError::OutOfPages {
                needed: pages_to_add,
                free,
                missing,
            }
            .into());
        }
        let mut plan = Self::default();
        for ((number, segment), parents) in batch.segments.iter().enumerate().zip(parents) {
            cache.reserve(segment.sequence, segment.tokens.len())?;
            let window = window.of(segment.sequence, cache.len(segment.sequence)?);
            plan.push(number, segment, parents, window, cache)?;
        }
        Ok(plan)
    }

    fn push(
        &mut self,
        number: usize,
        segment: &BatchSegment,
        parents: Vec<i32>,
        window: Option<usize>,
        cache: &Cache,
    ) -> Result<(), ModelError> {
        let first_row = self.tokens.len();
        let nodes = segment.tokens.len();
        let top = segment.logits.top();
        let (origins, rows) = match (segment.logits.is_best(), top) {
            (true, _) => (&mut self.best, &mut self.best_rows),
            (_, Some(_)) => (&mut self.top, &mut self.top_rows),
            _ => (&mut self.wanted, &mut self.wanted_rows),
        };
        for node in segment.logits.first(nodes)..nodes {
            origins.push(LogitsRow {
                segment: number,
                node,
            });
            rows.push(first_row + node);
            self.top_k.extend(top);
        }
        self.tokens.extend_from_slice(&segment.tokens);
        self.segments.push(PlannedSegment {
            sequence: segment.sequence,
            first_row,
            parents,
            advance: segment.advance,
            window,
            committed_len: cache.len(segment.sequence)?,
            pages: cache.pages(segment.sequence)?.to_vec(),
            state_index: cache.state_index(segment.sequence)?,
        });
        Ok(())
    }

    /// Whether a segment waits for a commit.
    pub(crate) fn verifies(&self) -> bool {
        self.segments.iter().any(|segment| !segment.advance)
    }

    /// Whether something of it comes to the host.
    pub(crate) fn is_read(&self) -> bool {
        let rows = [&self.wanted_rows, &self.best_rows, &self.top_rows];
        rows.iter().any(|rows| !rows.is_empty())
    }

    /// How many of the likeliest tokens are wanted of its first row, where no more is wanted of it.
    pub(crate) fn sought(&self, vocab_size: usize) -> Option<usize> {
        match (&self.best_rows[..], &self.top_rows[..]) {
            ([0, ..], _) => Some(1),
            (_, [0, ..]) => Some(self.top_k[0].min(vocab_size)),
            _ => None,
        }
    }

    /// The device's view.
    pub(crate) fn device_segments(&self) -> Vec<Segment<'_>> {
        self.segments
            .iter()
            .map(|segment| Segment {
                first_row: segment.first_row,
                parents: &segment.parents,
                committed_len: segment.committed_len,
                first_position: 0,
                pages: &segment.pages,
                state_index: segment.state_index,
                advance: segment.advance,
                window: segment.window,
            })
            .collect()
    }
}

fn check_batch(
    batch: &Batch,
    config: &ModelConfig,
    end: usize,
    max_rows: usize,
) -> Result<(), ModelError> {
    if batch.segments.is_empty() {
        return Err(ModelError::EmptySegment { segment: 0 });
    }
    let rows: usize = batch
        .segments
        .iter()
        .map(|segment| segment.tokens.len())
        .sum();
    if rows > max_rows {
        return Err(ModelError::TooManyRows {
            limit: max_rows,
            got: rows,
        });
    }
    let num_layers = end;
    if let Some(&layer) = batch
        .capture_layers
        .iter()
        .find(|&&layer| layer >= num_layers)
    {
        return Err(ModelError::CaptureLayer { layer, num_layers });
    }
    let mut seen = HashSet::new();
    for (number, segment) in batch.segments.iter().enumerate() {
        if segment.tokens.is_empty() {
            return Err(ModelError::EmptySegment { segment: number });
        }
        if !seen.insert(segment.sequence) {
            return Err(ModelError::RepeatedSequence { segment: number });
        }
        let vocab_size = config.vocab_size;
        if let Some(index) = segment
            .tokens
            .iter()
            .position(|&token| token as usize >= vocab_size)
        {
            let token = segment.tokens[index];
            return Err(ModelError::TokenOutOfRange {
                segment: number,
                index,
                token,
                vocab_size,
            });
        }
    }
    Ok(())
}

/// Nodes on the longest path.
fn height(parents: &[i32]) -> usize {
    let mut heights = Vec::with_capacity(parents.len());
    for &parent in parents {
        let above = usize::try_from(parent).map_or(0, |parent| heights[parent]);
        heights.push(above + 1);
    }
    heights.into_iter().max().unwrap_or(0)
}

fn checked_parents(number: usize, segment: &BatchSegment) -> Result<Vec<i32>, ModelError> {
    let nodes = segment.tokens.len();
    let refuse = |what: String| {
        Err(ModelError::Parents {
            segment: number,
            what,
        })
    };
    if segment.parents.is_empty() {
        return Ok((-1..).take(nodes).collect());
    }
    if segment.parents.len() != nodes {
        return refuse(format!(
            "{} parents for {nodes} nodes",
            segment.parents.len()
        ));
    }
    for (&parent, node) in segment.parents.iter().zip(0i32..) {
        if parent < -1 || parent >= node {
            return refuse(format!("parent {parent} of node {node} is not before it"));
        }
        if segment.advance && parent != node - 1 {
            return refuse(format!("parent {parent} of node {node} makes no chain"));
        }
    }
    Ok(segment.parents.clone())
}
