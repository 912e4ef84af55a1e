//! Patience as a point in time.

use std::time::{Duration, Instant};

/// When patience ends.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// `patience` from now; a time beyond what the clock can say never comes.
    #[must_use]
    pub fn after(patience: Duration) -> Self {
        Self(Instant::now().checked_add(patience))
    }

    /// What is left of it.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |end| {
            end.saturating_duration_since(Instant::now())
        })
    }
}
