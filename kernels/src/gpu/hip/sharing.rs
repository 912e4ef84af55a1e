//! Memory of HIP devices in other processes: as CUDA's, but only where the devices reach each other.

use std::ffi::c_void;

use tensor_channel::{MemoryHandle, Transport};

use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver, refused};
use crate::gpu::hip::HipDriver;
use crate::gpu::hip::api::{
    Direction, HOST_REGISTER_MAPPED, HOST_REGISTER_PORTABLE, IPC_LAZY_PEER_ACCESS, IpcHandle,
};
use crate::gpu::sharing::Sharing;

/// Small allocations lie together, and would all be shared.
const ALLOCATION_BYTES: usize = 2 << 20;

impl Sharing for HipDriver {
    fn transport(&self) -> Transport {
        Transport::HipIpc
    }

    fn share(&self, bytes: usize) -> Result<(DevicePtr, Vec<u8>), DeviceError> {
        let ptr = self.allocate(bytes.max(1).next_multiple_of(ALLOCATION_BYTES))?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: a place for the answer, and the begin of an allocation.
        let shared = self.hip.check("hipIpcGetMemHandle", unsafe {
            (self.hip.ipc_get)(&mut handle, ptr.0 as *mut c_void)
        });
        if let Err(error) = shared {
            self.free_now(ptr);
            return Err(error);
        }
        Ok((ptr, handle.0.to_vec()))
    }

    unsafe fn unshare(&self, ptr: DevicePtr) {
        if self.enter().is_ok() {
            self.free_now(ptr);
        }
    }

    fn open_shared(&self, handle: &MemoryHandle) -> Result<DevicePtr, DeviceError> {
        let raw = handle.handle.as_slice().try_into().map_err(|_| {
            let len = handle.handle.len();
            refused(format_args!("a handle of {len} bytes, expected 64"))
        })?;
        self.enter()?;
        let mut at = std::ptr::null_mut();
        // SAFETY: a place for the answer; the runtime checks the handle.
        self.hip.check("hipIpcOpenMemHandle", unsafe {
            (self.hip.ipc_open)(&mut at, IpcHandle(raw), IPC_LAZY_PEER_ACCESS)
        })?;
        Ok(DevicePtr(at as u64))
    }

    unsafe fn close_shared(&self, ptr: DevicePtr) {
        if self.enter().is_ok() {
            // SAFETY: from `open_shared`; each copy to it was waited for. An error would have nobody to go to.
            let _ = unsafe { (self.hip.ipc_close)(ptr.0 as *mut c_void) };
        }
    }

    unsafe fn copy_to_shared(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        if bytes > 0 && self.is_usable() {
            // SAFETY: the caller's word.
            unsafe { self.copy_pinned(to.0, from.0, bytes, Direction::OnDevice) };
        }
    }

    unsafe fn register(&self, at: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        self.enter()?;
        let flags = HOST_REGISTER_PORTABLE | HOST_REGISTER_MAPPED;
        // SAFETY: the caller's word.
        self.hip.check("hipHostRegister", unsafe {
            (self.hip.host_register)(at.cast(), bytes, flags)
        })?;
        self.notes.pin(at, bytes);
        Ok(())
    }

    unsafe fn unregister(&self, at: *mut u8) {
        self.notes.unpin(at);
        if self.enter().is_ok() {
            // SAFETY: registered, and copied from and to by nothing. An error would have nobody to go to.
            let _ = unsafe { (self.hip.host_unregister)(at.cast()) };
        }
    }
}
