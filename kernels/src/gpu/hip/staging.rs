//! Pinned memory that copies of other host memory pass through: HIP does not promise when it has read or written what it
//! has not pinned.

use std::ffi::c_int;

use crate::error::DeviceError;
use crate::gpu::hip::api::{Direction, HOST_MALLOC_DEFAULT, Handle, Hip};

/// A copy of this size takes much longer than waiting for it.
const BYTES: usize = 4 << 20;
/// What begins in it is aligned to this.
const ALIGN: usize = 64;

/// The memory, and how much of it copies that may be on their way have taken.
#[derive(Debug)]
pub(super) struct Staging {
    hip: &'static Hip,
    device: c_int,
    memory: *mut u8,
    used: usize,
}

// SAFETY: memory that nobody else knows.
unsafe impl Send for Staging {}

impl Staging {
    /// For a device, which is entered.
    pub(super) fn new(hip: &'static Hip, device: c_int) -> Result<Self, DeviceError> {
        Ok(Self {
            hip,
            device,
            memory: pinned(hip, BYTES)?,
            used: 0,
        })
    }

    fn wait(&mut self, stream: Handle) -> Result<(), DeviceError> {
        // SAFETY: a stream of the driver.
        let result = unsafe { (self.hip.stream_synchronize)(stream) };
        self.hip.check("a copy (hipStreamSynchronize)", result)?;
        self.used = 0;
        Ok(())
    }

    /// Copies to the device; `from` has been read when this returns.
    ///
    /// # Safety
    /// Both ranges are valid, and the device is entered.
    pub(super) unsafe fn write(
        &mut self,
        stream: Handle,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < bytes {
            // Copies that fit go whole, so that small ones are one copy each.
            let (left, rest) = (BYTES - self.used, bytes - done);
            if left == 0 || (left < rest && rest <= BYTES) {
                self.wait(stream)?;
                continue;
            }
            let now = rest.min(left);
            // SAFETY: `used` is at most the whole.
            let stage = unsafe { self.memory.add(self.used) };
            // SAFETY: `from` is the caller's word; what is left of the memory has not been given out.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), stage, now) };
            // SAFETY: the caller's word; the stage stays as it is until the stream has been waited for.
            let result = unsafe {
                (self.hip.memcpy)(
                    (to + done as u64) as *mut _,
                    stage.cast(),
                    now,
                    Direction::ToDevice as c_int,
                    stream,
                )
            };
            self.hip.check("hipMemcpyAsync", result)?;
            self.used = (self.used + now).next_multiple_of(ALIGN);
            done += now;
        }
        Ok(())
    }

    /// Copies to the host, and waits for it.
    ///
    /// # Safety
    /// As [`Staging::write`].
    pub(super) unsafe fn read(
        &mut self,
        stream: Handle,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // What is on its way to the device may still lie here.
        if self.used > 0 {
            self.wait(stream)?;
        }
        for at in (0..bytes).step_by(BYTES) {
            let now = BYTES.min(bytes - at);
            // SAFETY: the caller's word, and memory that nothing is on its way from.
            let result = unsafe {
                (self.hip.memcpy)(
                    self.memory.cast(),
                    (from + at as u64) as *const _,
                    now,
                    Direction::ToHost as c_int,
                    stream,
                )
            };
            self.hip.check("hipMemcpyAsync", result)?;
            self.wait(stream)?;
            // SAFETY: the caller's word, and bytes that have arrived.
            unsafe { std::ptr::copy_nonoverlapping(self.memory, to.add(at), now) };
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.hip.enter(self.device).is_ok() {
            // SAFETY: made by `new`; the stream has been waited for. An error would have nobody to go to.
            let _ = unsafe { (self.hip.host_free)(self.memory.cast()) };
        }
    }
}

/// Host memory that the device, which is entered, copies from and to by itself.
pub(super) fn pinned(hip: &Hip, bytes: usize) -> Result<*mut u8, DeviceError> {
    let mut at = std::ptr::null_mut();
    // SAFETY: a place for the answer.
    let asked = hip.check("hipHostMalloc", unsafe {
        (hip.host_malloc)(&mut at, bytes, HOST_MALLOC_DEFAULT)
    });
    asked.map(|()| at.cast())
}
