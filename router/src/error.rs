//! Why a request is not answered.

use api_types::RequestError;
use axum::http::Method;
use chat::ChatError;
use generation::GenerateError;
use thiserror::Error;
use worker_api::WorkerError;

use crate::deadlines::Wait;

/// Why a request is not answered, or not to its end.
#[derive(Debug, Clone, PartialEq, Error)]
pub(crate) enum RouterError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("the model `{name}` does not exist; this server has `{served}`")]
    UnknownModel { name: String, served: String },
    #[error("{limit} answers are being made already; try again later")]
    Busy { limit: usize },
    #[error("{wanted} answers are wanted at once; this server makes {limit} at a time")]
    TooManyAnswers { wanted: usize, limit: usize },
    #[error("as many watch as may; try again later")]
    TooManyWatchers,
    #[error(
        "the chat template does not show what the last message says, so that no answer can go on with it"
    )]
    NotContinuable,
    #[error("`{field}`: {message}")]
    Grammar { field: String, message: String },
    #[error("the server is shutting down")]
    Draining,
    #[error("the body is longer than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("path and headers are longer than {limit} bytes")]
    HeadTooLarge { limit: usize },
    #[error("the body could not be read to its end")]
    BodyCut,
    #[error("the body took longer than {limit_seconds} s to come")]
    BodyTooSlow { limit_seconds: u64 },
    #[error("{wait} longer than {limit_seconds} s")]
    TooLong { wait: Wait, limit_seconds: u64 },
    #[error("an API key is needed: send `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    NoKey,
    #[error("the API key is not one of this server's")]
    WrongKey,
    #[error(
        "there is no response `{id}`: nothing is stored here; send the whole conversation with each request"
    )]
    NotStored { id: String },
    #[error("there is no {path}")]
    UnknownRoute { path: String },
    #[error("{path} does not take {method}")]
    WrongMethod { method: Method, path: String },
    #[error("{path} is not offered: this server has no model for {what}")]
    NotOffered {
        path: &'static str,
        what: &'static str,
    },
    /// A bug; the facts are in the log.
    #[error("an internal error; the log of the server has the details")]
    Panicked,
}
