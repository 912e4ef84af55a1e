//! One speculative round, for those who watch.

/// A draft that was verified, and what became of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundReport {
    /// Names the sequence, in this worker and until it ends.
    pub sequence: u64,
    /// Position of the anchor in it, 0-based.
    pub position: u32,
    /// The newest token before the round: node 0, the root of the tree.
    pub anchor: u32,
    /// \[N\]: draft tokens; `tokens[n - 1]` is that of node n.
    pub tokens: Vec<u32>,
    /// \[N\]: parent of each of these nodes, which comes before it.
    pub parents: Vec<u32>,
    /// \[N\]: natural logarithm of the draft's probability of everything from the root to the node.
    pub log_probs: Vec<f32>,
    /// Accepted nodes from the root on, which is not among them.
    pub accepted: Vec<u32>,
    /// The target's own tokens: those of the accepted nodes, and one more.
    pub chosen: Vec<u32>,
    /// Sequences in the step that verified it.
    pub step_sequences: u32,
    /// What the round took.
    pub stages: RoundStages,
}

/// Microseconds of a round's stages. A step and a draft's pass that serve several sequences count in full for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundStages {
    /// The draft's own pass.
    pub draft_us: u64,
    /// The way to the draft and back, but for the commit, which lies beside it and the draft's pass.
    pub channel_us: u64,
    /// Building the tree.
    pub tree_us: u64,
    /// The target's pass over it.
    pub verify_us: u64,
    /// Choosing tokens and committing them.
    pub commit_us: u64,
}
