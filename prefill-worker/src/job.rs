//! A prompt on its way through the worker.

use std::time::Instant;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use worker_api::{CompressError, CompressEvent, CompressProgress, CompressRequest, Compression};

/// Events that may wait to be read. Progress that finds no room is left out; the last place is the answer's.
const EVENTS: usize = 16;

/// What the caller is told.
pub(crate) type Event = Result<CompressEvent, CompressError>;

/// A prompt, and who waits for it.
#[derive(Debug)]
pub(crate) struct Job {
    pub request: CompressRequest,
    /// When it came.
    pub since: Instant,
    events: Sender<Event>,
}

impl Job {
    /// Dropping the receiver cancels it.
    pub fn new(request: CompressRequest) -> (Self, Receiver<Event>) {
        let (events, receiver) = channel(EVENTS);
        let job = Self {
            request,
            since: Instant::now(),
            events,
        };
        (job, receiver)
    }

    /// Whether nobody waits for it any more.
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    pub fn tell(&self, progress: CompressProgress) {
        if self.events.capacity() > 1 {
            // Nobody listens where the stream was dropped.
            let _ = self.events.try_send(Ok(CompressEvent::Progress(progress)));
        }
    }

    pub fn finish(self, answer: Result<Compression, CompressError>) {
        // There is room: see `tell`.
        let _ = self.events.try_send(answer.map(CompressEvent::Finished));
    }
}

#[cfg(test)]
mod tests {
    use worker_api::CompressPhase;

    use super::*;

    #[test]
    fn an_answer_finds_room_behind_progress_that_nobody_reads() {
        let request = CompressRequest {
            request_id: String::new(),
            tokens: Vec::new(),
            keep_ratio: 0.5,
            protected: Vec::new(),
            within_budget: false,
            chunk_scores: false,
        };
        let (job, mut events) = Job::new(request);
        for done in 0..100 {
            job.tell(CompressProgress {
                phase: CompressPhase::Scoring,
                done,
                total: 100,
            });
        }
        assert!(!job.is_cancelled());
        job.finish(Ok(Compression::default()));
        let mut last = None;
        while let Some(event) = events.blocking_recv() {
            last = Some(event);
        }
        assert_eq!(
            last,
            Some(Ok(CompressEvent::Finished(Compression::default())))
        );
    }
}
