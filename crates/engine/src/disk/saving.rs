//! From memory to files.
//!
//! A prefix is written when it was not used for a while: one that a conversation has left behind by then never is, however quick
//! its turns follow each other. What files hold already is not written again, and one at a time is on its way.

use std::time::{Duration, Instant};

use models::{Model, ModelError};
use prefix_store::{Part, Save, Wanted};

use crate::disk::{DiskTier, Progress, ROUND_BYTES, state_part};
use crate::prefixes::{Due, PrefixId, Prefixes};

/// A prefix on its way to the files.
#[derive(Debug)]
pub(super) struct Saving {
    prefix: PrefixId,
    save: Save,
}

impl DiskTier {
    /// Goes on with writing; prefixes that `are_used` are not begun with.
    pub fn save_some(
        &mut self,
        model: &Model,
        prefixes: &mut Prefixes,
        are_used: impl Fn(PrefixId) -> bool,
    ) -> Progress {
        let settle = self.config.settle;
        if self.saving.is_none() && !self.begin_save(prefixes, settle, are_used) {
            return Progress::Waits;
        }
        match self.give_some(model, prefixes) {
            // There may be another one to begin with.
            Progress::Ended => Progress::Some,
            progress => progress,
        }
    }

    /// When the next prefix is to be written, if nothing happens before.
    pub fn next_save(
        &self,
        prefixes: &Prefixes,
        are_used: impl Fn(PrefixId) -> bool,
    ) -> Option<Instant> {
        if self.saving.is_some() {
            return None;
        }
        match prefixes.due(self.config.settle, self.config.min_tokens, are_used) {
            Due::At(time) => Some(time),
            Due::Now(_) => Some(Instant::now()),
            Due::Never => None,
        }
    }

    /// Writes what is not in files yet, until it is too late.
    pub fn flush(&mut self, model: &Model, prefixes: &mut Prefixes, deadline: Instant) {
        let none_used = |_| false;
        while self.saving.is_some()
            || prefixes.due(Duration::ZERO, self.config.min_tokens, none_used) != Due::Never
        {
            if Instant::now() >= deadline {
                tracing::info!("the time to shut down ended before all prefixes were written");
                return;
            }
            if self.saving.is_none() {
                self.begin_save(prefixes, Duration::ZERO, none_used);
            }
            if self.give_some(model, prefixes) == Progress::Waits {
                self.shared.wait_for_store(deadline);
            }
        }
    }

    fn begin_save(
        &mut self,
        prefixes: &mut Prefixes,
        settle: Duration,
        are_used: impl Fn(PrefixId) -> bool,
    ) -> bool {
        let Due::Now(prefix) = prefixes.due(settle, self.config.min_tokens, are_used) else {
            return false;
        };
        let Some(tokens) = prefixes.tokens(prefix) else {
            return false;
        };
        let features = prefixes.features(prefix).and_then(|kept| kept.shape());
        let save = self.store.save(tokens, features);
        prefixes.note_saving(Some(prefix));
        self.saving = Some(Saving { prefix, save });
        true
    }

    fn give_some(&mut self, model: &Model, prefixes: &mut Prefixes) -> Progress {
        let Some(Saving { prefix, save }) = &mut self.saving else {
            return Progress::Ended;
        };
        let mut bytes = 0;
        loop {
            let part = match save.wanted() {
                Wanted::Part(part) => part,
                Wanted::Later => return Progress::Waits,
                Wanted::Ended { .. } => break,
            };
            match read(model, prefixes, *prefix, part) {
                Ok(Some(values)) => {
                    bytes += values.len();
                    save.give(values);
                }
                given_up => {
                    // It made room meanwhile, or the model is gone, which the next step says.
                    let error = given_up.err();
                    tracing::debug!(?error, "a prefix is not written to its end");
                    break;
                }
            }
            if bytes >= ROUND_BYTES {
                return Progress::Some;
            }
        }
        // Not tried again, however it ended.
        prefixes.note_saving(None);
        prefixes.note_saved(*prefix);
        self.saving = None;
        Progress::Ended
    }
}

/// A part of a prefix; `None` where that is gone.
fn read(
    model: &Model,
    prefixes: &Prefixes,
    prefix: PrefixId,
    part: Part,
) -> Result<Option<Vec<u8>>, ModelError> {
    let features = |row, num_rows| prefixes.features(prefix)?.read(row..row + num_rows);
    match (part, state_part(part)) {
        (Part::Features { row, num_rows }, _) => Ok(features(row, num_rows)),
        (_, Some(part)) => match prefixes.sequence(prefix) {
            Some(sequence) => model.read_part(sequence, part).map(Some),
            None => Ok(None),
        },
        (_, None) => Ok(None),
    }
}
