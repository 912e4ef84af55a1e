//! Reads a tokenizer out of GGUF metadata.

use gguf::{GgufError, Metadata, Strings};

use crate::error::TokenizerError;
use crate::spec::{TokenType, TokenizerSpec};
use crate::tokenizer::Tokenizer;

impl Tokenizer {
    /// Builds the tokenizer that the `tokenizer.ggml.*` keys describe.
    ///
    /// # Errors
    /// Missing or ill-typed keys, and everything that [`Tokenizer::new`] refuses.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Self::new(TokenizerSpec::from_gguf(metadata)?)
    }
}

impl TokenizerSpec {
    /// The description in the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// Missing or ill-typed keys, and token types that do not exist.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let str = |key| optional(key, |k| metadata.str(k));
        let list = |key| optional(key, |k| metadata.str_array(k));
        let id = |key| optional(key, |k| metadata.u32(k));
        let types = optional("tokenizer.ggml.token_type", |k| metadata.i32_array(k))?;
        let token_types = types
            .unwrap_or_default()
            .into_iter()
            .enumerate()
            .map(|(index, value)| {
                TokenType::from_gguf(value).ok_or(TokenizerError::UnknownTokenType { index, value })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            model: required("tokenizer.ggml.model", str)?.to_owned(),
            pre: str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: texts(required("tokenizer.ggml.tokens", list)?),
            token_types,
            merges: texts(required("tokenizer.ggml.merges", list)?),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            add_bos: optional("tokenizer.ggml.add_bos_token", |k| metadata.bool(k))?,
        })
    }
}

fn texts(list: &Strings) -> Vec<String> {
    list.iter().map(str::to_owned).collect()
}

/// The value of `key`, if there is one.
fn optional<T>(
    key: &'static str,
    read: impl FnOnce(&str) -> Result<Option<T>, GgufError>,
) -> Result<Option<T>, TokenizerError> {
    read(key).map_err(|error| TokenizerError::Metadata {
        key,
        source: Box::new(error),
    })
}

/// The value of `key`, which every tokenizer has.
fn required<T>(
    key: &'static str,
    read: impl FnOnce(&'static str) -> Result<Option<T>, TokenizerError>,
) -> Result<T, TokenizerError> {
    read(key)?.ok_or(TokenizerError::MissingKey { key })
}
