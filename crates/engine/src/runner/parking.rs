//! The runner's part in parking: between two steps the weights leave their device while somebody wants that, and come back.

use std::time::{Duration, Instant};

use generation::GenerateError;
use models::ModelError;

use crate::parking::Residency;
use crate::runner::Runner;
use crate::sequence::Ending;
use crate::shared::WhileParked;

/// Wait before the second try to come back; it doubles with every further one.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How long requests wait for weights that do not come back.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Tries to come back.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// The last wait, and when it ends.
    wait: Option<(Duration, Instant)>,
    /// The first failure.
    since: Option<Instant>,
}

impl Tries {
    pub(super) fn next(&self) -> Option<Instant> {
        self.wait.map(|(_, until)| until)
    }

    /// How long they have been failing.
    fn note_failure(&mut self) -> Duration {
        let now = Instant::now();
        let wait = self
            .wait
            .map_or(FIRST_WAIT, |(wait, _)| (wait * 2).min(LONGEST_WAIT));
        self.wait = Some((wait, now + wait));
        now - *self.since.get_or_insert(now)
    }
}

impl Runner {
    /// Has the weights leave while somebody wants that. Sequences keep their states and go on afterwards; whether there is
    /// anything to go on with: at the end of the engine weights that are away stay so.
    pub(super) fn give_way(&mut self) -> bool {
        if !self.shared.is_to_park() {
            return true;
        }
        let started = Instant::now();
        if let Err(error) = self.model.park() {
            tracing::error!(%error, "the weights do not leave their device");
            self.shared.parking.release();
            self.shared.parking.tell(Residency::Resident);
            return true;
        }
        let elapsed_ms = started.elapsed().as_millis();
        tracing::info!(elapsed_ms, "parked: the weights have left their device");
        self.speculator.forget_pace();
        let mut tries = Tries::default();
        while self.model.is_parked() {
            self.tend_callers();
            match self.shared.rest_parked(tries.next()) {
                WhileParked::Wait { is_wanted } => {
                    if is_wanted {
                        // Whoever wants them away is no reason to be impatient.
                        tries = Tries::default();
                    }
                }
                WhileParked::Return => self.come_back(&mut tries),
                WhileParked::End => return false,
            }
        }
        true
    }

    /// Those who left get nothing more, and drafts come and go, while nothing is computed.
    fn tend_callers(&mut self) {
        for sequence in &mut self.running {
            sequence.end_if_cancelled();
        }
        self.release_ended();
        self.drop_cancelled_held();
        self.shared.forget_cancelled();
        self.take_draft();
    }

    pub(super) fn come_back(&mut self, tries: &mut Tries) {
        let started = Instant::now();
        match self.model.unpark() {
            Ok(()) => {
                let elapsed_ms = started.elapsed().as_millis();
                tracing::info!(elapsed_ms, "the weights are back on their device");
                self.shared.parking.tell(Residency::Resident);
            }
            Err(error) => self.note_away(&error, tries),
        }
    }

    fn note_away(&mut self, error: &ModelError, tries: &mut Tries) {
        if tries.next().is_none() {
            tracing::warn!(%error, "the weights do not come back to their device; trying again");
        }
        let failing_for = tries.note_failure();
        self.shared.parking.tell(Residency::Away(error.to_string()));
        if failing_for < self.patience {
            return;
        }
        let why = GenerateError::Away(error.to_string());
        for sequence in &mut self.running {
            sequence.end(Ending::Failed(why.clone()));
        }
        self.release_ended();
        self.end_held(&why);
        self.shared.turn_away(&why);
    }
}
