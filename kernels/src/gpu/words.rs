//! Memory of the host that device and host read and write while kernels run.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Driver};

/// Looks for the device's word between looks at what else may have become of it, and how long it may take until the device is asked.
const LOOKS: u32 = 1024;
const SILENCE: Duration = Duration::from_secs(2);

/// Pinned words, which device and host read and write at the same time.
#[derive(Debug)]
pub(super) struct Words {
    driver: Arc<dyn Driver>,
    at: NonNull<u32>,
    len: usize,
}

// SAFETY: memory that is read and written as atomic words alone.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    pub fn zeros(driver: &Arc<dyn Driver>, len: usize) -> Result<Self, DeviceError> {
        let bytes = len * size_of::<u32>();
        let at = driver.allocate_pinned(bytes)?.cast::<u32>();
        let at = NonNull::new(at).ok_or(DeviceError::OutOfMemory { bytes })?;
        // SAFETY: memory of ours, aligned as pages are.
        unsafe { at.write_bytes(0, len) };
        Ok(Self {
            driver: Arc::clone(driver),
            at,
            len,
        })
    }

    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.at.as_ptr() as u64)
    }

    pub fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.len, "a word outside of pinned memory");
        // SAFETY: inside the allocation.
        let at = unsafe { self.at.add(index) };
        // SAFETY: aligned, and read and written as atomic words alone.
        unsafe { AtomicU32::from_ptr(at.as_ptr()) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn write(&self, first: usize, words: &[u32]) {
        for (index, word) in (first..).zip(words) {
            self.word(index).store(*word, Ordering::Relaxed);
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: from `allocate_pinned`; who holds this has waited for the device.
        unsafe { self.driver.free_pinned(self.at.as_ptr().cast()) };
    }
}

impl GpuDevice {
    /// Waits for what kernels write in memory of the host.
    ///
    /// # Errors
    /// The device failed; `what` did not come of its work.
    pub(super) fn wait_until(
        &self,
        what: &str,
        is_so: impl Fn() -> bool,
    ) -> Result<(), DeviceError> {
        let mut begin = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if is_so() {
                    return self.one_row.check();
                }
                std::hint::spin_loop();
            }
            self.one_row.check()?;
            std::thread::yield_now();
            if begin.elapsed() > SILENCE {
                // What comes before may take long. It is not waited for: a launch that has done so may wait for the host.
                let is_idle = self.driver.is_idle()?;
                if is_idle && !is_so() {
                    self.one_row.check()?;
                    return Err(DeviceError::Driver {
                        what: format!("{what} did not come"),
                    });
                }
                begin = Instant::now();
            }
        }
    }
}
