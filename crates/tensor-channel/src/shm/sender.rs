//! The writing end over shared memory.

use std::time::Duration;

use crate::channel::{ChannelSpec, Tag, TensorSender};
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::payload::Source;
use crate::ring::{Turn, WriterCursor};
use crate::shm::heartbeat::Pulse;

/// Writes into slots.
#[derive(Debug)]
pub(crate) struct ShmSender {
    cursor: WriterCursor,
    pulse: Pulse,
}

impl ShmSender {
    /// The writer of a segment of which nothing was written yet.
    pub(crate) fn new(pulse: Pulse) -> Self {
        Self {
            cursor: WriterCursor::new(pulse.segment().geometry().spec().slots as u64),
            pulse,
        }
    }

    /// The message to write next; waits for its slot.
    fn claim(&mut self, patience: Duration) -> Result<u64, ChannelError> {
        let Self { cursor, pulse } = self;
        let ring = &pulse.segment().header().ring;
        let mut look = || {
            if let Some(gone) = pulse.gone() {
                return Some(Err(gone));
            }
            match cursor.claim(ring) {
                Ok(Turn::Message(number)) => Some(Ok(number)),
                Ok(Turn::Wait) => None,
                Ok(Turn::Closed) => Some(Err(ChannelError::CLOSED)),
                Err(damage) => Some(Err(damage)),
            }
        };
        if let Some(found) = look() {
            return found;
        }
        let full = || {
            Err(ChannelError::Full {
                waited_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
            })
        };
        if patience.is_zero() {
            return full();
        }
        ring.freed
            .wait(Deadline::after(patience), look)
            .unwrap_or_else(full)
    }
}

impl TensorSender for ShmSender {
    fn spec(&self) -> ChannelSpec {
        self.pulse.segment().geometry().spec()
    }

    fn send_from(
        &mut self,
        tag: Tag,
        payload: &dyn Source,
        patience: Duration,
    ) -> Result<(), ChannelError> {
        let bytes = payload.bytes();
        self.pulse.segment().geometry().check_payload(bytes)?;
        let number = self.claim(patience)?;
        if bytes > 0 {
            // The bytes are there when this returns, whatever device they go to: only then are they published.
            payload.copy_to(self.pulse.place(number, bytes))?;
        }
        let segment = self.pulse.segment();
        segment.slot(number).write(number, tag, bytes);
        self.cursor.publish(&segment.header().ring);
        Ok(())
    }
}
