//! Which prefixes files are to have.

use std::time::{Duration, Instant};

use crate::prefixes::{Prefix, PrefixId, Prefixes};

/// The prefix that files are to have next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// It is this one's turn.
    Now(PrefixId),
    /// One will have rested for long enough then.
    At(Instant),
    /// There is none.
    Never,
}

impl Prefixes {
    /// Which prefix of `min_tokens` tokens or more is to be written next: one that a text may go on from, has not been used for
    /// `settle`, and is not in files. What only led to a longer one is not worth it.
    pub fn due(
        &self,
        settle: Duration,
        min_tokens: usize,
        are_used: impl Fn(PrefixId) -> bool,
    ) -> Due {
        let is_wanted = |prefix: &&Prefix| {
            !prefix.is_saved
                && !prefix.is_step()
                && prefix.tokens.len() >= min_tokens
                && !are_used(prefix.id)
        };
        let wanted = self.kept.iter().filter(is_wanted);
        let first = wanted.min_by_key(|prefix| prefix.rests_since);
        match first.map(|prefix| (prefix.id, prefix.rests_since + settle)) {
            Some((id, time)) if time <= Instant::now() => Due::Now(id),
            Some((_, time)) => Due::At(time),
            None => Due::Never,
        }
    }

    /// Notes which prefix is being written: it is last to make room.
    pub fn note_saving(&mut self, id: Option<PrefixId>) {
        self.saving = id;
    }

    /// Notes that files have a prefix, or cannot be given it.
    pub fn note_saved(&mut self, id: PrefixId) {
        if let Some(prefix) = self.kept.iter_mut().find(|prefix| prefix.id == id) {
            prefix.is_saved = true;
        }
    }
}
