//! What an engine refuses to start with.

/// Why a configuration does not go with a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Nothing could run.
    #[error("{field} is 0, expected at least 1")]
    Zero {
        /// Field of the configuration.
        field: &'static str,
    },
    /// More than the model was loaded for.
    #[error("{field} is {got}, the model was loaded with {limit} {of}")]
    TooLarge {
        /// Field of the configuration.
        field: &'static str,
        /// Its value.
        got: usize,
        /// What the model has.
        limit: usize,
        /// Of what.
        of: &'static str,
    },
    /// Not even one sequence could fill its context.
    #[error(
        "a context of {context_length} tokens takes {needed} pages, the model was loaded with {pages}"
    )]
    TooFewPages {
        /// Tokens of a sequence.
        context_length: usize,
        /// Pages they take.
        needed: usize,
        /// Pages there are.
        pages: usize,
    },
    /// Prefixes in files come from those in memory and go there, of a model that is whole.
    #[error("prefixes cannot be kept in files: {why}")]
    NoDiskCache {
        /// What is in the way.
        why: &'static str,
    },
    /// The description promises something else.
    #[error("the model is described with {field} {described}, expected {expected}")]
    Description {
        /// Field of the description.
        field: &'static str,
        /// Its value.
        described: u32,
        /// What the configuration or the model says.
        expected: usize,
    },
}
