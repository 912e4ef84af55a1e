//! A frame: 64 bytes, then the payload if it brings a message.
//!
//! Every frame also says how far its side has read and whether its ends are closed, so that acknowledgements ride along
//! with messages.

use crate::channel::Tag;
use crate::error::{ChannelError, same};

/// Bytes of a frame before its payload.
pub(crate) const HEAD_BYTES: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"tfrm");

const MESSAGE: u32 = 1;
const SENDER_CLOSED: u32 = 2;
const RECEIVER_CLOSED: u32 = 4;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where its side stands.
    pub(crate) status: Status,
    /// Messages that came before this frame.
    pub(crate) sequence: u64,
    /// The message that follows: its tag, and its payload's bytes as the peer claims.
    pub(crate) message: Option<(Tag, u64)>,
}

/// Where a side stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Messages that it has read.
    pub(crate) read: u64,
    /// It will send no more.
    pub(crate) sender_closed: bool,
    /// It will read no more.
    pub(crate) receiver_closed: bool,
}

impl Frame {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut flags = 0;
        for (is_set, flag) in [
            (self.message.is_some(), MESSAGE),
            (self.status.sender_closed, SENDER_CLOSED),
            (self.status.receiver_closed, RECEIVER_CLOSED),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let (tag, bytes) = self.message.unwrap_or_default();
        let first = u64::from(MAGIC) | u64::from(flags) << 32;
        let [a, b, c, d] = tag.0;
        let words = [first, self.sequence, self.status.read, bytes, a, b, c, d];
        let mut head = [0; HEAD_BYTES];
        for (place, word) in head.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        head
    }

    /// # Errors
    /// These bytes are no frame.
    pub(crate) fn decode(head: &[u8; HEAD_BYTES]) -> Result<Self, ChannelError> {
        let mut words = [0; HEAD_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(head.chunks(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes"));
        }
        let [first, sequence, read, bytes, a, b, c, d] = words;
        let flags = first >> 32;
        same("frame magic", first & u64::from(u32::MAX), MAGIC.into())?;
        let has = |flag: u32| flags & u64::from(flag) != 0;
        if flags & !u64::from(MESSAGE | SENDER_CLOSED | RECEIVER_CLOSED) != 0 {
            return Err(ChannelError::Damaged {
                field: "frame flags",
                got: flags,
                expected: "0 to 7".to_owned(),
            });
        }
        Ok(Self {
            status: Status {
                read,
                sender_closed: has(SENDER_CLOSED),
                receiver_closed: has(RECEIVER_CLOSED),
            },
            sequence,
            message: has(MESSAGE).then_some((Tag([a, b, c, d]), bytes)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_frame_says_what_was_said(
            read: u64,
            sequence: u64,
            sender_closed: bool,
            receiver_closed: bool,
            message: Option<([u64; 4], u64)>,
        ) {
            let frame = Frame {
                status: Status { read, sender_closed, receiver_closed },
                sequence,
                message: message.map(|(tag, bytes)| (Tag(tag), bytes)),
            };
            prop_assert_eq!(Frame::decode(&frame.encode()).unwrap(), frame);
        }

        #[test]
        fn bytes_that_are_no_frame_are_an_error(head: [u8; 32], rest: [u8; 32]) {
            let mut bytes = [0; HEAD_BYTES];
            bytes[..32].copy_from_slice(&head);
            bytes[32..].copy_from_slice(&rest);
            prop_assert!(bytes.starts_with(b"tfrm") || Frame::decode(&bytes).is_err());
        }
    }
}
