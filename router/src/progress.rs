//! How far a request is before its first token comes.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use worker_api::{CompressPhase, CompressProgress};

/// How far a request is. Written where it is worked on, read where it is told; clones are of the same request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<Mutex<Option<Stage>>>);

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The prompt is made shorter.
    Compressing(CompressProgress),
    /// The target reads the prompt.
    Prefilling { cached: u32, done: u32, total: u32 },
}

impl Progress {
    pub fn compressing(&self, so_far: CompressProgress) {
        self.set(Some(Stage::Compressing(so_far)));
    }

    pub fn set(&self, stage: Option<Stage>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    pub fn get(&self) -> Option<Stage> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage {
    /// What goes on, in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compressing(so_far) => match so_far.phase {
                CompressPhase::Waiting => "compression waits",
                CompressPhase::Loading => "compression loads",
                CompressPhase::Scoring => "compression",
            },
            Self::Prefilling { .. } => "prefill",
        }
    }

    /// How much of it is done, of how much.
    pub fn so_far(self) -> (u64, u64) {
        match self {
            Self::Compressing(so_far) => (so_far.done, so_far.total),
            Self::Prefilling { done, total, .. } => (done.into(), total.into()),
        }
    }

    /// Prompt tokens that were cached, as far as is known.
    pub fn cached(self) -> u64 {
        match self {
            Self::Compressing(_) => 0,
            Self::Prefilling { cached, .. } => cached.into(),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, total) = self.so_far();
        write!(f, "{} {done}/{total}", self.name())
    }
}
