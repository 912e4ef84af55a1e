//! Which bytes the tokens of a model file stand for. Knows no text: neither how one is cut into tokens nor what one means.

#![forbid(unsafe_code)]

pub mod alphabet;
mod error;
mod gguf_source;
mod tokens;

pub use error::VocabularyError;
pub use gguf_source::{optional, required};
pub use tokens::{TokenType, Vocabulary};
