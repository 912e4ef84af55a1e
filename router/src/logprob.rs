//! Log-probabilities of tokens with their texts.

use generation::Token;
use tokenizer::Tokenizer;

/// What stands for a probability of zero: JSON has no infinities.
const LOWEST: f32 = -9999.0;

/// A generated token and what else it could have been.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenLogprob {
    pub chosen: LikelyToken,
    /// The most likely tokens, best first.
    pub top: Vec<LikelyToken>,
    /// Where the token begins in the text, in characters.
    pub text_offset: usize,
}

/// A token with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LikelyToken {
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

impl TokenLogprob {
    pub fn new(token: &Token, tokenizer: &Tokenizer, text_offset: usize) -> Self {
        let likely = |id, logprob: f32| LikelyToken {
            bytes: tokenizer
                .token_bytes(id, true)
                .unwrap_or_default()
                .into_owned(),
            logprob: logprob.max(LOWEST),
        };
        Self {
            chosen: likely(token.id, token.logprob),
            top: token.top.iter().map(|t| likely(t.id, t.logprob)).collect(),
            text_offset,
        }
    }
}

impl LikelyToken {
    /// The bytes as text; a part of a character is shown by its replacement.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
