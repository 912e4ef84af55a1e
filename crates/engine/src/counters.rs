//! Counters since the start, written by the engine thread and read by anyone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows.
///
/// Relaxed: nothing else hangs on it. Who has received an event sees what was counted before it was sent, because the
/// event's channel orders the two.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What [`generation::WorkerStats`] counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub prompt_tokens: Counter,
    pub generated_tokens: Counter,
    pub steps: Counter,
    pub finished_requests: Counter,
    pub cancelled_requests: Counter,
}
