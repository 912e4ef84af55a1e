//! Why a link does not carry on.

use models::ModelError;
use tensor_channel::ChannelError;

/// Why a link does not carry on. It has to be opened anew then.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The channel below broke.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer said what cannot be.
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
    /// The earlier stage is there, but computes nothing.
    #[error("no answer for {waited_s} s")]
    Silent {
        /// How long it was waited for.
        waited_s: u64,
    },
    /// The earlier stage could not go on, and says why.
    #[error("{0}")]
    Failed(String),
    /// The model of this side refused a command, or could not compute it.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Says what a peer got wrong.
pub(crate) fn foreign(
    message: &'static str,
    field: &'static str,
    got: impl ToString,
    expected: impl Into<String>,
) -> LinkError {
    LinkError::Foreign {
        message,
        field,
        got: got.to_string(),
        expected: expected.into(),
    }
}
