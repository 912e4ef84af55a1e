//! What a forward pass is of: segments of sequences.

use std::fmt;

/// Rows of one sequence in the batch. Row `first_row + i` is node `i`.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// First row of the batch that belongs to it.
    pub first_row: usize,
    /// Parent node of each node (-1: the committed state); a parent comes before its child.
    pub parents: &'a [i32],
    /// Committed tokens before this segment. Node `i` is written to slot `committed_len + i`.
    pub committed_len: usize,
    /// Position of slot 0; not 0 where a context begins later, or its oldest pages were dropped.
    pub first_position: usize,
    /// Pages of the sequence: token slot `s` lies in page `pages[s / PAGE_TOKENS]`.
    pub pages: &'a [u32],
    /// Index of the recurrent state of the sequence.
    pub state_index: usize,
    /// The nodes are a chain that is accepted already: recurrent states move along with it.
    pub advance: bool,
    /// Places that a node's attention sees at most, the last of them its own; `None`: all. Windows of layers are beside this.
    pub window: Option<usize>,
}

/// Which nodes of its own segment a node sees. Committed slots are seen by all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// Itself and its ancestors; its position is the committed length and its depth.
    #[default]
    Ancestors,
    /// Every node; node `i` stands at position `committed_len + i` and parents are not looked at.
    All,
}

/// A forward pass over a batch, as far as a device can know it before its operations are called.
#[derive(Debug)]
pub struct Step<'a> {
    /// Ids that are embedded.
    pub tokens: &'a [u32],
    /// The segments that all operations of the step get.
    pub segments: &'a [Segment<'a>],
    /// What they say of visibility.
    pub visibility: Visibility,
    /// What else decides which operations are called, and with which buffers.
    pub variant: &'a dyn fmt::Debug,
}
