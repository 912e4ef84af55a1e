//! The reading end over shared memory.

use std::time::Duration;

use crate::channel::{ChannelSpec, Tag, TensorReceiver};
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::payload::Sink;
use crate::ring::{ReaderCursor, Turn};
use crate::shm::heartbeat::Pulse;

/// Reads from slots.
#[derive(Debug)]
pub(crate) struct ShmReceiver {
    cursor: ReaderCursor,
    pulse: Pulse,
}

impl ShmReceiver {
    /// The reader of a segment of which nothing was read yet.
    pub(crate) fn new(pulse: Pulse) -> Self {
        Self {
            cursor: ReaderCursor::new(pulse.segment().geometry().spec().slots as u64),
            pulse,
        }
    }

    /// The message to read next; waits for it.
    fn next(&mut self, patience: Duration) -> Result<Option<u64>, ChannelError> {
        let Self { cursor, pulse } = self;
        let ring = &pulse.segment().header().ring;
        let mut look = || {
            // Asked before the ring is looked at: what was written before the peer died is still read.
            let gone = pulse.gone();
            match cursor.next(ring) {
                Ok(Turn::Message(number)) => Some(Ok(number)),
                Ok(Turn::Wait) => gone.map(Err),
                Ok(Turn::Closed) => Some(Err(ChannelError::CLOSED)),
                Err(damage) => Some(Err(damage)),
            }
        };
        if let Some(found) = look() {
            return found.map(Some);
        }
        if patience.is_zero() {
            return Ok(None);
        }
        ring.filled
            .wait(Deadline::after(patience), look)
            .transpose()
    }
}

impl TensorReceiver for ShmReceiver {
    fn spec(&self) -> ChannelSpec {
        self.pulse.segment().geometry().spec()
    }

    fn receive_into(
        &mut self,
        payload: &mut dyn Sink,
        patience: Duration,
    ) -> Result<Option<(Tag, usize)>, ChannelError> {
        self.pulse.segment().geometry().check_room(payload.room())?;
        let Some(number) = self.next(patience)? else {
            return Ok(None);
        };
        let segment = self.pulse.segment();
        let (tag, bytes) = segment.slot(number).read(number)?;
        if bytes > 0 {
            payload.copy_from(self.pulse.place(number, bytes))?;
        }
        self.cursor.release(&segment.header().ring);
        Ok(Some((tag, bytes)))
    }
}
