//! What goes into a forward pass and what comes out.

use kv_cache::SequenceId;

/// Rows of a segment that logits are wanted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitsWanted {
    /// No row.
    None,
    /// The last row.
    #[default]
    Last,
    /// Every row.
    All,
}

/// Nodes of one sequence.
#[derive(Clone, Debug)]
pub struct BatchSegment {
    /// Sequence that the nodes follow.
    pub sequence: SequenceId,
    /// Token of each node.
    pub tokens: Vec<u32>,
    /// Parent node of each node, -1 for the committed state; a parent comes before its child. Empty: a chain.
    pub parents: Vec<i32>,
    /// The nodes are a chain that is accepted already. Otherwise nothing becomes part of the sequence until
    /// [`crate::Model::commit`].
    pub advance: bool,
    /// Rows that logits are wanted for.
    pub logits: LogitsWanted,
}

/// Segments that are computed together; every sequence at most once.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The segments; their rows follow one another.
    pub segments: Vec<BatchSegment>,
    /// Layers whose output (residual stream, not normalised) is wanted for all rows.
    pub capture_layers: Vec<usize>,
}

/// Where a row of logits comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitsRow {
    /// Segment of the batch.
    pub segment: usize,
    /// Node of the segment.
    pub node: usize,
}

/// Results of a forward pass.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// \[wanted rows, vocab\].
    pub logits: Vec<f32>,
    /// Origin of each row of `logits`, in batch order.
    pub rows: Vec<LogitsRow>,
    /// Layer and its output \[N, E\], in the order of `capture_layers`.
    pub hidden: Vec<(usize, Vec<f32>)>,
}

impl Output {
    /// Features \[rows, layers E\] of rows of the batch, as a draft reads them: what was captured of a row side by side.
    #[must_use]
    pub fn features(&self, hidden_size: usize, rows: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let mut features = Vec::new();
        for row in rows {
            for (_, values) in &self.hidden {
                features.extend_from_slice(&values[row * hidden_size..][..hidden_size]);
            }
        }
        features
    }

    /// Logits \[vocab\] of a node, where they were wanted.
    #[must_use]
    pub fn logits_of(&self, segment: usize, node: usize) -> Option<&[f32]> {
        let row = self
            .rows
            .iter()
            .position(|r| *r == LogitsRow { segment, node })?;
        let vocab = self.logits.len() / self.rows.len();
        self.logits.get(row * vocab..(row + 1) * vocab)
    }
}
