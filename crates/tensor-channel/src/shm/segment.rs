//! A segment of shared memory: its header, its slots, its name and its lock.

use std::fmt::{self, Debug, Formatter};
use std::fs::{self, File, TryLockError};
use std::io;
use std::mem::size_of;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, fallocate};
use shared_memory::{Shmem, ShmemConf, ShmemError};

use crate::error::ChannelError;
use crate::geometry::Geometry;
use crate::payload::{ChannelDevice, MemoryError, Registered};
use crate::shm::header::Header;
use crate::shm::name;
use crate::shm::slot::{self, Slot};

/// How often a new segment may fall to somebody who takes it for left behind before it was locked.
const CREATE_TRIES: usize = 8;

/// A mapped segment of one channel.
pub(crate) struct Segment {
    memory: Shmem,
    geometry: Geometry,
    /// Its file, for the lock: who holds it lives. The lock goes with the process, whatever its pid namespace.
    file: File,
}

// SAFETY: the mapping belongs to this value until it drops, and is not bound to a thread. Its memory is only touched
// through atomics (`header`) and by copies whose slot the ring's cursors give to one end at a time (`slot`).
unsafe impl Send for Segment {}
// SAFETY: as for `Send`; no method changes the value itself.
unsafe impl Sync for Segment {}

/// The name of a segment that this process created. Taken away when this drops: the memory stays for those who have it.
#[derive(Debug)]
pub(crate) struct Name(String);

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        unlink(&self.0);
    }
}

impl Segment {
    /// Makes a locked segment of zeros under a name that nobody can guess.
    ///
    /// # Errors
    /// The system refuses the segment; the instance cannot stand in a name.
    pub(crate) fn create(instance: &str, geometry: Geometry) -> Result<(Self, Name), ChannelError> {
        for _ in 0..CREATE_TRIES {
            let name = name::unguessable(instance)?;
            let mut memory = ShmemConf::new()
                .os_id(&name)
                .size(mapped_bytes(&geometry))
                .create()
                .map_err(|error| failed("creating", &name, system(error)))?;
            let Some(file) = lock(&name)? else { continue };
            // Now, rather than by a SIGBUS in the middle of a copy, it turns out that there is no memory.
            fallocate(&file, FallocateFlags::empty(), 0, memory.len() as u64)
                .map_err(|error| failed("reserving", &name, error.into()))?;
            memory.set_owner(false);
            let segment = Self {
                memory,
                geometry,
                file,
            };
            return Ok((segment, Name(name)));
        }
        let busy = io::Error::from(io::ErrorKind::ResourceBusy);
        Err(failed("locking", &name::prefix(instance), busy))
    }

    /// Maps a segment that another process created.
    ///
    /// # Errors
    /// There is no such segment, or it is not what `geometry` and `generation` say.
    pub(crate) fn open(
        name: &str,
        geometry: Geometry,
        generation: u64,
    ) -> Result<Self, ChannelError> {
        name::check(name)?;
        let memory = ShmemConf::new()
            .os_id(name)
            .open()
            .map_err(|error| failed("opening", name, system(error)))?;
        let file = File::open(name::path(name)).map_err(|error| failed("opening", name, error))?;
        let (got, expected) = (memory.len(), mapped_bytes(&geometry));
        let damaged = |expected: String| ChannelError::Damaged {
            field: "segment bytes",
            got: got as u64,
            expected,
        };
        if got < size_of::<Header>() {
            return Err(damaged(format!("at least {}", size_of::<Header>())));
        }
        let segment = Self {
            memory,
            geometry,
            file,
        };
        // Before the size, which differs where a field does, and says less.
        segment
            .header()
            .identity
            .check(&segment.geometry, generation)?;
        if got != expected {
            return Err(damaged(expected.to_string()));
        }
        Ok(segment)
    }

    /// Takes the lock if nobody has it.
    pub(crate) fn try_lock(&self) -> bool {
        self.file.try_lock().is_ok()
    }

    /// Gives the lock up, for the peer to take it or because it was only tried.
    pub(crate) fn unlock(&self) {
        if let Err(error) = self.file.unlock() {
            tracing::warn!(name = self.memory.get_os_id(), %error, "a segment stays locked");
        }
    }

    pub(crate) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the mapping begins at a page and is longer than a header (`create`, `open`), and lives as long as
        // `self`; a header is made of atomics only, so any bytes are valid, and the other process may change them.
        unsafe { self.start().cast::<Header>().as_ref() }
    }

    /// The slot of a message.
    pub(crate) fn slot(&self, number: u64) -> Slot<'_> {
        let index = number % self.geometry.spec().slots as u64;
        let offset = size_of::<Header>() + index as usize * slot::stride(&self.geometry);
        // SAFETY: `index` is below the number of slots, and `mapped_bytes` has room for that many strides.
        let start = unsafe { self.start().add(offset) };
        // SAFETY: a whole stride follows `start`, as above, mapped while `self` lives; pages, the header and strides
        // are multiples of 64 bytes. This is the one function that makes slots of this memory.
        unsafe { Slot::at(start, self.geometry) }
    }

    /// Byte of device memory at which the slot of a message begins.
    pub(crate) fn device_offset(&self, number: u64) -> usize {
        let index = number % self.geometry.spec().slots as u64;
        index as usize * self.geometry.device_stride()
    }

    /// Lets a device copy from and to the slots by itself, until the value returned is dropped, which must be before this
    /// segment is.
    pub(crate) fn register(
        &self,
        device: &dyn ChannelDevice,
    ) -> Result<Box<dyn Registered>, MemoryError> {
        // SAFETY: the whole mapping, which lives as long as `self`; `Pulse` drops what it gets here before its segment.
        unsafe { device.register(self.start(), self.memory.len()) }
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_ptr()).expect("a mapping has an address")
    }
}

impl Debug for Segment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("name", &self.memory.get_os_id())
            .field("geometry", &self.geometry)
            .finish()
    }
}

/// Takes the name of a segment away, if it still has one.
pub(crate) fn unlink(name: &str) {
    if let Err(error) = fs::remove_file(name::path(name))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(name, %error, "a shared memory segment stays behind");
    }
}

/// Locks a segment just created. `None`: somebody was faster and took it for left behind.
fn lock(name: &str) -> Result<Option<File>, ChannelError> {
    let file = match File::options()
        .read(true)
        .write(true)
        .open(name::path(name))
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("opening", name, error)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(failed("locking", name, error)),
    }
    let links = file
        .metadata()
        .map_err(|error| failed("reading the state of", name, error))?
        .nlink();
    Ok((links > 0).then_some(file))
}

fn mapped_bytes(geometry: &Geometry) -> usize {
    size_of::<Header>() + geometry.spec().slots * slot::stride(geometry)
}

fn failed(doing: &str, name: &str, source: io::Error) -> ChannelError {
    ChannelError::Io {
        what: format!("{doing} the shared memory segment {name}"),
        source,
    }
}

/// What the system said.
fn system(error: ShmemError) -> io::Error {
    match error {
        ShmemError::MapCreateFailed(code)
        | ShmemError::MapOpenFailed(code)
        | ShmemError::UnknownOsError(code) => io::Error::from_raw_os_error(code.cast_signed()),
        other => io::Error::other(other.to_string()),
    }
}
