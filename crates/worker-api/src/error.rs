//! What a worker, or the way to it, answers instead of a result.

/// Why a worker did not answer. Named by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The request must be changed.
    #[error("{0}")]
    Invalid(String),
    /// The prompt leaves no room in the context.
    #[error("{0}")]
    PromptTooLong(String),
    /// Try again later.
    #[error("{0}")]
    QueueFull(String),
    /// The worker is starting, stopping or gone; try again.
    #[error("{0}")]
    Unavailable(String),
    /// The worker could not go on.
    #[error("{0}")]
    Internal(String),
}
