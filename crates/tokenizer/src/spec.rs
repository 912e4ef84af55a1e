//! The plain description a tokenizer is built from.

/// What kind of vocabulary entry a token is (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// Ordinary text in the byte alphabet (1).
    Normal,
    /// The unknown token (2).
    Unknown,
    /// A control token such as `<|im_end|>`, literal text (3).
    Control,
    /// A user-defined token such as `<think>`, literal text that is always matched (4).
    UserDefined,
    /// A filler row (5).
    Unused,
    /// A single byte of a byte-fallback vocabulary (6).
    Byte,
}

impl TokenType {
    /// The type of the given GGUF number, if there is one.
    #[must_use]
    pub fn from_gguf(value: i32) -> Option<Self> {
        Some(match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

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
