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
    /// Of the last row only the likeliest token.
    LastBest,
    /// Of every row only the likeliest token.
    AllBest,
    /// Of the last row only so many of the likeliest tokens, and their logits.
    LastTop(usize),
    /// Of every row only so many of the likeliest tokens, and their logits.
    AllTop(usize),
}

impl LogitsWanted {
    /// The first row that is wanted, of `rows`.
    pub(crate) fn first(self, rows: usize) -> usize {
        match self {
            Self::None => rows,
            Self::Last | Self::LastBest | Self::LastTop(_) => rows - 1,
            Self::All | Self::AllBest | Self::AllTop(_) => 0,
        }
    }

    /// Whether the likeliest token is all that is wanted.
    pub(crate) fn is_best(self) -> bool {
        matches!(self, Self::LastBest | Self::AllBest)
    }

    /// How many of the likeliest tokens are all that is wanted.
    pub(crate) fn top(self) -> Option<usize> {
        match self {
            Self::LastTop(k) | Self::AllTop(k) => Some(k),
            _ => None,
        }
    }
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
    /// Layers whose output (residual stream, not normalised) is kept for all rows: see [`crate::Model::features`].
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
    /// The likeliest tokens, where no more was wanted: the lowest id of the largest logit.
    pub best: Vec<(LogitsRow, u32)>,
    /// The likeliest tokens and their logits, where no more were wanted: the likeliest first, equal ones by id.
    pub tops: Vec<(LogitsRow, Vec<(u32, f32)>)>,
}

/// What is known of the token after a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer<'a> {
    /// All logits, \[vocab\].
    Logits(&'a [f32]),
    /// The likeliest token.
    Best(u32),
    /// The likeliest tokens and their logits, the likeliest first.
    Top(&'a [(u32, f32)]),
}

impl Output {
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

    /// What was wanted of a node.
    #[must_use]
    pub fn answer(&self, segment: usize, node: usize) -> Option<Answer<'_>> {
        let origin = LogitsRow { segment, node };
        let best = self.best.iter().find(|(row, _)| *row == origin);
        let top = self.tops.iter().find(|(row, _)| *row == origin);
        match (best, top) {
            (Some((_, token)), _) => Some(Answer::Best(*token)),
            (_, Some((_, top))) => Some(Answer::Top(top)),
            _ => self.logits_of(segment, node).map(Answer::Logits),
        }
    }
}
