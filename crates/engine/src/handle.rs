//! The async side of an engine.

use std::sync::Arc;
use std::time::Duration;

use generation::{GenerateError, GenerateRequest, ModelDescription, ParkError, WorkerStats};
use grammar::Matcher;

use crate::drafter::Drafter;
use crate::lease::DrafterLease;
use crate::parking::{ParkingLease, Residency};
use crate::shared::Shared;
use crate::stream::GenerateStream;
use crate::watch::RoundStream;

/// Sends requests to an engine. Clones speak to the same one; none keeps it running.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

impl EngineHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Asks for an answer to a request without a grammar. Never waits: the request is refused at once, or its events come on the stream.
    ///
    /// # Errors
    /// As [`GenerateRequest::check`]; [`GenerateError::QueueFull`]; [`GenerateError::ShuttingDown`];
    /// [`GenerateError::Model`] where the engine thread is gone; [`GenerateError::Grammar`] where there is one.
    pub fn generate(&self, request: GenerateRequest) -> Result<GenerateStream, GenerateError> {
        if request.grammar.is_some() {
            let words = "nobody has read it".to_owned();
            return Err(GenerateError::Grammar(words));
        }
        request.check(&self.shared.description)?;
        self.shared.push(request, None)
    }

    /// As [`EngineHandle::generate`], for a request whose grammar is at its beginning in `matcher`.
    ///
    /// # Errors
    /// As [`EngineHandle::generate`].
    pub fn generate_within(
        &self,
        request: GenerateRequest,
        matcher: Matcher,
    ) -> Result<GenerateStream, GenerateError> {
        request.check(&self.shared.description)?;
        self.shared.push(request, Some(matcher))
    }

    /// Gives the engine a draft to speculate with, in place of the one it has. It takes it at its next step; none of
    /// its answers depends on it.
    #[must_use = "dropping the lease takes the draft away"]
    pub fn set_drafter(&self, drafter: Box<dyn Drafter>) -> DrafterLease {
        self.shared.offer_drafter(drafter)
    }

    /// Has the model's weights leave their device, and returns when they have. Sequences stay there; requests wait until the
    /// lease is dropped, or `at_most` so long. Cancel-safe.
    ///
    /// # Errors
    /// The model cannot be parked; the device failed, or the weights were called back before they left; the engine ends.
    pub async fn park(&self, at_most: Duration) -> Result<ParkingLease, ParkError> {
        if !self.shared.can_park {
            return Err(ParkError::Unsupported);
        }
        let mut lease = self.shared.park(at_most);
        let ended = tokio::select! {
            biased;
            () = self.shared.closed() => ParkError::ShuttingDown,
            () = lease.ended() => ParkError::CalledBack,
            () = self.shared.parking.until(|at| *at == Residency::Parked) => return Ok(lease),
        };
        Err(ended)
    }

    /// Ends all that [`EngineHandle::park`] gave, and returns when steps go on.
    ///
    /// # Errors
    /// The engine ends.
    pub async fn unpark(&self) -> Result<(), ParkError> {
        self.shared.parking.release();
        self.shared.parking_has_news();
        tokio::select! {
            biased;
            () = self.shared.closed() => Err(ParkError::ShuttingDown),
            () = self.shared.parking.until(|at| *at == Residency::Resident) => Ok(()),
        }
    }

    /// Why the weights are not where they should be, if so; requests are refused then.
    #[must_use]
    pub fn away(&self) -> Option<String> {
        match self.shared.parking.residency() {
            Residency::Away(why) => Some(why),
            Residency::Resident | Residency::Parked | Residency::Moving => None,
        }
    }

    /// Returns when [`EngineHandle::away`] says why, or that there is nothing to say. Cancel-safe.
    pub async fn until_away(&self, is_away: bool) {
        let matches = |at: &Residency| matches!(at, Residency::Away(_)) == is_away;
        self.shared.parking.until(matches).await;
    }

    /// Rounds from now on, some of each second's. None of the answers is slower for one who does not keep up.
    #[must_use]
    pub fn watch(&self) -> RoundStream {
        self.shared.watchers.watch()
    }

    /// What has been done so far. An event that was received is counted already.
    #[must_use]
    pub fn stats(&self) -> WorkerStats {
        self.shared.stats()
    }

    /// The model that answers.
    #[must_use]
    pub fn description(&self) -> &ModelDescription {
        &self.shared.description
    }

    /// Whether the engine thread runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    /// Returns when the engine thread has ended, by shutdown or by a panic.
    pub async fn closed(&self) {
        self.shared.closed().await;
    }
}
