//! Counters since the start, written by the device thread and read by anyone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use worker_api::{DraftStats, MemoryStats};

/// A number that others may read. Relaxed: nothing hangs on it.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Relaxed);
    }

    pub fn set(&self, count: usize) {
        self.0.store(count as u64, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What [`DraftStats`] counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub sessions: Counter,
    pub sequences: Counter,
    pub steps: Counter,
    pub proposals: Counter,
    pub refusals: Counter,
    pub feature_rows: Counter,
    pub evicted_sequences: Counter,
}

impl Counters {
    /// With `memory`, which nobody counts.
    pub fn stats(&self, memory: MemoryStats) -> DraftStats {
        let few = |counter: &Counter| u32::try_from(counter.get()).unwrap_or(u32::MAX);
        DraftStats {
            sessions: few(&self.sessions),
            sequences: few(&self.sequences),
            steps: self.steps.get(),
            proposals: self.proposals.get(),
            refusals: self.refusals.get(),
            feature_rows: self.feature_rows.get(),
            evicted_sequences: self.evicted_sequences.get(),
            memory,
        }
    }
}
