//! What an answer has to match.

use crate::error::GenerateError;

/// Bytes of a grammar at most: some hundred tools with their schemas.
const MAX_GRAMMAR_BYTES: usize = 512 << 10;

/// White space between two tokens of JSON, as a regular expression: a space, or a line's end with its indentation. Without a bound
/// a model that has lost its way would go on with spaces for ever.
pub const JSON_WHITESPACE: &str = r"[ ]|\r?\n[ \t]{0,40}";

/// What an answer has to match, as a text that nobody has read yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// A JSON value that fits this JSON schema.
    JsonSchema(String),
    /// All of the answer matches this regular expression.
    Regex(String),
    /// The answer is of this language, written in llguidance's form of Lark.
    Lark(String),
}

impl Grammar {
    /// The text that defines it.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text,
        }
    }

    pub(crate) fn check(&self) -> Result<(), GenerateError> {
        let bytes = self.text().len();
        if bytes > MAX_GRAMMAR_BYTES {
            return Err(GenerateError::GrammarTooLong {
                bytes,
                limit: MAX_GRAMMAR_BYTES,
            });
        }
        Ok(())
    }
}
