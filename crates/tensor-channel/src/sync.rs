//! The atomics below the ring and the doorbell: the machine's, or loom's where a model checker drives them.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use crate::sync::model::FutexWord;
#[cfg(not(loom))]
pub use crate::sync::system::{FutexWord, futex_calls};

#[cfg(not(loom))]
mod system {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::fs::Timespec;
    use rustix::thread::futex;

    /// Futex calls of this process; statistics, orders nothing.
    static FUTEX_CALLS: AtomicU64 = AtomicU64::new(0);

    /// Futex calls that this process made for its channels. Stands still while both ends are hot: a writer wakes nobody
    /// who spins, and a reader that finds something does not wait.
    #[must_use]
    pub fn futex_calls() -> u64 {
        FUTEX_CALLS.load(Ordering::Relaxed)
    }

    /// A word in shared memory on which one thread of one process sleeps.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct FutexWord(AtomicU32);

    impl FutexWord {
        /// What the word says. Acquire; pairs with the Release in [`FutexWord::bump_and_wake`].
        pub fn load(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Changes the word, so that nobody falls asleep on its old value, and wakes who sleeps on it.
        pub fn bump_and_wake(&self) {
            self.0.fetch_add(1, Ordering::Release);
            FUTEX_CALLS.fetch_add(1, Ordering::Relaxed);
            // The one error there is names an address outside this process's memory.
            let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
        }

        /// Sleeps while the word says `expected`, at most `limit`. Returns early as it likes; the caller looks again.
        pub fn wait(&self, expected: u32, limit: Duration) {
            FUTEX_CALLS.fetch_add(1, Ordering::Relaxed);
            let limit = Timespec::try_from(limit).ok();
            // Not a private futex: the words lie in memory that two processes share.
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, limit.as_ref());
        }
    }
}

#[cfg(loom)]
mod model {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    /// The kernel's futex as a model: the comparison with the word happens under the lock that a waker takes.
    /// It never times out, so a lost wake is a deadlock, which loom reports.
    #[derive(Debug)]
    pub struct FutexWord {
        word: AtomicU32,
        lock: Mutex<()>,
        sleepers: Condvar,
    }

    impl Default for FutexWord {
        fn default() -> Self {
            Self {
                word: AtomicU32::new(0),
                lock: Mutex::new(()),
                sleepers: Condvar::new(),
            }
        }
    }

    impl FutexWord {
        /// What the word says.
        pub fn load(&self) -> u32 {
            self.word.load(Ordering::Acquire)
        }

        /// Changes the word and wakes who sleeps on it.
        pub fn bump_and_wake(&self) {
            self.word.fetch_add(1, Ordering::Release);
            drop(self.lock.lock().expect("no thread of a model panics"));
            self.sleepers.notify_one();
        }

        /// Sleeps while the word says `expected`.
        pub fn wait(&self, expected: u32, _limit: Duration) {
            let guard = self.lock.lock().expect("no thread of a model panics");
            if self.word.load(Ordering::Relaxed) == expected {
                drop(self.sleepers.wait(guard));
            }
        }
    }
}
