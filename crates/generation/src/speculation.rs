//! What speculation did and took.

/// Speculation in one answer. A step that serves several answers counts in full for each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpeculationTimings {
    /// Steps that verified a draft.
    pub rounds: u32,
    /// Draft tokens verified.
    pub draft_tokens: u32,
    /// Draft tokens accepted.
    pub accepted_tokens: u32,
    /// Milliseconds that the draft computed.
    pub draft_ms: f64,
    /// Milliseconds on the way to the draft and back, but for commits, which lie beside it.
    pub channel_ms: f64,
    /// Milliseconds of building trees.
    pub tree_ms: f64,
    /// Milliseconds of the target's passes over drafts.
    pub verify_ms: f64,
    /// Milliseconds of choosing tokens and committing them.
    pub commit_ms: f64,
}

/// Speculation since a worker's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Whether a draft is there.
    pub draft_attached: bool,
    /// Drafts that were lost.
    pub drafts_lost: u64,
    /// Proposals that did not come in time.
    pub draft_timeouts: u64,
    /// Drafts verified; several in a step that serves several sequences.
    pub rounds: u64,
    /// Tokens decoded without a draft.
    pub plain_tokens: u64,
    /// Draft tokens verified.
    pub draft_tokens: u64,
    /// Draft tokens accepted.
    pub accepted_tokens: u64,
    /// Rounds by the number of draft tokens accepted, from 0 on.
    pub rounds_by_accepted: Vec<u64>,
    /// Microseconds that drafts computed.
    pub draft_us: u64,
    /// Microseconds on the way to the draft and back, but for commits, which lie beside it.
    pub channel_us: u64,
    /// Microseconds of building trees.
    pub tree_us: u64,
    /// Microseconds of the target's passes over drafts.
    pub verify_us: u64,
    /// Microseconds of choosing tokens and committing them.
    pub commit_us: u64,
    /// Tokens held against plain decoding.
    pub checked_tokens: u64,
    /// Those that plain decoding would have chosen otherwise, or from other logits; anything but 0 is a bug.
    pub mismatched_tokens: u64,
}
