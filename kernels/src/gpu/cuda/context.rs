//! A device's context and a stream of our own in it.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUstream};

use crate::error::DeviceError;
use crate::gpu::cuda::call::check;

thread_local! {
    /// The context that this thread's calls go to. All that asks CUDA for anything in this process goes through
    /// [`Context::enter`], so it need not be asked.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// The primary context of a device, shared by all that use the device in this process.
#[derive(Debug)]
pub(super) struct Context {
    device: CUdevice,
    context: CUcontext,
    /// Unlike the pointer, never seen twice.
    id: u64,
}

// SAFETY: handles of the driver, which any thread may use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn of(device: CUdevice) -> Result<Self, DeviceError> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let mut context = std::ptr::null_mut();
        // SAFETY: a place for the answer; given back when this is dropped.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, device)
        })?;
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            device,
            context,
            id,
        })
    }

    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    pub(super) fn handle(&self) -> CUcontext {
        self.context
    }

    /// Makes it the one that this thread's calls go to.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        if CURRENT.get() == self.id {
            return Ok(());
        }
        // SAFETY: retained above.
        check("cuCtxSetCurrent", unsafe {
            sys::cuCtxSetCurrent(self.context)
        })?;
        CURRENT.set(self.id);
        Ok(())
    }

    /// Free bytes and all bytes of the device's memory.
    pub(super) fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for the answer.
        check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok((free as u64, total as u64))
    }

    /// A stream that waits for no other.
    pub(super) fn stream(&self) -> Result<CUstream, DeviceError> {
        self.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a place for the answer.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut stream, flags)
        })?;
        Ok(stream)
    }

    /// Host memory that the device copies from and to by itself.
    pub(super) fn pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        self.enter()?;
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        let asked = check("cuMemAllocHost", unsafe {
            sys::cuMemAllocHost_v2(&mut at, bytes)
        });
        asked.map(|()| at.cast())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `of`, once. An error would have nobody to go to.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
