//! One slot of a segment: a line of words, then the payload.

use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::NonNull;

use crate::channel::Tag;
use crate::error::ChannelError;
use crate::geometry::{Geometry, PayloadsAt};
use crate::payload::HostBytes;
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
    let payload_bytes = match geometry.payloads_at() {
        PayloadsAt::Segment => geometry.slot_bytes().next_multiple_of(64),
        PayloadsAt::Device => 0,
    };
    size_of::<SlotHeader>() + payload_bytes
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

    /// Says what the payload is, which was checked to fit and is there.
    pub(crate) fn write(&self, number: u64, tag: Tag, bytes: usize) {
        let header = self.header();
        header
            .sequence
            .store(number.wrapping_add(1), Ordering::Relaxed);
        header.bytes.store(bytes as u64, Ordering::Relaxed);
        for (word, value) in header.tag.iter().zip(tag.0) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Tag and bytes of the payload.
    ///
    /// # Errors
    /// The slot holds another message, or one that is longer than a slot.
    pub(crate) fn read(&self, number: u64) -> Result<(Tag, usize), ChannelError> {
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
        let tag = Tag(header
            .tag
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed)));
        Ok((tag, bytes))
    }

    /// The first `bytes` of the payload, which lies in the segment.
    ///
    /// # Panics
    /// It does not, or has fewer.
    pub(crate) fn payload(&self, bytes: usize) -> HostBytes<'a> {
        let room = stride(&self.geometry) - size_of::<SlotHeader>();
        assert!(bytes <= room, "a payload longer than its slot");
        // SAFETY: `at` promises a whole stride, of which the header is the first part.
        let start = unsafe { self.start.add(size_of::<SlotHeader>()) };
        // SAFETY: as many bytes are left of the stride (just above), mapped for `'a`; no slice of them ever exists.
        unsafe { HostBytes::at(start, bytes) }
    }

    const fn header(&self) -> &SlotHeader {
        // SAFETY: `at` promises mapped bytes, aligned to 64, for `'a`, more than a `SlotHeader` has; it is made of
        // atomics only, so any bytes are valid, and the other process may change them.
        unsafe { self.start.cast::<SlotHeader>().as_ref() }
    }
}
