//! Why a link does not carry on.

use tensor_channel::ChannelError;

/// Why a link does not carry on.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The channel below broke: open a new link.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer said what cannot be: open a new link, with another peer.
    #[error("{message}: {field} is {got}, expected {expected}")]
    Foreign {
        /// Which message.
        message: &'static str,
        /// Which of its fields.
        field: &'static str,
        /// What it says.
        got: String,
        /// What it may say.
        expected: String,
    },
    /// The two sides cannot speak over such a link.
    #[error("{field} of the link is {got}, expected {expected}")]
    Shape {
        /// Which size.
        field: &'static str,
        /// What it is.
        got: usize,
        /// What it may be.
        expected: String,
    },
    /// This side's own message does not fit the link, and was not sent.
    #[error("{field} is {got}, the link carries {expected}")]
    Unsendable {
        /// What does not fit.
        field: &'static str,
        /// What it is.
        got: usize,
        /// What fits.
        expected: String,
    },
}
