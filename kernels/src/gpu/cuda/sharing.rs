//! Memory of CUDA devices in other processes, by the driver's legacy handles: 64 bytes that any way can carry.
//!
//! They stand for whole allocations, and a process cannot open its own. The alternative, descriptors of virtual memory,
//! would also pass between namespaces of process ids, but needs a socket of its own.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::driver::sys::{self, CUdevice};
use tensor_channel::{MemoryHandle, Transport};

use crate::error::DeviceError;
use crate::gpu::cuda::call::{check, is_ok};
use crate::gpu::cuda::context::Context;
use crate::gpu::cuda::{Cuda, facts, free};
use crate::gpu::driver::{DevicePtr, Driver, refused};
use crate::gpu::exchange::try_out;
use crate::gpu::sharing::Sharing;

/// The driver puts smaller allocations together, and would share them all.
const ALLOCATION_BYTES: usize = 2 << 20;
const HANDLE_BYTES: usize = 64;

/// Memory of other processes by its address.
#[derive(Debug, Default)]
pub(super) struct OpenedMemory(HashMap<u64, Opened>);

#[derive(Debug)]
struct Opened {
    bytes: u64,
    /// Of the device that owns it, where this one's kernels and copies do not reach it.
    context: Option<Context>,
}

impl OpenedMemory {
    /// What an address lies in.
    fn find(&self, at: DevicePtr) -> Option<&Opened> {
        let found = self.0.iter().find(|(begin, opened)| {
            let range = **begin..**begin + opened.bytes;
            range.contains(&at.0)
        });
        found.map(|(_, opened)| opened)
    }
}

impl Sharing for Cuda {
    fn transport(&self) -> Transport {
        Transport::CudaIpc
    }

    fn share(&self, bytes: usize) -> Result<(DevicePtr, Vec<u8>), DeviceError> {
        let bytes = bytes.max(1).next_multiple_of(ALLOCATION_BYTES);
        let ptr = self.allocate(bytes)?;
        let mut handle = sys::CUipcMemHandle {
            reserved: [0; HANDLE_BYTES],
        };
        // SAFETY: a place for the answer, and the begin of an allocation.
        let shared = check("cuIpcGetMemHandle", unsafe {
            sys::cuIpcGetMemHandle(&mut handle, ptr.0)
        });
        if let Err(error) = shared {
            free(ptr);
            return Err(error);
        }
        let bytes = handle
            .reserved
            .map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()));
        Ok((ptr, bytes.to_vec()))
    }

    unsafe fn unshare(&self, ptr: DevicePtr) {
        if self.context.enter().is_ok() {
            free(ptr);
        }
    }

    fn open_shared(&self, handle: &MemoryHandle) -> Result<DevicePtr, DeviceError> {
        let raw: [u8; HANDLE_BYTES] = handle.handle.as_slice().try_into().map_err(|_| {
            let len = handle.handle.len();
            refused(format_args!(
                "a handle of {len} bytes, expected {HANDLE_BYTES}"
            ))
        })?;
        let owner = device_of(handle.device)?;
        let ours = self.context.device();
        // A device that this process does not see is left to the driver.
        let is_near = owner.is_none_or(|owner| owner == ours || facts::reaches(ours, owner));
        let context = match owner.filter(|_| !is_near) {
            Some(owner) => Some(Context::of(owner)?),
            None => None,
        };
        context.as_ref().unwrap_or(&self.context).enter()?;
        let mut at = 0;
        let reserved = raw.map(|byte| i8::from_ne_bytes([byte]) as std::ffi::c_char);
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: a place for the answer; the driver checks the handle.
        check("cuIpcOpenMemHandle", unsafe {
            sys::cuIpcOpenMemHandle_v2(&mut at, sys::CUipcMemHandle { reserved }, flags)
        })?;
        let opened = check_size(at, handle.bytes).and_then(|()| {
            let write = |pattern: &[u8]| {
                // SAFETY: as many bytes as were found there; no other thread knows the memory yet.
                let result =
                    unsafe { sys::cuMemcpyHtoD_v2(at, pattern.as_ptr().cast(), pattern.len()) };
                check("cuMemcpyHtoD", result)
            };
            let read = |found: &mut [u8]| {
                // SAFETY: as above.
                let result =
                    unsafe { sys::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), at, found.len()) };
                check("cuMemcpyDtoH", result)
            };
            try_out(handle.bytes, write, read)
        });
        if let Err(error) = opened {
            // SAFETY: opened above, in the context that is entered. An error would have nobody to go to.
            let _ = unsafe { sys::cuIpcCloseMemHandle(at) };
            return Err(error);
        }
        let bytes = handle.bytes;
        self.opened().0.insert(at, Opened { bytes, context });
        Ok(DevicePtr(at))
    }

    unsafe fn close_shared(&self, ptr: DevicePtr) {
        let Some(opened) = self.opened().0.remove(&ptr.0) else {
            return;
        };
        if opened
            .context
            .as_ref()
            .unwrap_or(&self.context)
            .enter()
            .is_ok()
        {
            // SAFETY: from `open_shared`; each copy to it was waited for. An error would have nobody to go to.
            let _ = unsafe { sys::cuIpcCloseMemHandle(ptr.0) };
        }
    }

    unsafe fn copy_to_shared(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        let opened = self.opened();
        let Some(context) = opened.find(to).and_then(|opened| opened.context.as_ref()) else {
            drop(opened);
            // SAFETY: the caller's word.
            return unsafe { self.copy(to, from, bytes) };
        };
        if bytes > 0 && self.is_usable() {
            self.put_no_kernel();
            // SAFETY: the caller's word. The driver goes through host memory where there is no other way.
            let result = unsafe {
                sys::cuMemcpyPeerAsync(
                    to.0,
                    context.handle(),
                    from.0,
                    self.context.handle(),
                    bytes,
                    self.stream,
                )
            };
            self.check("cuMemcpyPeerAsync", result);
        }
    }

    unsafe fn register(&self, at: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        self.context.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller's word.
        check("cuMemHostRegister", unsafe {
            sys::cuMemHostRegister_v2(at.cast::<c_void>(), bytes, flags)
        })?;
        self.notes.pin(at, bytes);
        Ok(())
    }

    unsafe fn unregister(&self, at: *mut u8) {
        self.notes.unpin(at);
        if self.context.enter().is_ok() {
            // SAFETY: registered, and copied from and to by nothing. An error would have nobody to go to.
            let _ = unsafe { sys::cuMemHostUnregister(at.cast()) };
        }
    }
}

/// The device of an identity, where this process sees it.
fn device_of(uuid: [u8; 16]) -> Result<Option<CUdevice>, DeviceError> {
    for ordinal in 0..facts::count()? {
        let device = facts::device(ordinal)?;
        if facts::uuid(device)? == uuid {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Whether an allocation has as many bytes as its owner says, where the driver knows.
fn check_size(at: u64, bytes: u64) -> Result<(), DeviceError> {
    let (mut begin, mut size) = (0, 0);
    // SAFETY: places for the answer.
    let known = is_ok(unsafe { sys::cuMemGetAddressRange_v2(&mut begin, &mut size, at) });
    if known && (begin != at || (size as u64) < bytes) {
        return Err(refused(format_args!(
            "the memory has {size} bytes, expected {bytes}"
        )));
    }
    Ok(())
}
