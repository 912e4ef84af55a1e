//! Threads that run one closure together and meet at its end.
//!
//! Waiting spins first, since the next operation comes within microseconds while a step runs, then parks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Job = *const (dyn Fn(usize) + Sync);

/// A waiting thread parks after this long. Longer than the gaps within a step; shorter than what another process on the
/// same processors, such as a draft worker, would miss.
const SPIN: Duration = Duration::from_micros(50);
/// Looks between two looks at the clock.
const SPINS_PER_LOOK: u32 = 64;

struct Shared {
    /// Counts jobs; a change starts one. Release by the caller pairs with Acquire in `worker`.
    generation: AtomicUsize,
    /// Helpers still inside the job. Release by helpers pairs with Acquire in `run`.
    running: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    job: Mutex<Option<JobPointer>>,
    wake: Condvar,
    /// Helpers that sleep or are about to; changed under the lock of `job`.
    sleeping: AtomicUsize,
}

#[derive(Clone, Copy)]
struct JobPointer(Job);
// SAFETY: the pointee is `Sync`, and `run` keeps it alive until every helper has left it.
unsafe impl Send for JobPointer {}

/// A fixed set of threads; the caller is number 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

impl Pool {
    /// `threads` in all, the caller included.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            generation: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            job: Mutex::new(None),
            wake: Condvar::new(),
            sleeping: AtomicUsize::new(0),
        });
        let helpers = (1..threads.max(1))
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("cpu-{index}"))
                    .spawn(move || worker(&shared, index))
                    .expect("the system starts the threads of the CPU device")
            })
            .collect();
        Self {
            shared,
            helpers,
            turn: Mutex::new(()),
        }
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `job(index)` on every thread and returns when all are done.
    pub(crate) fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.helpers.is_empty() {
            return job(0);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &self.shared;
        shared.running.store(self.helpers.len(), Ordering::Relaxed);
        let any_sleeps = {
            let mut slot = shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: only the lifetime is erased; `Leave` below waits until no helper uses the pointer.
            let erased: Job =
                unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(job) };
            *slot = Some(JobPointer(erased));
            shared.generation.fetch_add(1, Ordering::Release);
            // Relaxed: the lock orders it. Who goes to sleep after this sees the new generation.
            shared.sleeping.load(Ordering::Relaxed) > 0
        };
        if any_sleeps {
            shared.wake.notify_all();
        }
        let leave = Leave(shared);
        job(0);
        drop(leave);
        assert!(
            !shared.panicked.swap(false, Ordering::Relaxed),
            "a thread of the CPU device panicked"
        );
    }
}

/// Waits for the helpers, also when the caller's own part unwinds.
struct Leave<'a>(&'a Shared);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let ended = || self.0.running.load(Ordering::Acquire) == 0;
        while !spin_until(ended) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _slot = self
                .shared
                .job
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.shared.stop.store(true, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            drop(helper.join());
        }
    }
}

/// Spins until `done`, or for [`SPIN`]; whether it is done.
fn spin_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= SPIN {
            return done();
        }
    }
}

fn worker(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let idle = || {
            shared.generation.load(Ordering::Acquire) == seen
                && !shared.stop.load(Ordering::Acquire)
        };
        if !spin_until(|| !idle()) {
            let slot = shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            shared.sleeping.fetch_add(1, Ordering::Relaxed);
            let slot = shared
                .wake
                .wait_while(slot, |_| idle())
                .unwrap_or_else(PoisonError::into_inner);
            shared.sleeping.fetch_sub(1, Ordering::Relaxed);
            drop(slot);
        }
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        seen = shared.generation.load(Ordering::Acquire);
        let job = *shared.job.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(JobPointer(job)) = job {
            // SAFETY: `run` does not return before `running` is zero, so the closure outlives this call.
            let job = unsafe { &*job };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(index))).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_every_job_once() {
        let pool = Pool::new(3);
        let counts: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..1000 {
            pool.run(&|index| {
                counts[index].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1000));
    }

    #[test]
    #[should_panic(expected = "panicked")]
    fn a_helper_panic_reaches_the_caller() {
        Pool::new(2).run(&|index| assert!(index == 0, "boom"));
    }
}
