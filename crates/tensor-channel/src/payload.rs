//! Where payloads lie: in memory of this process, in a slot, or on a device.
//!
//! The channel knows nothing of devices. A device of the caller's copies between its own memory and slots, whether these
//! lie in shared memory of the host or in memory of a device that its owner lends to the other process.

use std::any::Any;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::transport::Transport;

/// What a device refused, in its words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(pub String);

/// Host memory that is copied and never borrowed: another process may change it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct HostBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

/// A slot's payload, as far as a message fills it.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In host memory.
    Host(HostBytes<'a>),
    /// On a device.
    Device {
        /// Where.
        memory: &'a (dyn SlotMemory + 'static),
        /// Byte of it at which the slot begins.
        offset: usize,
        /// Bytes of the payload.
        bytes: usize,
    },
}

/// Memory of a device with the slots of a channel: of this process's device, or lent by the peer. Dropping it gives it
/// back.
pub trait SlotMemory: Any + Debug + Send + Sync {
    /// Copies host bytes to `offset..`. They are there when this returns.
    ///
    /// # Errors
    /// The device's.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError>;

    /// Copies `offset..` to the host.
    ///
    /// # Errors
    /// The device's.
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), MemoryError>;
}

/// How another process opens memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryHandle {
    /// The device that owns it, by the identity that is the same in every process.
    pub device: [u8; 16],
    /// Its bytes.
    pub bytes: u64,
    /// What the device's driver made for the other process.
    pub handle: Vec<u8>,
}

/// Host memory that a device copies from and to by itself. Dropping it ends that.
pub trait Registered: Debug + Send + Sync {}

/// A device of the caller's, as channels see it.
pub trait ChannelDevice: Debug + Send + Sync {
    /// The transport whose slots lie in memory of such devices; `None`: there is none.
    fn transport(&self) -> Option<Transport>;

    /// Memory that one other process can write to.
    ///
    /// # Errors
    /// There is no such memory left, or the driver cannot lend it.
    fn share(&self, bytes: usize) -> Result<(Box<dyn SlotMemory>, MemoryHandle), MemoryError>;

    /// Memory that another process lends; at least as many bytes as the handle says.
    ///
    /// # Errors
    /// It is out of reach, or there is less of it.
    fn open(&self, handle: &MemoryHandle) -> Result<Box<dyn SlotMemory>, MemoryError>;

    /// Lets the device copy from and to `bytes` bytes of host memory by itself.
    ///
    /// # Errors
    /// The driver refuses; copies then take a detour.
    ///
    /// # Safety
    /// The memory stays mapped until the value returned is dropped.
    unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Result<Box<dyn Registered>, MemoryError>;
}

/// A payload to send, wherever it lies.
pub trait Source {
    /// Its bytes.
    fn bytes(&self) -> usize;

    /// Copies all of it to a slot. It is there when this returns.
    ///
    /// # Errors
    /// The device's.
    fn copy_to(&self, slot: Place<'_>) -> Result<(), MemoryError>;
}

/// Room for a payload, wherever it lies.
pub trait Sink {
    /// Its bytes.
    fn room(&self) -> usize;

    /// Copies a slot's payload to the front. The slot is no longer needed when this returns.
    ///
    /// # Errors
    /// The device's.
    fn copy_from(&mut self, slot: Place<'_>) -> Result<(), MemoryError>;

    /// The room, where this process can look at it.
    fn seen(&self) -> Option<&[u8]>;
}

impl<'a> HostBytes<'a> {
    /// # Safety
    /// `len` bytes are mapped for `'a`, and no reference to them exists.
    pub(crate) const unsafe fn at(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            memory: PhantomData,
        }
    }

    /// Memory of this process's own.
    #[must_use]
    pub const fn of(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        Self {
            start: NonNull::from_mut(bytes).cast(),
            len,
            memory: PhantomData,
        }
    }

    /// Its address. [`HostBytes::len`] bytes are mapped there; another process may change them at any time.
    #[must_use]
    pub const fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies bytes to the front.
    ///
    /// # Panics
    /// There are more than fit.
    pub fn write(self, from: &[u8]) {
        assert!(from.len() <= self.len, "more bytes than a slot has");
        // SAFETY: as many bytes are mapped (`at`, `of`), and `from` cannot overlap them, as no reference to them exists.
        unsafe {
            self.start
                .copy_from_nonoverlapping(NonNull::from(from).cast(), from.len())
        };
    }

    /// Copies all of it to the front of `to`.
    ///
    /// # Panics
    /// `to` is shorter.
    pub fn read(self, to: &mut [u8]) {
        assert!(self.len <= to.len(), "less room than a payload has bytes");
        // SAFETY: as in `write`; there is room.
        unsafe {
            self.start
                .copy_to_nonoverlapping(NonNull::from(to).cast(), self.len)
        };
    }
}

impl Place<'_> {
    /// Bytes of the payload.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device { bytes, .. } => *bytes,
        }
    }
}

impl Source for &[u8] {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn copy_to(&self, slot: Place<'_>) -> Result<(), MemoryError> {
        match slot {
            Place::Host(bytes) => {
                bytes.write(self);
                Ok(())
            }
            Place::Device { memory, offset, .. } => memory.write(offset, self),
        }
    }
}

impl Sink for &mut [u8] {
    fn room(&self) -> usize {
        self.len()
    }

    fn copy_from(&mut self, slot: Place<'_>) -> Result<(), MemoryError> {
        match slot {
            Place::Host(bytes) => {
                bytes.read(self);
                Ok(())
            }
            Place::Device {
                memory,
                offset,
                bytes,
            } => memory.read(offset, &mut self[..bytes]),
        }
    }

    fn seen(&self) -> Option<&[u8]> {
        Some(self)
    }
}
