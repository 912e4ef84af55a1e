//! Which sequence of which target has a context in the draft model.
//!
//! Features wait until they are many or a question needs them: one pass over many rows costs little more than one over a
//! single row, and a target that decodes plainly for a while is not slowed down by a draft that computes for nothing.

use std::collections::HashMap;

use models::{DraftModel, FeatureBlock, FeatureRows, ModelError, SequenceId};

/// Rows that wait at most: about as many as one pass takes on at a time, and not less than a message has.
const MAX_PENDING_ROWS: usize = 64;

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
    /// Memory of contexts that are gone.
    spare: Vec<FeatureBlock>,
}

#[derive(Debug)]
struct Context {
    id: SequenceId,
    last_used: u64,
    /// Features of the positions after those that the model has: the first rows of it.
    pending: FeatureBlock,
    num_pending: usize,
}

impl Context {
    /// The position after all that was fed.
    fn next_position(&self, model: &DraftModel) -> Result<usize, ModelError> {
        Ok(model.next_position(self.id)? + self.num_pending)
    }

    fn feed(
        &mut self,
        model: &mut DraftModel,
        first_position: usize,
        rows: FeatureRows<'_>,
    ) -> Result<(), ModelError> {
        if self.next_position(model)? != first_position {
            self.num_pending = 0;
            model.reset_sequence(self.id, first_position)?;
        }
        if self.num_pending + rows.num_rows() > self.pending.num_rows() {
            self.flush(model)?;
        }
        self.pending.copy_from(self.num_pending, rows);
        self.num_pending += rows.num_rows();
        if self.num_pending == self.pending.num_rows() {
            self.flush(model)?;
        }
        Ok(())
    }

    fn flush(&mut self, model: &mut DraftModel) -> Result<(), ModelError> {
        let num_rows = std::mem::take(&mut self.num_pending);
        model.append_rows(self.id, self.pending.rows(0..num_rows))
    }
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

    /// Takes features of positions from `first_position` on. Where they do not continue the context, a
    /// new one begins there.
    ///
    /// # Errors
    /// The model cannot take them. The sequence has no context then.
    pub fn feed(
        &mut self,
        model: &mut DraftModel,
        key: Key,
        first_position: usize,
        rows: FeatureRows<'_>,
    ) -> Result<Fed, ModelError> {
        let evicted = self.make_room(model, key)?;
        let fed = self.with(model, key, |context, model| {
            context.feed(model, first_position, rows)
        });
        fed.map(|_| Fed { evicted })
    }

    /// The sequence's context, with all that was fed, if it ends before `position`.
    ///
    /// # Errors
    /// The model cannot take what was fed. The sequence has no context then.
    pub fn before(
        &mut self,
        model: &mut DraftModel,
        key: Key,
        position: usize,
    ) -> Result<Option<SequenceId>, ModelError> {
        let found = self.with(model, key, |context, model| {
            if context.next_position(model)? != position {
                return Ok(None);
            }
            context.flush(model)?;
            Ok(Some(context.id))
        });
        Ok(found?.flatten())
    }

    /// Does something with a context that there is. One that it fails on is uncertain, and goes.
    fn with<T>(
        &mut self,
        model: &mut DraftModel,
        key: Key,
        act: impl FnOnce(&mut Context, &mut DraftModel) -> Result<T, ModelError>,
    ) -> Result<Option<T>, ModelError> {
        self.clock += 1;
        let Some(context) = self.live.get_mut(&key) else {
            return Ok(None);
        };
        context.last_used = self.clock;
        match act(context, model) {
            Ok(done) => Ok(Some(done)),
            Err(error) => {
                self.forget(model, key);
                Err(error)
            }
        }
    }

    /// Gives a sequence without a context an empty one; whether another had to go for it.
    fn make_room(&mut self, model: &mut DraftModel, key: Key) -> Result<bool, ModelError> {
        if self.live.contains_key(&key) {
            return Ok(false);
        }
        let evicted = model.free_sequences() == 0 && self.evict(model);
        let spare = self.spare.pop().map(Ok);
        let pending = spare.unwrap_or_else(|| model.feature_block(MAX_PENDING_ROWS))?;
        let context = Context {
            id: model.create_sequence()?,
            last_used: self.clock,
            pending,
            num_pending: 0,
        };
        self.live.insert(key, context);
        Ok(evicted)
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
        let Some(context) = self.live.remove(&key) else {
            return;
        };
        self.spare.push(context.pending);
        if let Err(error) = model.free_sequence(context.id) {
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
