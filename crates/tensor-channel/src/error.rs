//! Why a channel does not carry on.

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
