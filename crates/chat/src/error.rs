//! What can go wrong between a template and a prompt.

use std::error::Error as _;

use minijinja::{Error, ErrorKind};
use thiserror::Error;

/// A template that does not compile, or a conversation that it does not render.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChatError {
    /// The template is not valid Jinja.
    #[error("chat template line {line}: {message}")]
    Compile {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// The template called `raise_exception`: the conversation does not fit it.
    #[error("chat template rejects the conversation: {message}")]
    Rejected {
        /// The template's own words.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("chat template line {line} fails on the conversation: {message}")]
    Render {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What the engine says.
        message: String,
    },
    /// The template ran for longer than any sane one does.
    #[error("chat template takes more than {limit} steps")]
    OutOfFuel {
        /// Number of engine instructions allowed.
        limit: u64,
    },
}

/// Carries the message of `raise_exception` through the engine.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Rejection(pub String);

impl ChatError {
    pub(crate) fn compile(error: &Error) -> Self {
        let (line, message) = facts(error);
        Self::Compile { line, message }
    }

    pub(crate) fn render(error: &Error, limit: u64) -> Self {
        // A macro or a filter may have wrapped the cause.
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(Rejection(message)) = current.downcast_ref() {
                return Self::Rejected {
                    message: message.clone(),
                };
            }
            if current
                .downcast_ref::<Error>()
                .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
            {
                return Self::OutOfFuel { limit };
            }
            cause = current.source();
        }
        let (line, message) = facts(error);
        Self::Render { line, message }
    }
}

fn facts(error: &Error) -> (usize, String) {
    let mut message = error.kind().to_string();
    if let Some(detail) = error.detail() {
        message = format!("{message}: {detail}");
    }
    if let Some(source) = error.source() {
        message = format!("{message}: {source}");
    }
    (error.line().unwrap_or(0), message)
}
