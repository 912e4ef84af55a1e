//! What can be wrong with a tokenizer description.

use vocabulary::VocabularyError;

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The tokens are of no use.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// The pre-tokenizer is not known.
    #[error("pre-tokenizer '{pre}' is not supported")]
    UnsupportedPre {
        /// The pre-tokenizer name found.
        pre: String,
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
    /// A built-in split pattern does not compile.
    #[error("compiling a split pattern")]
    Pattern(#[source] Box<fancy_regex::Error>),
}
