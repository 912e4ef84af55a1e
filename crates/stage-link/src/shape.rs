//! What both sides of a link agree on, and how large its channels are.

use tensor_channel::{ChannelSpec, ElementType, LinkSpec};

use crate::error::{LinkError, foreign};
use crate::words::WORD_BYTES;

/// Layers that may be captured at a time; drafts read five or so.
pub(crate) const MAX_CAPTURES: usize = 256;
/// Words of a segment beside its tokens and parents.
pub(crate) const SEGMENT_WORDS: usize = 4;
/// Commands on their way: one batch, and what happened to sequences since the one before.
const COMMAND_SLOTS: usize = 32;
/// Rows of a slot at most, and bytes; one row may be longer.
const MAX_SLOT_ROWS: usize = 64;
const MAX_SLOT_BYTES: usize = 512 << 10;
/// Slots of rows on their way, 8 MiB at most.
const ROW_SLOTS: usize = 16;

/// Largest sizes that a peer may name, well above any model's: they bound what is allocated for it.
const MAX_HIDDEN_SIZE: usize = 1 << 20;
const MAX_ROWS: usize = 1 << 20;
const MAX_SEQUENCES: usize = 1 << 16;

/// What both sides of a link agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Elements of a row.
    pub hidden_size: usize,
    /// Rows of a batch at most.
    pub max_batch_rows: usize,
    /// Sequences at a time at most.
    pub max_sequences: usize,
}

impl LinkShape {
    /// Says whether a link can have this shape.
    ///
    /// # Errors
    /// [`LinkError::Shape`].
    pub fn check(&self) -> Result<(), LinkError> {
        for (field, got, limit) in [
            ("hidden_size", self.hidden_size, MAX_HIDDEN_SIZE),
            ("max_batch_rows", self.max_batch_rows, MAX_ROWS),
            ("max_sequences", self.max_sequences, MAX_SEQUENCES),
        ] {
            if got == 0 || got > limit {
                let expected = format!("1 to {limit}");
                return Err(LinkError::Shape {
                    field,
                    got,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Words of the longest command: a batch of as many rows and sequences as there may be.
    pub(crate) fn command_words(&self) -> usize {
        MAX_CAPTURES + SEGMENT_WORDS * self.max_sequences + 2 * self.max_batch_rows
    }
}

/// The channels of a link, as the earlier stage offers it. Inbound: commands in words of 4 bytes; outbound: rows
/// \[hidden_size\] f32.
#[must_use]
pub fn link_spec(shape: &LinkShape) -> LinkSpec {
    let row_bytes = shape.hidden_size.max(1) * ElementType::F32.bytes();
    LinkSpec {
        inbound: ChannelSpec {
            element: ElementType::U8,
            row_len: WORD_BYTES,
            slot_rows: shape.command_words(),
            slots: COMMAND_SLOTS,
        },
        outbound: ChannelSpec {
            element: ElementType::F32,
            row_len: shape.hidden_size,
            slot_rows: (MAX_SLOT_BYTES / row_bytes).clamp(1, MAX_SLOT_ROWS),
            slots: ROW_SLOTS,
        },
    }
}

/// The two processes are of one program, but a session may name any segment.
pub(crate) fn check_spec(
    channel: &'static str,
    got: ChannelSpec,
    expected: ChannelSpec,
) -> Result<(), LinkError> {
    if got == expected {
        return Ok(());
    }
    let (got, expected) = (format!("{got:?}"), format!("{expected:?}"));
    Err(foreign(channel, "shape of the channel", got, expected))
}
