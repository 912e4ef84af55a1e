//! One slot of a segment: a line of words, then the payload.

use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::NonNull;

use crate::channel::Tag;
use crate::error::ChannelError;
use crate::geometry::Geometry;
use crate::sync::{AtomicU64, Ordering};

/// The words before a payload. Relaxed throughout: the ring's cursors order them.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SlotHeader {
    /// Number of the message plus one, so that fresh memory is no message.
    sequence: AtomicU64,
    /// Bytes of the payload.
    bytes: AtomicU64,
    tag: [AtomicU64; 4],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<SlotHeader>() == 64);
    assert!(offset_of!(SlotHeader, bytes) == 8);
    assert!(offset_of!(SlotHeader, tag) == 16);
};

/// Bytes from one slot to the next: whole cache lines.
pub(crate) const fn stride(geometry: &Geometry) -> usize {
    size_of::<SlotHeader>() + geometry.slot_bytes().next_multiple_of(64)
}

/// A slot in the memory of `'a`.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    start: NonNull<u8>,
    geometry: Geometry,
    memory: PhantomData<&'a SlotHeader>,
}

impl<'a> Slot<'a> {
    /// # Safety
    /// For `'a`, `start` points to [`stride`] mapped bytes aligned to 64, which other code of this process touches
    /// through a `Slot` only.
    pub(crate) const unsafe fn at(start: NonNull<u8>, geometry: Geometry) -> Self {
        Self {
            start,
            geometry,
            memory: PhantomData,
        }
    }

    /// Copies a message in. The payload was checked to fit: what does not fit a slot is cut off.
    pub(crate) fn write(&self, number: u64, tag: Tag, payload: &[u8]) {
        let header = self.header();
        let bytes = payload.len().min(self.geometry.slot_bytes());
        header
            .sequence
            .store(number.wrapping_add(1), Ordering::Relaxed);
        header.bytes.store(bytes as u64, Ordering::Relaxed);
        for (word, value) in header.tag.iter().zip(tag.0) {
            word.store(value, Ordering::Relaxed);
        }
        // SAFETY: `bytes` is at most the payload's length and at most the slot's (both just above); the slot's memory
        // is mapped (`at`), and a caller's slice never overlaps it, as it is never lent as a slice.
        unsafe {
            self.payload()
                .copy_from_nonoverlapping(NonNull::from(payload).cast(), bytes)
        };
    }

    /// Copies a message out to the front of `room`, which was checked to hold a slot; gives its tag and bytes.
    ///
    /// # Errors
    /// The slot holds another message, or one that is longer than a slot.
    pub(crate) fn read(&self, number: u64, room: &mut [u8]) -> Result<(Tag, usize), ChannelError> {
        let header = self.header();
        let sequence = header.sequence.load(Ordering::Relaxed);
        if sequence != number.wrapping_add(1) {
            return Err(ChannelError::Damaged {
                field: "slot sequence",
                got: sequence,
                expected: number.wrapping_add(1).to_string(),
            });
        }
        let written = header.bytes.load(Ordering::Relaxed);
        let bytes = self.geometry.check_written(written)?;
        self.geometry.check_room(room.len())?;
        let tag = Tag(header
            .tag
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed)));
        // SAFETY: `bytes` is at most the slot's (checked by `check_written` on our copy of the field), and `room` is at
        // least that long (`check_room`); the slot's memory is mapped (`at`), and no slice of it exists to overlap.
        unsafe {
            self.payload()
                .copy_to_nonoverlapping(NonNull::from(room).cast(), bytes)
        };
        Ok((tag, bytes))
    }

    const fn header(&self) -> &SlotHeader {
        // SAFETY: `at` promises mapped bytes, aligned to 64, for `'a`, more than a `SlotHeader` has; it is made of
        // atomics only, so any bytes are valid, and the other process may change them.
        unsafe { self.start.cast::<SlotHeader>().as_ref() }
    }

    const fn payload(&self) -> NonNull<u8> {
        // SAFETY: `at` promises a whole stride, of which the header is the first part.
        unsafe { self.start.add(size_of::<SlotHeader>()) }
    }
}
