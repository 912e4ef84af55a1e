//! The plain description a tokenizer is built from.

use vocabulary::TokenType;

/// Everything that defines a tokenizer.
#[derive(Debug, Clone, Default)]
pub struct TokenizerSpec {
    /// Tokenizer model; only `gpt2` (byte-level BPE) is supported.
    pub model: String,
    /// Pre-tokenizer; `None` means the GPT-2 pattern.
    pub pre: Option<String>,
    /// Token texts by id: byte alphabet for normal tokens, literal text for the others.
    pub tokens: Vec<String>,
    /// Types by id; empty means that all are normal.
    pub token_types: Vec<TokenType>,
    /// Merges as "left right", in order of rank.
    pub merges: Vec<String>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// Whether prompts begin with BOS; `None` means only for `llama-bpe`.
    pub add_bos: Option<bool>,
}

/// How to encode a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// The text begins a sequence: prepend BOS if the vocabulary asks for that.
    pub add_bos: bool,
    /// Turn the text of control tokens into those tokens (user-defined tokens always are).
    pub parse_special: bool,
}
