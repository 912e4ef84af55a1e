//! What can be wrong with a vocabulary.

/// Why a vocabulary could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The tokens are not those of byte-level BPE.
    #[error("tokenizer model '{model}' is not supported (only 'gpt2')")]
    UnsupportedModel {
        /// The model name found.
        model: String,
    },
    /// There are no tokens.
    #[error("the vocabulary is empty")]
    Empty,
    /// Token types were given, but not one for each token.
    #[error("{types} token types for {tokens} tokens")]
    TypeCount {
        /// How many tokens there are.
        tokens: usize,
        /// How many token types there are.
        types: usize,
    },
    /// A token type outside 1 to 6.
    #[error("token {index} has unknown type {value}")]
    UnknownTokenType {
        /// The token's id.
        index: usize,
        /// The type found.
        value: i32,
    },
    /// A metadata key that every vocabulary needs is absent.
    #[error("metadata key '{key}' is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A metadata value could not be read.
    #[error("reading metadata key '{key}'")]
    Metadata {
        /// The key.
        key: &'static str,
        /// What the reader says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
