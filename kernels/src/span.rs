//! Runs of values in a buffer, as payloads of tensor channels: they go from where they lie to where they are wanted.

use std::ops::Range;

use tensor_channel::{MemoryError, Place, Sink, Source};

use crate::buffer::Buffer;

/// Some f32 values of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    buffer: &'a Buffer,
    offset: usize,
    len: usize,
}

/// Some f32 values of a buffer, to be overwritten.
#[derive(Debug)]
pub struct SpanMut<'a> {
    buffer: &'a mut Buffer,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// The values of a range.
    ///
    /// # Panics
    /// They are not there, or not f32.
    #[must_use]
    pub fn span(&self, range: Range<usize>) -> Span<'_> {
        self.check_span(&range);
        Span {
            buffer: self,
            offset: range.start,
            len: range.len(),
        }
    }

    /// The values of a range, to be overwritten.
    ///
    /// # Panics
    /// As [`Buffer::span`].
    pub fn span_mut(&mut self, range: Range<usize>) -> SpanMut<'_> {
        self.check_span(&range);
        SpanMut {
            offset: range.start,
            len: range.len(),
            buffer: self,
        }
    }

    /// Copies values of another buffer of the same device to `offset..`, after what was asked of it before.
    ///
    /// # Panics
    /// There is no room, or the values are not f32.
    pub fn copy_from(&mut self, offset: usize, from: Span<'_>) {
        self.check_span(&(offset..offset + from.len));
        self.copy_f32(offset, from.buffer, from.offset, from.len);
    }

    /// Copies the values of a range to `to..`, after what was asked of the device before.
    ///
    /// # Panics
    /// They are not there or not f32, or the two ranges overlap.
    pub fn copy_own(&mut self, from: Range<usize>, to: usize) {
        self.check_span(&from);
        self.check_span(&(to..to + from.len()));
        assert!(
            to >= from.end || from.start >= to + from.len(),
            "values {from:?} copied to {to} overlap"
        );
        self.copy_own_f32(from, to);
    }

    fn check_span(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len() && self.is_f32(),
            "values {range:?} of a buffer of {} f32 values",
            self.len()
        );
    }
}

impl<'a> Span<'a> {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of them.
    ///
    /// # Panics
    /// They are not there.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len);
        Self {
            buffer: self.buffer,
            offset: self.offset + range.start,
            len: range.len(),
        }
    }

    /// The values, on the host.
    #[must_use]
    pub fn to_vec(self) -> Vec<f32> {
        let mut values = vec![0.0; self.len];
        self.buffer.read_f32(self.offset, &mut values);
        values
    }
}

impl Source for Span<'_> {
    fn bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }

    fn copy_to(&self, slot: Place<'_>) -> Result<(), MemoryError> {
        self.buffer.send(self.offset, self.len, slot)
    }
}

impl Sink for SpanMut<'_> {
    fn room(&self) -> usize {
        self.len * size_of::<f32>()
    }

    fn copy_from(&mut self, slot: Place<'_>) -> Result<(), MemoryError> {
        let fits = slot.bytes() <= self.room() && slot.bytes().is_multiple_of(size_of::<f32>());
        assert!(fits, "{} bytes for {} values", slot.bytes(), self.len);
        self.buffer.receive(self.offset, slot)
    }

    fn seen(&self) -> Option<&[u8]> {
        let values = self.buffer.on_host()?;
        Some(bytemuck::cast_slice(&values[self.offset..][..self.len]))
    }
}
