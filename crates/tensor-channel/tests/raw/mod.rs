//! What a hostile process can do to a segment.
#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::atomic::{AtomicU32, Ordering};

use shared_memory::{Shmem, ShmemConf};

/// A second mapping of an offered segment, as a hostile process has it.
pub struct Raw(Shmem);

// SAFETY: a mapping is not bound to a thread, and is only touched through atomics.
unsafe impl Sync for Raw {}

impl Raw {
    pub fn open(name: &str) -> Self {
        Self(
            ShmemConf::new()
                .os_id(name)
                .open()
                .expect("the segment is there"),
        )
    }

    pub fn words(&self) -> usize {
        self.0.len() / 4
    }

    pub fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.words());
        // SAFETY: inside the mapping, as just asserted.
        let word = unsafe { self.0.as_ptr().cast::<u32>().add(index) };
        // SAFETY: mapped and aligned as above, for as long as `self` is; everyone uses atomics on headers.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Writes a number at a byte offset.
    pub fn write(&self, offset: usize, value: u64) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        self.word(offset / 4).store(low, Ordering::SeqCst);
        self.word(offset / 4 + 1).store(high, Ordering::SeqCst);
    }
}
