//! Which sequence of which target has a context in the draft model.

use std::collections::HashMap;

use models::{DraftModel, ModelError, SequenceId};

/// A sequence of a session, as its target numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub session: u64,
    pub sequence: u64,
}

/// The contexts there are. A sequence gets one with its first features; where all are taken, the one that was not used
/// for longest goes, and its target may feed it anew.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    live: HashMap<Key, Context>,
    /// Grows with every use.
    clock: u64,
}

#[derive(Debug)]
struct Context {
    id: SequenceId,
    last_used: u64,
}

/// What taking features came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fed {
    /// Another sequence had to go.
    pub evicted: bool,
}

impl Contexts {
    /// Sequences with a context.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Appends features \[n, feature_len\] of positions from `first_position` on. Where they do not continue the
    /// context, a new one begins there.
    ///
    /// # Errors
    /// The model cannot take them. The sequence has no context then.
    pub fn feed(
        &mut self,
        model: &mut DraftModel,
        key: Key,
        first_position: usize,
        rows: &[f32],
    ) -> Result<Fed, ModelError> {
        let (id, evicted) = self.find_or_create(model, key)?;
        let append = |model: &mut DraftModel| {
            if model.next_position(id)? != first_position {
                model.reset_sequence(id, first_position)?;
            }
            model.append(id, rows)
        };
        match append(model) {
            Ok(()) => Ok(Fed { evicted }),
            Err(error) => {
                self.forget(model, key);
                Err(error)
            }
        }
    }

    fn find_or_create(
        &mut self,
        model: &mut DraftModel,
        key: Key,
    ) -> Result<(SequenceId, bool), ModelError> {
        if let Some(id) = self.find(key) {
            return Ok((id, false));
        }
        let evicted = model.free_sequences() == 0 && self.evict(model);
        let id = model.create_sequence()?;
        let last_used = self.tick();
        self.live.insert(key, Context { id, last_used });
        Ok((id, evicted))
    }

    /// The sequence's context, which counts as a use.
    pub fn find(&mut self, key: Key) -> Option<SequenceId> {
        let now = self.tick();
        let context = self.live.get_mut(&key)?;
        context.last_used = now;
        Some(context.id)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn evict(&mut self, model: &mut DraftModel) -> bool {
        let oldest = self
            .live
            .iter()
            .min_by_key(|(_, context)| context.last_used);
        let Some(key) = oldest.map(|(key, _)| *key) else {
            return false;
        };
        tracing::debug!(
            sequence = key.sequence,
            session = key.session,
            "context evicted"
        );
        self.forget(model, key);
        true
    }

    /// Frees a sequence's context, if it has one.
    pub fn forget(&mut self, model: &mut DraftModel, key: Key) {
        if let Some(context) = self.live.remove(&key)
            && let Err(error) = model.free_sequence(context.id)
        {
            tracing::error!(%error, sequence = key.sequence, "a context could not be freed");
        }
    }

    /// Frees all contexts of a session.
    pub fn forget_session(&mut self, model: &mut DraftModel, session: u64) {
        let of_session = |key: &&Key| key.session == session;
        let keys: Vec<Key> = self.live.keys().filter(of_session).copied().collect();
        for key in keys {
            self.forget(model, key);
        }
    }
}
