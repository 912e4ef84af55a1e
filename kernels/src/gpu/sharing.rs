//! What a GPU runtime offers for memory that two processes use.

use tensor_channel::{MemoryHandle, Transport};

use crate::error::DeviceError;
use crate::gpu::driver::DevicePtr;

/// Memory of a device in other processes, and host memory in the device. Unlike the rest of a driver any thread may call
/// this, also while another records.
pub(crate) trait Sharing {
    /// The transport by which such devices share memory.
    fn transport(&self) -> Transport;

    /// An allocation of its own that one other process can open, and what its driver needs for it.
    fn share(&self, bytes: usize) -> Result<(DevicePtr, Vec<u8>), DeviceError>;

    /// Gives memory back that was shared.
    ///
    /// # Safety
    /// It came from `share`, the other process has closed it, and nothing that was asked is still to use it.
    unsafe fn unshare(&self, ptr: DevicePtr);

    /// Opens memory that another process shares, of this device or of another of its kind.
    fn open_shared(&self, handle: &MemoryHandle) -> Result<DevicePtr, DeviceError>;

    /// Closes it.
    ///
    /// # Safety
    /// It came from `open_shared`, and nothing that was asked is still to use it.
    unsafe fn close_shared(&self, ptr: DevicePtr);

    /// Copies to memory opened, which may lie on another device.
    ///
    /// # Safety
    /// Both ranges are valid.
    unsafe fn copy_to_shared(&self, to: DevicePtr, from: DevicePtr, bytes: usize);

    /// Makes host memory pinned that was allocated elsewhere.
    ///
    /// # Safety
    /// It stays mapped until `unregister`.
    unsafe fn register(&self, at: *mut u8, bytes: usize) -> Result<(), DeviceError>;

    /// # Safety
    /// It was registered, and nothing copies from or to it any more.
    unsafe fn unregister(&self, at: *mut u8);
}
