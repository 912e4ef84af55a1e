//! The port to a draft model, wherever it runs.
//!
//! No call blocks for longer than it is told to: a draft that hangs costs its patience, not the answer.

use std::fmt::Debug;
use std::time::Duration;

use models::FeatureRows;
use speculative::Proposal;

/// What a draft wants to see and can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftShape {
    /// Target layers whose output it reads, 0-based; a feature row is their outputs one after the other.
    pub capture_layers: Vec<usize>,
    /// Positions after the anchor that a proposal can have.
    pub depth: usize,
    /// Tokens per position that a proposal can have.
    pub max_top_k: usize,
}

/// What follows a sequence's newest token?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The newest token: drawn, but not fed to the target yet.
    pub anchor: u32,
    /// Its position. The draft has seen the features of all positions before it.
    pub position: usize,
    /// Positions wanted.
    pub depth: usize,
    /// Tokens wanted per position.
    pub top_k: usize,
}

/// An answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq)]
pub struct Drafted {
    /// Of which sequence.
    pub sequence: u64,
    /// Position of the anchor that was asked with.
    pub position: usize,
    /// What may follow; without any position where the draft cannot say.
    pub proposal: Proposal,
    /// What computing it took, without the ways there and back.
    pub draft_time: Duration,
}

/// The draft is gone, for this reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DrafterError(pub String);

/// A draft model. Any error means that it is gone; the engine lets go of it and decodes without.
pub trait Drafter: Debug + Send {
    /// What it wants to see and can say.
    fn shape(&self) -> &DraftShape;

    /// Gives the features, rows of taps * E values, of the accepted positions from `first_position` on. Positions that do not
    /// continue what it has make it begin a new context there. How many rows were taken: fewer where it is behind.
    /// Never blocks.
    ///
    /// # Errors
    /// The draft is gone.
    fn feed(
        &mut self,
        sequence: u64,
        first_position: usize,
        rows: FeatureRows<'_>,
    ) -> Result<usize, DrafterError>;

    /// Asks for a proposal. `false`: there is no room now. Never blocks.
    ///
    /// # Errors
    /// The draft is gone.
    fn ask(&mut self, sequence: u64, ask: Ask) -> Result<bool, DrafterError>;

    /// The next answer, of any sequence; waits at most `patience` for it.
    ///
    /// # Errors
    /// The draft is gone.
    fn receive(&mut self, patience: Duration) -> Result<Option<Drafted>, DrafterError>;

    /// Says that a sequence has ended. `false`: there is no room now. Never blocks.
    ///
    /// # Errors
    /// The draft is gone.
    fn forget(&mut self, sequence: u64) -> Result<bool, DrafterError>;
}
