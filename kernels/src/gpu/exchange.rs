//! A GPU's end of tensor channels: memory that it shares with other processes, and copies from and to slots.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use tensor_channel::{
    ChannelDevice, MemoryError, MemoryHandle, Place, Registered, SlotMemory, Transport,
};

use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::memory::DeviceMemory;

/// Bytes written to memory of another process and read back, before it is trusted: a path between two devices may lose
/// or change what goes over it.
const TRIAL_BYTES: usize = 64 << 10;

impl ChannelDevice for GpuDevice {
    fn transport(&self) -> Option<Transport> {
        Some(self.driver.transport())
    }

    fn share(&self, bytes: usize) -> Result<(Box<dyn SlotMemory>, MemoryHandle), MemoryError> {
        let budget = self.driver.budget();
        budget.take(bytes).map_err(words)?;
        let (ptr, handle) = self
            .driver
            .share(bytes)
            .inspect_err(|_| budget.give_back(bytes))
            .map_err(words)?;
        let memory = Slots {
            driver: Arc::clone(&self.driver),
            ptr,
            bytes,
            is_own: true,
        };
        let handle = MemoryHandle {
            device: self.facts().uuid,
            bytes: bytes as u64,
            handle,
        };
        Ok((Box::new(memory), handle))
    }

    fn open(&self, handle: &MemoryHandle) -> Result<Box<dyn SlotMemory>, MemoryError> {
        let bytes = usize::try_from(handle.bytes)
            .map_err(|_| MemoryError(format!("{} bytes are no memory", handle.bytes)))?;
        let memory = Slots {
            ptr: self.driver.open_shared(handle).map_err(words)?,
            driver: Arc::clone(&self.driver),
            bytes,
            is_own: false,
        };
        Ok(Box::new(memory))
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Result<Box<dyn Registered>, MemoryError> {
        // SAFETY: the caller's word, for as long as what is returned lives.
        unsafe { self.driver.register(start.as_ptr(), bytes) }.map_err(words)?;
        Ok(Box::new(RegisteredHost {
            driver: Arc::clone(&self.driver),
            start: start.as_ptr() as usize,
        }))
    }
}

/// Whether what is written to memory opened is what stands there, by two calls of a driver.
pub(super) fn try_out(
    bytes: u64,
    write: impl FnOnce(&[u8]) -> Result<(), DeviceError>,
    read: impl FnOnce(&mut [u8]) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let bytes = usize::try_from(bytes).map_or(TRIAL_BYTES, |bytes| bytes.min(TRIAL_BYTES));
    let pattern: Vec<u8> = (0..bytes)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let mut found = vec![0; bytes];
    write(&pattern)?;
    read(&mut found)?;
    if found == pattern {
        return Ok(());
    }
    Err(DeviceError::Driver {
        what: "what is written to the other process's device does not arrive there".to_owned(),
    })
}

/// Memory of a channel's slots: this process's, or opened.
#[derive(Debug)]
struct Slots {
    driver: Arc<dyn Driver>,
    ptr: DevicePtr,
    bytes: usize,
    is_own: bool,
}

impl Slots {
    /// The address of a range inside.
    fn at(&self, offset: usize, bytes: usize) -> Result<DevicePtr, MemoryError> {
        if offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes)
        {
            return Ok(self.ptr.add(offset));
        }
        Err(MemoryError(format!(
            "{bytes} bytes at {offset} are outside of the {} that the channel has on the device",
            self.bytes
        )))
    }
}

impl SlotMemory for Slots {
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let to = self.at(offset, from.len())?;
        // SAFETY: inside the memory, and the caller's bytes.
        unsafe { self.driver.copy_to_device(to, from.as_ptr(), from.len()) };
        self.driver.synchronize().map_err(words)
    }

    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.at(offset, to.len())?;
        // SAFETY: inside the memory, and the caller's bytes.
        unsafe { self.driver.copy_to_host(to.as_mut_ptr(), from, to.len()) };
        self.driver.synchronize().map_err(words)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: from `share` or `open_shared`; each copy was waited for, and the owner is gone. The channel drops its own
        // memory after the peer has closed it.
        unsafe {
            if self.is_own {
                self.driver.unshare(self.ptr);
                self.driver.budget().give_back(self.bytes);
            } else {
                self.driver.close_shared(self.ptr);
            }
        }
    }
}

/// Host memory that the device knows.
#[derive(Debug)]
struct RegisteredHost {
    driver: Arc<dyn Driver>,
    start: usize,
}

impl Registered for RegisteredHost {}

impl Drop for RegisteredHost {
    fn drop(&mut self) {
        // SAFETY: registered by `register`; each copy was waited for.
        unsafe { self.driver.unregister(self.start as *mut u8) };
    }
}

/// The slots' memory of a place on a device, where it is this driver's.
fn of_driver<'a>(
    driver: &Arc<dyn Driver>,
    memory: &'a (dyn SlotMemory + 'static),
) -> Option<&'a Slots> {
    let memory: &dyn Any = memory;
    let slots = memory.downcast_ref::<Slots>();
    slots.filter(|slots| Arc::ptr_eq(&slots.driver, driver))
}

impl DeviceMemory {
    /// Copies `offset..` to a slot, and waits for it.
    pub(crate) fn send(&self, offset: usize, slot: Place<'_>) -> Result<(), MemoryError> {
        let bytes = slot.bytes();
        let from = self.range(offset, bytes);
        let driver = self.driver();
        match slot {
            // SAFETY: inside the allocation; the slot's bytes are mapped, and nothing refers to them.
            Place::Host(to) => unsafe { driver.copy_to_host(to.as_ptr(), from, bytes) },
            Place::Device { memory, offset, .. } => match of_driver(driver, memory) {
                Some(slots) => {
                    let to = slots.at(offset, bytes)?;
                    // SAFETY: both are inside.
                    unsafe { driver.copy_to_shared(to, from, bytes) };
                }
                None => {
                    let mut values = vec![0; bytes];
                    // SAFETY: inside the allocation, and as many bytes.
                    unsafe { driver.copy_to_host(values.as_mut_ptr(), from, bytes) };
                    return memory.write(offset, &values);
                }
            },
        }
        driver.synchronize().map_err(words)
    }

    /// Copies a slot's payload to `offset..`, and waits for it.
    pub(crate) fn receive(&self, offset: usize, slot: Place<'_>) -> Result<(), MemoryError> {
        let bytes = slot.bytes();
        let to = self.range(offset, bytes);
        let driver = self.driver();
        match slot {
            // SAFETY: inside the allocation; the slot's bytes are mapped, and stay so until the copy was waited for.
            Place::Host(from) => unsafe { driver.copy_to_device(to, from.as_ptr(), bytes) },
            Place::Device { memory, offset, .. } => match of_driver(driver, memory) {
                Some(slots) => {
                    let from = slots.at(offset, bytes)?;
                    // SAFETY: both are inside.
                    unsafe { driver.copy(to, from, bytes) };
                }
                None => {
                    let mut values = vec![0; bytes];
                    memory.read(offset, &mut values)?;
                    // SAFETY: inside the allocation, and as many bytes.
                    unsafe { driver.copy_to_device(to, values.as_ptr(), bytes) };
                }
            },
        }
        driver.synchronize().map_err(words)
    }
}

fn words(error: DeviceError) -> MemoryError {
    MemoryError(error.to_string())
}
