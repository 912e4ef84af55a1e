//! Pinned memory that copies pass through, in pieces: a piece is filled while the one before is on its way.
//!
//! The driver would take pageable memory too, but does not promise when it has read it.

use cudarc::driver::sys::{self, CUevent, CUstream};

use crate::error::DeviceError;
use crate::gpu::cuda::call::check;
use crate::gpu::cuda::context::Context;

/// Bytes of a piece: a copy of this size takes much longer than asking for it.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces in each direction.
const NUM_PIECES: usize = 3;
/// What begins in a piece is aligned to this.
const ALIGN: usize = 64;

/// The pieces of both directions.
#[derive(Debug)]
pub(super) struct Staging {
    to_device: Pieces,
    to_host: Pieces,
    /// Bytes of the first piece of `to_device` that are taken.
    used: usize,
    /// Which piece of `to_device` is the first.
    filling: usize,
}

#[derive(Debug)]
struct Pieces {
    memory: *mut u8,
    events: [CUevent; NUM_PIECES],
}

// SAFETY: handles of the driver and memory that nobody else knows.
unsafe impl Send for Staging {}

impl Pieces {
    fn new(context: &Context) -> Result<Self, DeviceError> {
        let mut pieces = Self {
            memory: context.pinned(NUM_PIECES * PIECE_BYTES)?,
            events: [std::ptr::null_mut(); NUM_PIECES],
        };
        for event in &mut pieces.events {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            // SAFETY: a place for the answer.
            check("cuEventCreate", unsafe { sys::cuEventCreate(event, flags) })?;
        }
        Ok(pieces)
    }

    fn piece(&self, index: usize) -> *mut u8 {
        // SAFETY: inside the allocation.
        unsafe { self.memory.add(index * PIECE_BYTES) }
    }

    /// Marks the place in the stream after which a piece is free.
    fn mark(&self, index: usize, stream: CUstream) -> Result<(), DeviceError> {
        // SAFETY: an event of ours and a stream of the same context.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(self.events[index], stream)
        })
    }

    /// Waits for the mark; a piece that has none is free.
    fn wait(&self, index: usize) -> Result<(), DeviceError> {
        // SAFETY: an event of ours.
        check("a copy (cuEventSynchronize)", unsafe {
            sys::cuEventSynchronize(self.events[index])
        })
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        for event in self.events.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: made by `new`; the stream has been waited for. An error would have nobody to go to.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
        // SAFETY: as above.
        let _ = unsafe { sys::cuMemFreeHost(self.memory.cast()) };
    }
}

impl Staging {
    pub(super) fn new(context: &Context) -> Result<Self, DeviceError> {
        Ok(Self {
            to_device: Pieces::new(context)?,
            to_host: Pieces::new(context)?,
            used: 0,
            filling: 0,
        })
    }

    /// Copies to the device; `from` has been read when this returns.
    ///
    /// # Safety
    /// Both ranges are valid, and the context of the stream is entered.
    pub(super) unsafe fn write(
        &mut self,
        stream: CUstream,
        mut to: u64,
        mut from: *const u8,
        mut bytes: usize,
    ) -> Result<(), DeviceError> {
        while bytes > 0 {
            // Copies that fit go whole, so that small ones are one copy each.
            let left = PIECE_BYTES - self.used;
            if left == 0 || (left < bytes && bytes <= PIECE_BYTES) {
                self.to_device.mark(self.filling, stream)?;
                self.filling = (self.filling + 1) % NUM_PIECES;
                self.used = 0;
                self.to_device.wait(self.filling)?;
                continue;
            }
            let now = bytes.min(left);
            // SAFETY: `used` is at most a piece.
            let stage = unsafe { self.to_device.piece(self.filling).add(self.used) };
            // SAFETY: `from` is the caller's word; what is left of the piece has been waited for and not been given out.
            unsafe { std::ptr::copy_nonoverlapping(from, stage, now) };
            // SAFETY: the caller's word; the stage stays as it is until the stream has passed the piece's mark.
            check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(to, stage.cast(), now, stream)
            })?;
            self.used = (self.used + now).next_multiple_of(ALIGN);
            to += now as u64;
            // SAFETY: `now` of them were copied.
            from = unsafe { from.add(now) };
            bytes -= now;
        }
        Ok(())
    }

    /// Copies to the host, and waits for it.
    ///
    /// # Safety
    /// As [`Staging::write`].
    pub(super) unsafe fn read(
        &mut self,
        stream: CUstream,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let count = bytes.div_ceil(PIECE_BYTES);
        let range = |piece: usize| {
            let at = piece * PIECE_BYTES;
            (at, PIECE_BYTES.min(bytes - at))
        };
        let ahead = NUM_PIECES - 1;
        for turn in 0..count + ahead {
            if turn < count {
                let ((at, len), index) = (range(turn), turn % NUM_PIECES);
                // SAFETY: the caller's word; the piece was emptied at the turn before.
                check("cuMemcpyDtoHAsync", unsafe {
                    sys::cuMemcpyDtoHAsync_v2(
                        self.to_host.piece(index).cast(),
                        from + at as u64,
                        len,
                        stream,
                    )
                })?;
                self.to_host.mark(index, stream)?;
            }
            if let Some(done) = turn.checked_sub(ahead) {
                let ((at, len), index) = (range(done), done % NUM_PIECES);
                self.to_host.wait(index)?;
                // SAFETY: the caller's word, and a piece that has arrived.
                unsafe {
                    std::ptr::copy_nonoverlapping(self.to_host.piece(index), to.add(at), len);
                }
            }
        }
        Ok(())
    }
}
