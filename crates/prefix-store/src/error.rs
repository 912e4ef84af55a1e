//! What a store cannot open, and what it does not believe.

use std::io;
use std::path::PathBuf;

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be had.
    #[error("folder {path}: {error}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The system gives no thread.
    #[error("a thread for files: {0}")]
    Thread(io::Error),
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// It went, or was never there.
    #[error("it is not there")]
    Missing,
    /// Another version of the format.
    #[error("format version {got}, expected {expected}")]
    Version {
        /// What it says.
        got: u32,
        /// What is understood here.
        expected: u32,
    },
    /// It is whole, but of something else.
    #[error("{what} is not the one asked for")]
    Foreign {
        /// What differs.
        what: &'static str,
    },
    /// Its bytes are not those written.
    #[error("{what} is damaged")]
    Damaged {
        /// Which part.
        what: &'static str,
    },
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(io::Error),
}

impl Refusal {
    /// Whether the file can never be of use here.
    pub(crate) fn is_lasting(&self) -> bool {
        !matches!(self, Self::Missing | Self::Unreadable(_))
    }
}
