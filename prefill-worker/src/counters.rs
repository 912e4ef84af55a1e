//! Counters since the start, written by the device thread and read by anyone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use worker_api::{MemoryStats, PrefillStats};

/// A number that others may read. Relaxed: nothing hangs on it.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Relaxed);
    }

    pub fn subtract(&self, count: usize) {
        self.0.fetch_sub(count as u64, Relaxed);
    }

    pub fn add_time(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.0.fetch_add(us, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What [`PrefillStats`] counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Waiting or at work.
    pub open_requests: Counter,
    pub running_requests: Counter,
    pub is_resident: AtomicBool,
    pub finished_requests: Counter,
    pub cancelled_requests: Counter,
    pub failed_requests: Counter,
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    pub loads: Counter,
    pub parks: Counter,
    pub load_us: Counter,
    pub score_us: Counter,
    pub select_us: Counter,
    pub park_us: Counter,
}

impl Counters {
    pub fn is_resident(&self) -> bool {
        self.is_resident.load(Relaxed)
    }

    pub fn set_resident(&self, is_resident: bool) {
        self.is_resident.store(is_resident, Relaxed);
    }

    pub fn stats(&self) -> PrefillStats {
        let open = self.open_requests.get();
        let queued = open.saturating_sub(self.running_requests.get());
        PrefillStats {
            queued_requests: u32::try_from(queued).unwrap_or(u32::MAX),
            is_resident: self.is_resident(),
            finished_requests: self.finished_requests.get(),
            cancelled_requests: self.cancelled_requests.get(),
            failed_requests: self.failed_requests.get(),
            tokens_in: self.tokens_in.get(),
            tokens_out: self.tokens_out.get(),
            loads: self.loads.get(),
            parks: self.parks.get(),
            load_us: self.load_us.get(),
            score_us: self.score_us.get(),
            select_us: self.select_us.get(),
            park_us: self.park_us.get(),
            memory: MemoryStats {
                resident_bytes: service::resident_bytes(),
                // Its device is there for as long as a prompt only.
                device_free_bytes: None,
            },
        }
    }
}
