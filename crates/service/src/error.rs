//! Why a role cannot start or serve.

use std::io;
use std::path::PathBuf;

use crate::endpoint::Endpoint;

/// Why a role cannot start or serve.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An address that is none.
    #[error("\"{got}\" is no endpoint: expected unix:PATH or tcp:HOST:PORT")]
    BadEndpoint {
        /// What was given.
        got: String,
    },
    /// Another process listens there.
    #[error("{endpoint} is in use by another process")]
    InUse {
        /// Where.
        endpoint: Endpoint,
    },
    /// The socket could not be opened.
    #[error("listening on {endpoint}: {source}")]
    Listen {
        /// Where.
        endpoint: Endpoint,
        /// What the system says.
        source: io::Error,
    },
    /// The configuration file is not there.
    #[error("configuration file {} does not exist", path.display())]
    NoConfigFile {
        /// File.
        path: PathBuf,
    },
    /// A key is unknown or has a value that does not fit.
    #[error("configuration: {reason}")]
    Config {
        /// Key, origin and what is wrong with it.
        reason: String,
    },
    /// The server broke.
    #[error("gRPC server")]
    Server(#[from] tonic::transport::Error),
    /// Signals cannot be caught.
    #[error("installing the handler for {signal}: {source}")]
    Signal {
        /// Signal.
        signal: &'static str,
        /// What the system says.
        source: io::Error,
    },
}
