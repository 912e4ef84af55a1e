//! Counters since the start, written by the engine thread and read by anyone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use generation::{PrefixCacheStats, SpeculationStats};

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

/// Counters that belong together. One lock for all, held for moments: the thread writes once in a step.
#[derive(Debug, Default)]
pub(crate) struct Counts<T>(Mutex<T>);

pub(crate) type SpeculationCounters = Counts<SpeculationStats>;
pub(crate) type PrefixCacheCounters = Counts<PrefixCacheStats>;

impl<T: Clone> Counts<T> {
    pub(crate) fn update(&self, change: impl FnOnce(&mut T)) {
        // Sums are whole whatever happens elsewhere.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn get(&self) -> T {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
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
    pub speculation: SpeculationCounters,
    pub prefix_cache: PrefixCacheCounters,
    pub disk: prefix_store::Counters,
}
