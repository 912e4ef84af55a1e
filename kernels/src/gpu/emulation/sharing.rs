//! Memory of the emulated device in other processes: a nameless file that both map.
//!
//! With the manners of real runtimes: a process cannot open its own, and host memory is registered once.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use memmap2::MmapMut;
use tensor_channel::{MemoryHandle, Transport};

use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver, refused};
use crate::gpu::emulation::Emulation;
use crate::gpu::exchange::try_out;
use crate::gpu::sharing::Sharing;

/// Process, descriptor, device and inode of the file.
const HANDLE_WORDS: usize = 4;

/// A file and where it is mapped.
#[derive(Debug)]
pub(super) struct SharedFile {
    _file: Option<File>,
    _map: MmapMut,
}

impl Sharing for Emulation {
    fn transport(&self) -> Transport {
        Transport::EmulatedIpc
    }

    fn share(&self, bytes: usize) -> Result<(DevicePtr, Vec<u8>), DeviceError> {
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
        let file = file.map_err(refused)?;
        file.set_len(bytes.max(1) as u64).map_err(refused)?;
        let about = file.metadata().map_err(refused)?;
        let words: [u64; HANDLE_WORDS] = [
            std::process::id().into(),
            u64::from(file.as_raw_fd().cast_unsigned()),
            about.dev(),
            about.ino(),
        ];
        let handle = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok((self.map(file, true)?, handle))
    }

    unsafe fn unshare(&self, ptr: DevicePtr) {
        self.state().shared.remove(&ptr.0);
    }

    fn open_shared(&self, handle: &MemoryHandle) -> Result<DevicePtr, DeviceError> {
        let (words, rest) = handle.handle.as_chunks();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let &[process, descriptor, device, inode] = words.as_slice() else {
            return Err(refused(format_args!(
                "a handle of {} bytes, expected {}",
                handle.handle.len(),
                8 * HANDLE_WORDS
            )));
        };
        if process == u64::from(std::process::id()) || !rest.is_empty() {
            return Err(refused(
                "a process cannot open memory that it shares itself",
            ));
        }
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|error| refused(format_args!("{path}: {error}")))?;
        let about = file.metadata().map_err(refused)?;
        if (about.dev(), about.ino()) != (device, inode) {
            return Err(refused(format_args!("{path} is another file")));
        }
        if about.len() < handle.bytes {
            return Err(refused(format_args!(
                "the memory has {} bytes, expected {}",
                about.len(),
                handle.bytes
            )));
        }
        let ptr = self.map(file, false)?;
        let tried = try_out(
            handle.bytes,
            |pattern| {
                // SAFETY: at most as many bytes as were just mapped.
                unsafe { self.copy_to_device(ptr, pattern.as_ptr(), pattern.len()) };
                Ok(())
            },
            |found| {
                // SAFETY: as above.
                unsafe { self.copy_to_host(found.as_mut_ptr(), ptr, found.len()) };
                Ok(())
            },
        );
        if let Err(error) = tried {
            self.state().shared.remove(&ptr.0);
            return Err(error);
        }
        Ok(ptr)
    }

    unsafe fn close_shared(&self, ptr: DevicePtr) {
        self.state().shared.remove(&ptr.0);
    }

    unsafe fn copy_to_shared(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        // SAFETY: the caller's word.
        unsafe { self.copy(to, from, bytes) };
    }

    unsafe fn register(&self, at: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        let (begin, end) = (at as u64, at as u64 + bytes as u64);
        let mut state = self.state();
        let mut known = state.pinned.iter();
        if known.any(|&(first, last)| begin < last && first < end) {
            return Err(refused("host memory that is registered already"));
        }
        state.pinned.push((begin, end));
        Ok(())
    }

    unsafe fn unregister(&self, at: *mut u8) {
        let begin = at as u64;
        self.state().pinned.retain(|&(first, _)| first != begin);
    }
}

impl Emulation {
    /// Maps a file; its owner keeps it, so that others can open it.
    fn map(&self, file: File, is_own: bool) -> Result<DevicePtr, DeviceError> {
        // SAFETY: other processes change it, which is what it is for: it is only ever copied from and to.
        let map = unsafe { MmapMut::map_mut(&file) }.map_err(refused)?;
        let ptr = DevicePtr(map.as_ptr() as u64);
        let shared = SharedFile {
            _file: is_own.then_some(file),
            _map: map,
        };
        self.state().shared.insert(ptr.0, shared);
        Ok(ptr)
    }
}
