//! Text to token ids and back.
//!
//! Byte-level BPE with the pre-tokenizers of the Qwen, Llama 3, SmolLM and GPT-2 families, built from a
//! [`TokenizerSpec`] or straight from GGUF metadata, together with what streaming output needs: the
//! incremental [`Detokenizer`] and the [`StopMatcher`].
#![forbid(unsafe_code)]

mod bpe;
mod decode;
mod error;
mod gguf_source;
mod pretokenize;
mod spec;
mod stop;
mod tokenizer;

pub use decode::{Detokenizer, Utf8Stream};
pub use error::TokenizerError;
pub use spec::{EncodeOptions, TokenizerSpec};
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::Tokenizer;
pub use vocabulary::{TokenType, VocabularyError};
