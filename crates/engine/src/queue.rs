//! Requests that wait for a place, and whether more may come. No lock and no thread here.

use std::collections::VecDeque;
use std::time::Instant;

use generation::{GenerateError, GenerateRequest};
use grammar::Matcher;

use crate::stream::EventSender;

/// A request without a place.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub request: GenerateRequest,
    /// The request's grammar at its beginning.
    pub matcher: Option<Matcher>,
    pub events: EventSender,
}

/// Whether requests are taken.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// They are.
    Open,
    /// No more; those taken may end until the deadline, if there is one.
    Draining { deadline: Option<Instant> },
    /// No more, and nothing runs; why.
    Closed(GenerateError),
}

/// First come, first served.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: VecDeque<Waiting>,
    running: usize,
    max_sequences: usize,
    queue_len: usize,
    phase: Phase,
}

impl Queue {
    pub(crate) fn new(max_sequences: usize, queue_len: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: 0,
            max_sequences,
            queue_len,
            phase: Phase::Open,
        }
    }

    /// Requests without a place.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests with a place.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Takes a request. Those that a place is free for do not count as waiting: they get it at the next step.
    pub(crate) fn push(&mut self, waiting: Waiting) -> Result<(), GenerateError> {
        match &self.phase {
            Phase::Open => {}
            Phase::Draining { .. } => return Err(GenerateError::ShuttingDown),
            Phase::Closed(why) => return Err(why.clone()),
        }
        let free_places = self.max_sequences - self.running;
        if self.waiting.len() >= self.queue_len + free_places {
            let limit = self.queue_len;
            return Err(GenerateError::QueueFull { limit });
        }
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Gives the first request a place, if one is free and the request `fits`. The caller returns it with
    /// [`Queue::leave`].
    pub(crate) fn admit(&mut self, fits: impl FnOnce(&GenerateRequest) -> bool) -> Option<Waiting> {
        if self.running >= self.max_sequences {
            return None;
        }
        let first = self
            .waiting
            .pop_front_if(|waiting| fits(&waiting.request))?;
        self.running += 1;
        Some(first)
    }

    /// A place is free again.
    pub(crate) fn leave(&mut self) {
        self.running -= 1;
    }

    /// Drops requests whose caller left; how many.
    pub(crate) fn drop_cancelled(&mut self) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| !waiting.events.is_closed());
        before - self.waiting.len()
    }

    /// Takes no more requests.
    pub(crate) fn drain(&mut self, deadline: Option<Instant>) {
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Draining { deadline };
        }
    }

    /// Hands back the requests without a place.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// Takes no more requests and hands back those without a place. Nobody has one any more.
    pub(crate) fn close(&mut self, why: GenerateError) -> VecDeque<Waiting> {
        if !matches!(self.phase, Phase::Closed(_)) {
            self.phase = Phase::Closed(why);
        }
        self.running = 0;
        self.take_waiting()
    }
}

#[cfg(test)]
mod tests;
