//! Requests to the tokenizer, as llama.cpp's server takes them.

use crate::error::RequestError;
use crate::fields::{Fields, as_token, shown};

/// A body of `POST /tokenize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizeRequest {
    /// The text.
    pub content: String,
    /// Whether the text begins a sequence.
    pub add_special: bool,
    /// Whether the text of control tokens becomes those tokens.
    pub parse_special: bool,
    /// Whether the text of each token is wanted.
    pub with_pieces: bool,
}

impl TokenizeRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// Everything that [`RequestError`] lists.
    pub fn from_body(body: &[u8]) -> Result<Self, RequestError> {
        let mut fields = Fields::of_body(body)?;
        let content = fields.string("content")?;
        let request = Self {
            content: content.ok_or_else(|| missing("content"))?,
            add_special: fields.bool("add_special")?.unwrap_or(false),
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
            with_pieces: fields.bool("with_pieces")?.unwrap_or(false),
        };
        fields.finish()?;
        Ok(request)
    }
}

/// A body of `POST /detokenize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// Token ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// Everything that [`RequestError`] lists.
    pub fn from_body(body: &[u8]) -> Result<Self, RequestError> {
        let mut fields = Fields::of_body(body)?;
        let items = fields.array("tokens")?.ok_or_else(|| missing("tokens"))?;
        fields.finish()?;
        let tokens = items.iter().enumerate().map(|(index, item)| {
            as_token(item).ok_or_else(|| {
                RequestError::wrong(format!("tokens[{index}]"), shown(item), "a token id")
            })
        });
        Ok(Self {
            tokens: tokens.collect::<Result<_, _>>()?,
        })
    }
}

pub(crate) fn missing(field: &str) -> RequestError {
    RequestError::MissingField {
        field: field.to_owned(),
    }
}
