//! Device memory that is given back when dropped.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver};

/// Where a buffer's values are.
pub(in crate::gpu) fn ptr(buffer: &Buffer) -> DevicePtr {
    buffer.on_gpu().memory.ptr()
}

/// An allocation.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    driver: Arc<dyn Driver>,
    ptr: DevicePtr,
    bytes: usize,
}

impl DeviceMemory {
    /// Memory with unknown contents; nothing is allocated for no bytes.
    pub(crate) fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        driver.budget().take(bytes)?;
        let ptr = match bytes {
            0 => Ok(DevicePtr::NULL),
            bytes => driver.allocate(bytes),
        }
        .inspect_err(|_| driver.budget().give_back(bytes))?;
        Ok(Self {
            driver: Arc::clone(driver),
            ptr,
            bytes,
        })
    }

    pub(crate) fn zeros(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        let memory = Self::new(driver, bytes)?;
        if bytes > 0 {
            // SAFETY: the whole allocation.
            unsafe { driver.zero(memory.ptr, bytes) };
        }
        Ok(memory)
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The address of `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// They are not there.
    pub(crate) fn range(&self, offset: usize, bytes: usize) -> DevicePtr {
        assert!(
            offset + bytes <= self.bytes,
            "a range outside of device memory"
        );
        self.ptr.add(offset)
    }

    /// Copies bytes of another allocation, or of this one if the ranges are apart, to `offset..`.
    pub(crate) fn copy_from(&self, offset: usize, from: &Self, from_offset: usize, bytes: usize) {
        let (to, from) = (self.range(offset, bytes), from.range(from_offset, bytes));
        if bytes > 0 {
            // SAFETY: inside the allocations; two buffers are apart.
            unsafe { self.driver.copy(to, from, bytes) };
        }
    }

    /// Copies host bytes to `offset..`.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            offset + from.len() <= self.bytes,
            "write outside of device memory"
        );
        if !from.is_empty() {
            // SAFETY: inside the allocation.
            unsafe {
                self.driver
                    .copy_to_device(self.ptr.add(offset), from.as_ptr(), from.len())
            };
        }
    }

    /// Copies `offset..` to the host.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(
            offset + to.len() <= self.bytes,
            "read outside of device memory"
        );
        if !to.is_empty() {
            // SAFETY: inside the allocation.
            unsafe {
                self.driver
                    .copy_to_host(to.as_mut_ptr(), self.ptr.add(offset), to.len())
            };
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.ptr != DevicePtr::NULL {
            // SAFETY: allocated by this driver; the owner is gone.
            unsafe { self.driver.free(self.ptr) };
            self.driver.budget().give_back(self.bytes);
        }
    }
}
