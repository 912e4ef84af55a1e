//! What may be taken of a device's memory.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DeviceError;

/// Counts allocations against a limit; without one it allows all.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicU64,
    taken: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            limit: AtomicU64::new(u64::MAX),
            taken: AtomicU64::new(0),
        }
    }
}

impl Budget {
    /// What is taken from now on, with what is taken already, stays within so many bytes.
    pub(crate) fn limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// # Errors
    /// The limit leaves less; nothing was taken.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), DeviceError> {
        let limit = self.limit.load(Ordering::Relaxed);
        let within = |taken: u64| taken.checked_add(bytes as u64).filter(|sum| *sum <= limit);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .map(drop)
            .map_err(|_| DeviceError::OutOfMemory { bytes })
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// What can be taken of `free` bytes.
    pub(crate) fn left_of(&self, free: u64) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        free.min(limit.saturating_sub(self.taken.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn no_more_is_taken_than_the_limit_leaves() {
        let budget = Budget::default();
        assert_eq!(budget.left_of(1 << 40), 1 << 40);
        budget.take(60).unwrap();
        budget.limit(100);
        assert_eq!((budget.left_of(1 << 40), budget.left_of(30)), (40, 30));
        let error = budget.take(41).unwrap_err().to_string();
        assert!(error.contains("41 bytes"), "{error}");
        budget.take(40).unwrap();
        assert_eq!(budget.left_of(1 << 40), 0);
        budget.give_back(60);
        budget.take(60).unwrap();
        assert!(budget.take(usize::MAX).is_err());
    }
}
