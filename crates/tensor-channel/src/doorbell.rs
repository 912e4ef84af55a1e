//! How a waiting side learns that the other did something: it looks for a few microseconds, then sleeps on a futex.
//!
//! The side that rings makes no system call unless the other says that it sleeps.

use std::time::Duration;
#[cfg(not(loom))]
use std::{fs, sync::LazyLock};

use crate::deadline::Deadline;
use crate::sync::{AtomicU32, FutexWord, Ordering, fence};

/// How long a waiting side looks before it sleeps. A futex sleep and wake-up cost 5 to 50 us, so that much spinning at
/// most doubles the cost of a wait; more would take a processor from the threads that compute.
pub(crate) const SPIN: Duration = Duration::from_micros(30);

/// Looks at the ring between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 32;

/// Longest sleep at once. Bounds the harm of a peer that changes what it should not, such as the word that asks for
/// its wake.
const SLEEP: Duration = Duration::from_millis(50);

/// One side's bell in shared memory: that side waits on it, the other rings it. At most one thread waits.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub struct Bell {
    /// Counts rings that somebody slept through.
    rung: FutexWord,
    /// 1 while somebody is about to sleep or sleeps.
    waiting: AtomicU32,
}

impl Bell {
    /// Tells the waiting side that what it waits for may be there. Call it after publishing.
    pub fn ring(&self) {
        // Pairs with the fence in `wait`: either we see that somebody waits, or their last look sees what we published.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.rung.bump_and_wake();
        }
    }

    /// Looks through `look` until it finds something or the deadline has passed.
    pub fn wait<T>(&self, deadline: Deadline, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(found) = spin(deadline, &mut look) {
            return Some(found);
        }
        let found = loop {
            self.waiting.store(1, Ordering::Relaxed);
            let rung = self.rung.load();
            // Pairs with the fence in `ring`.
            fence(Ordering::SeqCst);
            if let Some(found) = look() {
                break Some(found);
            }
            let left = deadline.left();
            if left.is_zero() {
                break None;
            }
            self.rung.wait(rung, left.min(SLEEP));
        };
        self.waiting.store(0, Ordering::Relaxed);
        found
    }
}

/// Looks for [`SPIN`], or until the deadline.
#[cfg(not(loom))]
fn spin<T>(deadline: Deadline, look: &mut impl FnMut() -> Option<T>) -> Option<T> {
    let spin = Deadline::after(spin_time().min(deadline.left()));
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if let Some(found) = look() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if spin.left().is_zero() {
            return None;
        }
    }
}

/// [`SPIN`], or nothing where the other side cannot run while this one spins: on a machine with one processor. Not where
/// only this process is held to one, for the other side may be on another.
#[cfg(not(loom))]
fn spin_time() -> Duration {
    static IS_ONLY_ONE: LazyLock<bool> = LazyLock::new(|| {
        fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|list| list.trim() == "0")
    });
    if *IS_ONLY_ONE { Duration::ZERO } else { SPIN }
}

/// A model needs no spinning: it runs every order of events anyway.
#[cfg(loom)]
fn spin<T>(_deadline: Deadline, look: &mut impl FnMut() -> Option<T>) -> Option<T> {
    look()
}
