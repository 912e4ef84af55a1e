//! Reads a vocabulary out of GGUF metadata.

use gguf::{GgufError, Metadata};

use crate::error::VocabularyError;
use crate::tokens::{TokenType, Vocabulary};

impl Vocabulary {
    /// The tokens that the `tokenizer.ggml.*` keys list.
    ///
    /// # Errors
    /// Missing or ill-typed keys, token types that do not exist, and everything that [`Vocabulary::new`] refuses.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, VocabularyError> {
        let model = required("tokenizer.ggml.model", |key| {
            optional(key, |k| metadata.str(k))
        })?;
        let tokens = required("tokenizer.ggml.tokens", |key| {
            optional(key, |k| metadata.str_array(k))
        })?;
        let types = optional("tokenizer.ggml.token_type", |k| metadata.i32_array(k))?;
        let types = types.unwrap_or_default().into_iter().enumerate();
        let types = types
            .map(|(index, value)| {
                TokenType::from_gguf(value)
                    .ok_or(VocabularyError::UnknownTokenType { index, value })
            })
            .collect::<Result<_, _>>()?;
        Self::new(model, tokens.iter().map(str::to_owned).collect(), types)
    }
}

/// The value of `key`, if there is one.
///
/// # Errors
/// It is of another type.
pub fn optional<T>(
    key: &'static str,
    read: impl FnOnce(&str) -> Result<Option<T>, GgufError>,
) -> Result<Option<T>, VocabularyError> {
    read(key).map_err(|error| VocabularyError::Metadata {
        key,
        source: Box::new(error),
    })
}

/// The value of `key`, which has to be there.
///
/// # Errors
/// It is not, or cannot be read.
pub fn required<T>(
    key: &'static str,
    read: impl FnOnce(&'static str) -> Result<Option<T>, VocabularyError>,
) -> Result<T, VocabularyError> {
    read(key)?.ok_or(VocabularyError::MissingKey { key })
}
