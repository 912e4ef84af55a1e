//! The ring's cursors: who may touch which slot, and when. Knows nothing of slots, memory or processes.
//!
//! Each side counts its own messages in private and publishes the count. What the other side publishes is hostile
//! input: a count that goes back, or further than the slots allow, is an error.

use crate::doorbell::Bell;
use crate::error::ChannelError;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What one side publishes, on cache lines of its own (128: processors fetch lines in pairs).
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub struct Published {
    /// Messages that this side is done with.
    count: AtomicU64,
    /// Not 0: this side will do nothing more.
    closed: AtomicU32,
}

impl Published {
    /// Acquire; pairs with the Release in [`WriterCursor::publish`] and [`ReaderCursor::release`].
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Acquire; pairs with the Release in [`Published::close`], so that a count read after it is the last one.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0
    }

    fn close(&self) {
        self.closed.store(1, Ordering::Release);
    }
}

/// The shared words of a ring. All zero is an empty ring.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub struct Ring {
    /// The writer's: messages that are complete.
    written: Published,
    /// The reader's: messages whose slots are free again.
    read: Published,
    /// The reader waits here.
    pub filled: Bell,
    /// The writer waits here.
    pub freed: Bell,
}

impl Ring {
    /// Whether the writer told that nothing follows.
    pub fn is_writer_closed(&self) -> bool {
        self.written.is_closed()
    }

    /// Tells the reader that nothing follows.
    pub fn close_writer(&self) {
        self.written.close();
        self.filled.ring();
    }

    /// Tells the writer that nobody reads.
    pub fn close_reader(&self) {
        self.read.close();
        self.freed.ring();
    }
}

/// What a side may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Touch the slot of this message.
    Message(u64),
    /// Wait for the other side.
    Wait,
    /// The other side has closed, and there is nothing left to do.
    Closed,
}

/// The writer's private side.
#[derive(Debug)]
pub struct WriterCursor {
    next: u64,
    seen_read: u64,
    slots: u64,
}

impl WriterCursor {
    /// At the start of an empty ring of `slots` slots.
    #[must_use]
    pub const fn new(slots: u64) -> Self {
        Self {
            next: 0,
            seen_read: 0,
            slots,
        }
    }

    /// The message to write next, where its slot is free.
    ///
    /// # Errors
    /// The reader's count is damaged.
    pub fn claim(&mut self, ring: &Ring) -> Result<Turn, ChannelError> {
        if ring.read.is_closed() {
            return Ok(Turn::Closed);
        }
        if self.is_full() {
            let read = ring.read.count();
            self.seen_read = checked("read count", read, self.seen_read, self.next)?;
        }
        Ok(if self.is_full() {
            Turn::Wait
        } else {
            Turn::Message(self.next)
        })
    }

    /// Gives the message claimed last to the reader.
    pub fn publish(&mut self, ring: &Ring) {
        self.next += 1;
        ring.written.count.store(self.next, Ordering::Release);
        ring.filled.ring();
    }

    fn is_full(&self) -> bool {
        self.next - self.seen_read == self.slots
    }
}

/// The reader's private side.
#[derive(Debug)]
pub struct ReaderCursor {
    next: u64,
    seen_written: u64,
    slots: u64,
}

impl ReaderCursor {
    /// At the start of an empty ring of `slots` slots.
    #[must_use]
    pub const fn new(slots: u64) -> Self {
        Self {
            next: 0,
            seen_written: 0,
            slots,
        }
    }

    /// The message to read next, where it is complete.
    ///
    /// # Errors
    /// The writer's count is damaged.
    pub fn next(&mut self, ring: &Ring) -> Result<Turn, ChannelError> {
        if self.is_empty() {
            // In this order: what was written before the writer closed is still read.
            let is_closed = ring.written.is_closed();
            let written = ring.written.count();
            let most = self.next + self.slots;
            self.seen_written = checked("written count", written, self.seen_written, most)?;
            if self.is_empty() {
                return Ok(if is_closed { Turn::Closed } else { Turn::Wait });
            }
        }
        Ok(Turn::Message(self.next))
    }

    /// Gives the slot of the message read last back to the writer.
    pub fn release(&mut self, ring: &Ring) {
        self.next += 1;
        ring.read.count.store(self.next, Ordering::Release);
        ring.freed.ring();
    }

    fn is_empty(&self) -> bool {
        self.next == self.seen_written
    }
}

/// A count published by the other side, where it lies between what it said before and what is possible.
fn checked(field: &'static str, got: u64, least: u64, most: u64) -> Result<u64, ChannelError> {
    if (least..=most).contains(&got) {
        return Ok(got);
    }
    Err(ChannelError::Damaged {
        field,
        got,
        expected: format!("{least} to {most}"),
    })
}
