//! Rounds of drafts: what of a verified tree becomes part of its sequence, and the question for the next one.

use std::time::{Duration, Instant};

use models::Output;
use speculative::{DraftTree, RoundOutcome, accepted_path};

use crate::prefixes::Prefixes;
use crate::runner::report::report;
use crate::runner::{Rows, Runner, model_error, note_gone};
use crate::scheduler::Share;
use crate::sequence::{Ending, Sequence};
use crate::speculation::{Round, ms};

/// A draft tree and the path through it that the target chose, until it is committed.
pub(super) struct Verified {
    /// Its place among those that run.
    sequence: usize,
    tree: DraftTree,
    path: Vec<usize>,
    verify_time: Duration,
    choice_time: Duration,
}

impl Runner {
    pub(super) fn ask_draft(&mut self) {
        let counters = &self.shared.counters.speculation;
        self.speculator.ask(counters, &mut self.running);
    }

    /// A draft tree: the path through it that the target itself chooses becomes part of the sequence, once it is committed.
    pub(super) fn take_in_draft(
        &mut self,
        share: &Share,
        tree: DraftTree,
        output: &Output,
        place: Rows,
        verify_time: Duration,
    ) -> Verified {
        let started = Instant::now();
        let sequence = &mut self.running[share.sequence];
        let chooser = &mut self.chooser;
        let path = accepted_path(&tree, |node| {
            sequence.extend(output.answer(place.segment, node)?, chooser)
        });
        if needs_state(sequence, &self.prefixes) {
            let rows = path.iter().map(|node| place.first + node);
            let position = sequence.fed();
            self.speculator
                .keep_features(sequence, &mut self.model, position, rows);
            if sequence.ending().is_none() {
                self.speculator.feed_round(sequence);
            }
        }
        sequence.advance(path.len());
        Verified {
            sequence: share.sequence,
            tree,
            path,
            verify_time,
            choice_time: started.elapsed(),
        }
    }

    /// What a verified tree says of those to come.
    pub(super) fn note_round(&mut self, verified: &Verified, sequences: usize) {
        let outcome = RoundOutcome {
            accepted: verified.path.len() - 1,
            ms: ms(verified.verify_time + verified.choice_time),
            sequences,
        };
        let sequence = &mut self.running[verified.sequence];
        self.speculator
            .note_round(sequence, &verified.tree, outcome);
    }

    /// Makes the accepted path of a tree part of the sequence, and the round part of what is told.
    pub(super) fn commit(&mut self, verified: &Verified, sequences: usize) {
        let started = Instant::now();
        let Verified { tree, path, .. } = verified;
        let sequence = &mut self.running[verified.sequence];
        if needs_state(sequence, &self.prefixes)
            && let Err(error) = self.model.commit(sequence.place.id, path)
        {
            tracing::error!(%error, "an accepted path could not be committed");
            note_gone(&mut self.gone, &error);
            sequence.end(Ending::Failed(model_error(&error)));
        }
        let commit_time = started.elapsed();
        self.speculator.note_commit(commit_time);
        let round = Round {
            draft_tokens: tree.num_nodes(),
            accepted: path.len() - 1,
            verify_time: verified.verify_time,
            commit_time: verified.choice_time + commit_time,
        };
        round.add_to(&mut sequence.drafting.timings);
        self.teller
            .tell(|| report(sequence, tree, path, &round, sequences));
        let counters = &self.shared.counters.speculation;
        counters.update(|stats| round.count(stats));
    }
}

/// Whether a sequence's state is of use: what has ended needs none, unless it is kept.
fn needs_state(sequence: &Sequence, prefixes: &Prefixes) -> bool {
    sequence.ending().is_none() || prefixes.is_on()
}
