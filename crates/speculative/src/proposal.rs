//! What a draft proposes.

/// The most likely tokens of each position after the anchor, independent of each other: what one draft block says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Tokens per position, K.
    pub top_k: usize,
    /// \[depth, K\], the likeliest first.
    pub ids: Vec<u32>,
    /// \[depth, K\]: log-probabilities over the whole vocabulary.
    pub log_probs: Vec<f32>,
}

impl Proposal {
    /// Positions after the anchor.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.ids.len().checked_div(self.top_k).unwrap_or(0)
    }
}
