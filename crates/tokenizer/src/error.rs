//! What can be wrong with a tokenizer description.

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The tokenizer model is not byte-level BPE.
    #[error("tokenizer model '{model}' is not supported (only 'gpt2')")]
    UnsupportedModel {
        /// The model name found.
        model: String,
    },
    /// The pre-tokenizer is not known.
    #[error("pre-tokenizer '{pre}' is not supported")]
    UnsupportedPre {
        /// The pre-tokenizer name found.
        pre: String,
    },
    /// There are no tokens.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
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
    /// A merge that is not two symbols with a space between.
    #[error("merge {index} is malformed: '{merge}'")]
    MalformedMerge {
        /// The merge's rank.
        index: usize,
        /// The text found.
        merge: String,
    },
    /// A special id that is no token.
    #[error("{role} id {id} is outside the vocabulary of {vocab} tokens")]
    IdOutOfRange {
        /// Which special token.
        role: &'static str,
        /// The id found.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A metadata key that every tokenizer needs is absent.
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
    /// A built-in split pattern does not compile.
    #[error("compiling a split pattern")]
    Pattern(#[source] Box<fancy_regex::Error>),
}
