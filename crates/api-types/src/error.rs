//! What can be wrong with a request.

use thiserror::Error;

/// A request that cannot be answered as it stands.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RequestError {
    /// There is no body.
    #[error("the body is empty; expected a JSON object")]
    EmptyBody,
    /// The body is not text.
    #[error("the body is not UTF-8: byte {offset} does not fit")]
    NotUtf8 {
        /// Bytes before the first wrong one.
        offset: usize,
    },
    /// The body is not JSON.
    #[error("the body is not valid JSON: {message}")]
    NotJson {
        /// What the parser says, with line and column.
        message: String,
    },
    /// The body is JSON, but no object.
    #[error("the body is {found}; expected a JSON object")]
    NotAnObject {
        /// What it is.
        found: &'static str,
    },
    /// A field that this API does not have.
    #[error("unknown field `{field}`")]
    UnknownField {
        /// Its name.
        field: String,
    },
    /// A field that must be there.
    #[error("`{field}` is missing")]
    MissingField {
        /// Its path.
        field: String,
    },
    /// A field of another type, or out of its range.
    #[error("`{field}` is {found}; expected {expected}")]
    WrongValue {
        /// Its path.
        field: String,
        /// What it is.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A field that asks for what is not there.
    #[error("`{field}`: {what} not supported{hint}")]
    Unsupported {
        /// Its path.
        field: String,
        /// What is asked for, with its verb.
        what: String,
        /// What to do instead, if anything.
        hint: String,
    },
}

impl RequestError {
    /// The field to blame.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::UnknownField { field }
            | Self::MissingField { field }
            | Self::WrongValue { field, .. }
            | Self::Unsupported { field, .. } => Some(field),
            _ => None,
        }
    }

    pub(crate) fn wrong(
        field: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::WrongValue {
            field: field.into(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn unsupported(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Unsupported {
            field: field.into(),
            what: what.into(),
            hint: String::new(),
        }
    }
}
