//! The runner's part in the reuse of prefixes: requests go on from them, steps have room beside them, states become them.

use generation::GenerateRequest;
use models::{Model, ModelError, SequenceId};

use crate::prefixes::{Keep, Marks, Prefixes, Worth};
use crate::runner::{Runner, note_gone};
use crate::scheduler::Share;
use crate::sequence::{Ending, Sequence};
use crate::speculation::{Drafting, Speculator};

impl Runner {
    /// A sequence for a request: one that goes on from the longest prefix there is, or an empty one.
    pub(super) fn sequence_for(
        &mut self,
        request: &GenerateRequest,
    ) -> Result<(SequenceId, Marks), ModelError> {
        if !self.prefixes.is_on() {
            return Ok((self.model.create_sequence()?, Marks::default()));
        }
        let found = self.prefixes.find(&request.prompt);
        let mut marks = Marks {
            common: found.common,
            history: request.history_tokens as usize,
            ..Marks::default()
        };
        let resumed = match found.prefix {
            Some((prefix, _)) => self.prefixes.resume(&mut self.model, prefix)?,
            None => None,
        };
        let (Some(id), Some((prefix, len))) = (resumed, found.prefix) else {
            return Ok((self.model.create_sequence()?, marks));
        };
        marks.origin = Some(prefix);
        marks.last = len;
        self.shared.counters.prefix_cache.update(|stats| {
            stats.hits += 1;
            stats.reused_tokens += len as u64;
        });
        Ok((id, marks))
    }

    /// Has a sequence's draft begin with the features of the prefix that it went on from.
    pub(super) fn restore_features(&mut self, drafting: &mut Drafting, marks: Marks) {
        let origin = marks.origin.and_then(|id| self.prefixes.features(id));
        if let Some(kept) = origin {
            self.speculator
                .restore_features(drafting, &self.model, kept);
        }
    }

    /// Has prefixes give way to a step.
    pub(super) fn make_room_for(&mut self, shares: &[Share]) -> Result<(), ModelError> {
        let cache = self.model.cache();
        let mut pages = 0;
        for share in shares {
            let sequence = &self.running[share.sequence];
            pages += cache.pages_to_add(sequence.place.id, share.rows)?;
            if self.shadows.is_some() {
                // Its shadow may have seen nothing of it yet.
                pages += cache.pages_for(sequence.tokens().len() + share.rows);
            }
        }
        self.prefixes.make_room(&mut self.model, pages)
    }

    /// Keeps the states of prompts that the step brought to a place where that pays.
    pub(super) fn keep_prompts(&mut self, shares: &[Share]) {
        if !self.prefixes.is_on() {
            return;
        }
        let step_tokens = self.limits.prefill_chunk_tokens;
        for share in shares {
            let sequence = &mut self.running[share.sequence];
            let (fed, prompt_tokens) = (sequence.fed(), sequence.prompt_len());
            let Some(worth) = sequence.marks.worth(fed, prompt_tokens, step_tokens) else {
                continue;
            };
            sequence.marks.last = fed;
            let (prefixes, model) = (&mut self.prefixes, &mut self.model);
            if let Err(error) = keep(prefixes, model, &self.speculator, sequence, worth) {
                tracing::error!(%error, "the state of a prompt could not be kept");
                note_gone(&mut self.gone, &error);
            }
        }
    }

    /// Keeps the state at the end of an answer, or where it was given up: the next turn begins with it.
    pub(super) fn keep_ended(&mut self, sequence: &Sequence) {
        let has_failed = matches!(sequence.ending(), Some(Ending::Failed(_)));
        let is_new = sequence.fed() > sequence.marks.last;
        if !self.prefixes.is_on() || has_failed || !is_new || self.gone.is_some() {
            return;
        }
        let (prefixes, model) = (&mut self.prefixes, &mut self.model);
        if let Err(error) = keep(prefixes, model, &self.speculator, sequence, Worth::Own) {
            tracing::error!(%error, "the state of an answer could not be kept");
            note_gone(&mut self.gone, &error);
        }
    }
}

/// Keeps the state of a sequence, unless it is there.
fn keep(
    prefixes: &mut Prefixes,
    model: &mut Model,
    speculator: &Speculator,
    sequence: &Sequence,
    worth: Worth,
) -> Result<(), ModelError> {
    let (id, tokens) = (sequence.place.id, &sequence.tokens()[..sequence.fed()]);
    // What could not be committed is not known under these tokens.
    if model.sequence_len(id)? != tokens.len() || prefixes.has(tokens) {
        return Ok(());
    }
    let keep = Keep {
        sequence: id,
        tokens,
        features: speculator.kept_features(&sequence.drafting, model),
        worth,
        origin: sequence.marks.origin,
    };
    prefixes.keep(model, keep)
}
