//! Why a channel does not carry on.

use crate::payload::MemoryError;
use crate::transport::Transport;

/// Why a channel does not carry on. Named by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The reader is behind; try again later.
    #[error("no slot of the channel became free in {waited_ms} ms")]
    Full {
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// The other process ended, closed its end or stopped giving signs of life.
    #[error("the peer is gone: {how}")]
    PeerGone {
        /// How it was noticed.
        how: &'static str,
    },
    /// The header or a slot says what cannot be.
    #[error("the channel is damaged: {field} is {got}, expected {expected}")]
    Damaged {
        /// Field of the header or slot.
        field: &'static str,
        /// What it says.
        got: u64,
        /// What it may say.
        expected: String,
    },
    /// The payload does not fit the channel.
    #[error("a payload of {got} bytes does not fit: {expected}")]
    Payload {
        /// Its bytes.
        got: usize,
        /// What fits.
        expected: String,
    },
    /// A setting is not possible; nothing was made.
    #[error("{field} is {got}, expected {expected}")]
    Invalid {
        /// Name of the setting.
        field: &'static str,
        /// What it says.
        got: String,
        /// What it may say.
        expected: String,
    },
    /// This machine or build cannot do it; choose another transport.
    #[error("the transport {transport} is not available: {why}")]
    Unavailable {
        /// Which one.
        transport: Transport,
        /// What is missing.
        why: String,
    },
    /// A device could not copy a payload; nothing was sent or taken.
    #[error("a payload could not be copied: {0}")]
    Device(#[from] MemoryError),
    /// The system refuses a segment, a socket or a mapping.
    #[error("{what}")]
    Io {
        /// What was tried on what.
        what: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl ChannelError {
    /// The peer dropped its end.
    pub(crate) const CLOSED: Self = Self::PeerGone {
        how: "it closed its end",
    };

    /// The peer did not attach.
    pub(crate) const NOBODY: Self = Self::PeerGone {
        how: "nobody attached in time",
    };
}

/// # Errors
/// A field that a peer wrote is not what it has to be.
pub(crate) fn same(field: &'static str, got: u64, expected: u64) -> Result<(), ChannelError> {
    if got == expected {
        return Ok(());
    }
    Err(ChannelError::Damaged {
        field,
        got,
        expected: expected.to_string(),
    })
}
