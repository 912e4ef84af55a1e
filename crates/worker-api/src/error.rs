//! What a worker, or the way to it, answers instead of a result.

/// Why a worker did not answer. Named by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The request must be changed.
    #[error("{0}")]
    Invalid(String),
    /// The grammar that the answer has to match must be changed.
    #[error("{0}")]
    Grammar(String),
    /// The prompt leaves no room in the context.
    #[error("{0}")]
    PromptTooLong(String),
    /// Try again later.
    #[error("{0}")]
    QueueFull(String),
    /// There is too little of the device's memory; try again when others have given some back.
    #[error("{0}")]
    NoRoom(String),
    /// The worker is starting, stopping or gone; try again.
    #[error("{0}")]
    Unavailable(String),
    /// The worker could not go on.
    #[error("{0}")]
    Internal(String),
}

/// Why target and draft do not work together, or not any more. Named by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A message that cannot be: the two are of different programs.
    #[error("{0}")]
    Invalid(String),
    /// The models do not go together, or drafts are not wanted: change the configuration.
    #[error("{0}")]
    Mismatch(String),
    /// The offered channel cannot be opened from the other side: offer another way.
    #[error("{0}")]
    Unreachable(String),
    /// One of the workers is starting, stopping or gone: open a new session.
    #[error("{0}")]
    Gone(String),
}

impl SessionError {
    pub(crate) fn silent(worker: &str) -> Self {
        Self::Gone(format!("the {worker} worker does not answer"))
    }
}
