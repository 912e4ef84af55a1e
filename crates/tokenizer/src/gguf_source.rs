//! Reads a tokenizer out of GGUF metadata.

use gguf::{Metadata, Strings};
use vocabulary::{Vocabulary, optional, required};

use crate::error::TokenizerError;
use crate::spec::TokenizerSpec;
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
        let (tokens, token_types) = Vocabulary::from_gguf(metadata)?.into_parts();
        Ok(Self {
            model: required("tokenizer.ggml.model", str)?.to_owned(),
            pre: str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens,
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
