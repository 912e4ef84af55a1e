//! What can be wrong with a grammar.

/// Why a grammar is refused, or cannot be followed any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The model file does not say what its tokens are.
    #[error(
        "grammars need the bytes of the tokens, and the model file has no vocabulary to read them from: {0}"
    )]
    NoVocabulary(String),
    /// A JSON schema that is no JSON.
    #[error("the JSON schema is no JSON: {0}")]
    NoJson(String),
    /// A grammar that cannot be read, asks for what cannot be enforced, or is beyond what is followed.
    #[error("{0}")]
    Refused(String),
    /// No token may follow, and the answer may not end either.
    #[error("no token of the vocabulary may follow, and the answer may not end here")]
    DeadEnd,
    /// The next tokens cannot be told within the bounds of a step.
    #[error("the next tokens cannot be told: {0}")]
    TooComplex(String),
}

/// What llguidance says, without what it adds for its own developers.
pub(crate) fn words(error: &impl ToString) -> String {
    let text = error.to_string();
    let text = text.split("\n<").next().unwrap_or_default();
    text.trim().replace('\n', " ")
}
