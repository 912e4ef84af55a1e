//! Errors to gRPC status codes and back.

use std::error::Error;

use generation::{GenerateError, ParkError};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::error::{SessionError, WorkerError};
use crate::prefill::CompressError;

/// Tells apart what one status code cannot.
const DETAIL: &str = "tandem-error";
const PROMPT_TOO_LONG: &str = "prompt-too-long";
const GRAMMAR: &str = "grammar";
const NO_ROOM: &str = "no-room";
const UNREACHABLE: &str = "channel-unreachable";

/// The status that a worker answers with.
#[must_use]
pub fn to_status(error: &GenerateError) -> Status {
    let code = match error {
        GenerateError::EmptyPrompt
        | GenerateError::PromptTooLong { .. }
        | GenerateError::UnknownToken { .. }
        | GenerateError::TooManyTopLogprobs { .. }
        | GenerateError::Thinking(_)
        | GenerateError::GrammarTooLong { .. }
        | GenerateError::Grammar(_)
        | GenerateError::GrammarStuck(_)
        | GenerateError::Sampling(_) => Code::InvalidArgument,
        GenerateError::QueueFull { .. } => Code::ResourceExhausted,
        GenerateError::ShuttingDown | GenerateError::Gone(_) | GenerateError::Away(_) => {
            Code::Unavailable
        }
        GenerateError::Model(_) => Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    match error {
        GenerateError::PromptTooLong { .. } => note(&mut status, PROMPT_TOO_LONG),
        GenerateError::GrammarTooLong { .. }
        | GenerateError::Grammar(_)
        | GenerateError::GrammarStuck(_) => note(&mut status, GRAMMAR),
        _ => {}
    }
    status
}

/// The status of a target whose weights do not leave their device.
#[must_use]
pub fn park_status(error: ParkError) -> Status {
    let code = match error {
        ParkError::Unsupported => Code::Unimplemented,
        ParkError::CalledBack => Code::Aborted,
        ParkError::ShuttingDown => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

/// The status that a prefill worker answers with.
#[must_use]
pub fn compress_status(error: &CompressError) -> Status {
    let code = match error {
        CompressError::Invalid(_) | CompressError::PromptTooLong { .. } => Code::InvalidArgument,
        CompressError::QueueFull { .. } => Code::ResourceExhausted,
        CompressError::NoRoom(_) | CompressError::ShuttingDown => Code::Unavailable,
        CompressError::Model(_) => Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    match error {
        CompressError::PromptTooLong { .. } => note(&mut status, PROMPT_TOO_LONG),
        CompressError::NoRoom(_) => note(&mut status, NO_ROOM),
        _ => {}
    }
    status
}

fn note(status: &mut Status, detail: &'static str) {
    let detail = MetadataValue::from_static(detail);
    status.metadata_mut().insert(DETAIL, detail);
}

/// The status that ends a session, or refuses one.
#[must_use]
pub fn session_status(error: &SessionError) -> Status {
    let code = match error {
        SessionError::Invalid(_) => Code::InvalidArgument,
        SessionError::Mismatch(_) | SessionError::Unreachable(_) => Code::FailedPrecondition,
        SessionError::Gone(_) => Code::Unavailable,
    };
    let mut status = Status::new(code, error.to_string());
    if matches!(error, SessionError::Unreachable(_)) {
        note(&mut status, UNREACHABLE);
    }
    status
}

pub(crate) fn session_error(status: &Status) -> SessionError {
    let message = status.message().to_owned();
    let detail = status.metadata().get(DETAIL);
    match status.code() {
        // Only a status made on this side has a source: the way to the worker broke, whatever code that was given.
        _ if status.source().is_some() => SessionError::Gone(message),
        Code::FailedPrecondition if detail.is_some_and(|detail| detail == UNREACHABLE) => {
            SessionError::Unreachable(message)
        }
        Code::FailedPrecondition => SessionError::Mismatch(message),
        Code::InvalidArgument | Code::Unimplemented => SessionError::Invalid(message),
        _ => SessionError::Gone(message),
    }
}

impl From<Status> for WorkerError {
    fn from(status: Status) -> Self {
        worker_error(&status, "target")
    }
}

/// What `worker` answered instead of a result.
pub(crate) fn worker_error(status: &Status, worker: &str) -> WorkerError {
    let message = status.message().to_owned();
    let unavailable = |message: &str| {
        WorkerError::Unavailable(format!("the {worker} worker is not available: {message}"))
    };
    // As above.
    if status.source().is_some() {
        return unavailable(&message);
    }
    let detail = status.metadata().get(DETAIL);
    match status.code() {
        Code::InvalidArgument if detail.is_some_and(|detail| detail == PROMPT_TOO_LONG) => {
            WorkerError::PromptTooLong(message)
        }
        Code::InvalidArgument if detail.is_some_and(|detail| detail == GRAMMAR) => {
            WorkerError::Grammar(message)
        }
        Code::InvalidArgument | Code::NotFound | Code::OutOfRange => WorkerError::Invalid(message),
        Code::ResourceExhausted => WorkerError::QueueFull(message),
        Code::Unavailable if detail.is_some_and(|detail| detail == NO_ROOM) => {
            WorkerError::NoRoom(message)
        }
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::Aborted
        | Code::DeadlineExceeded => unavailable(&message),
        _ => WorkerError::Internal(message),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use generation::GenerateError;
    use tonic::{Code, Status};

    use super::{compress_status, session_error, session_status, to_status, worker_error};
    use crate::error::{SessionError, WorkerError};
    use crate::prefill::CompressError;

    #[test]
    fn errors_keep_their_kind_and_words_over_the_wire() {
        let check = |error: GenerateError, expected: fn(String) -> WorkerError| {
            let message = error.to_string();
            let back = WorkerError::from(to_status(&error));
            match back {
                WorkerError::Unavailable(got) => assert!(got.contains(&message), "{got}"),
                other => assert_eq!(other, expected(message)),
            }
        };
        check(GenerateError::EmptyPrompt, WorkerError::Invalid);
        let too_long = GenerateError::PromptTooLong {
            prompt_tokens: 9,
            context_length: 8,
        };
        check(too_long, WorkerError::PromptTooLong);
        for error in [GenerateError::Grammar, GenerateError::GrammarStuck] {
            check(error("no regex".to_owned()), WorkerError::Grammar);
        }
        let (bytes, limit) = (9, 8);
        let too_long = GenerateError::GrammarTooLong { bytes, limit };
        check(too_long, WorkerError::Grammar);
        check(
            GenerateError::QueueFull { limit: 3 },
            WorkerError::QueueFull,
        );
        check(GenerateError::ShuttingDown, WorkerError::Unavailable);
        let gone = GenerateError::Gone("stage 1 of 2".to_owned());
        check(gone, WorkerError::Unavailable);
        let away = GenerateError::Away("2 GiB of 1".to_owned());
        check(away, WorkerError::Unavailable);
        check(
            GenerateError::Model("page table".to_owned()),
            WorkerError::Internal,
        );
    }

    #[test]
    fn what_keeps_a_prompt_from_compression_keeps_its_kind_and_words_over_the_wire() {
        let check = |error: CompressError, expected: fn(String) -> WorkerError| {
            let message = error.to_string();
            match worker_error(&compress_status(&error), "prefill") {
                WorkerError::Unavailable(got) => {
                    assert_eq!(
                        expected(String::new()),
                        WorkerError::Unavailable(String::new())
                    );
                    assert!(got.contains("prefill") && got.contains(&message), "{got}");
                }
                other => assert_eq!(other, expected(message)),
            }
        };
        let too_long = CompressError::PromptTooLong {
            prompt_tokens: 9,
            context_length: 8,
        };
        check(too_long, WorkerError::PromptTooLong);
        let invalid = CompressError::Invalid("token 7".to_owned());
        check(invalid, WorkerError::Invalid);
        check(
            CompressError::QueueFull { limit: 3 },
            WorkerError::QueueFull,
        );
        let no_room = CompressError::NoRoom("2 GiB of 1".to_owned());
        check(no_room, WorkerError::NoRoom);
        check(CompressError::ShuttingDown, WorkerError::Unavailable);
        let broken = CompressError::Model("page table".to_owned());
        check(broken, WorkerError::Internal);
    }

    #[test]
    fn a_broken_connection_is_an_unavailable_worker_whatever_its_code() {
        for code in [Code::Internal, Code::Unknown, Code::Cancelled] {
            let mut status = Status::new(code, "h2 protocol error");
            status.set_source(Arc::new(std::io::Error::other("broken pipe")));
            let error = WorkerError::from(status);
            assert!(matches!(error, WorkerError::Unavailable(_)), "{error:?}");
        }
    }

    #[test]
    fn what_ends_a_session_keeps_its_kind_and_words_over_the_wire() {
        let words = "hidden_size is 512, expected 5120".to_owned();
        for error in [
            SessionError::Invalid(words.clone()),
            SessionError::Mismatch(words.clone()),
            SessionError::Unreachable(words.clone()),
            SessionError::Gone(words),
        ] {
            assert_eq!(session_error(&session_status(&error)), error);
        }
    }
}
