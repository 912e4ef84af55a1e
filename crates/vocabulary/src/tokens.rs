//! Tokens, their kinds and their bytes.

use std::borrow::Cow;

use crate::alphabet;
use crate::error::VocabularyError;

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

/// All tokens of a model, by id.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// Byte alphabet for normal tokens, literal text for the others.
    texts: Vec<String>,
    types: Vec<TokenType>,
}

impl Vocabulary {
    /// Tokens of a tokenizer of kind `model`. Without `types` all are normal.
    ///
    /// # Errors
    /// No tokens, types for some of them only, or a model other than byte-level BPE.
    pub fn new(
        model: &str,
        texts: Vec<String>,
        types: Vec<TokenType>,
    ) -> Result<Self, VocabularyError> {
        if model != "gpt2" {
            let model = model.to_owned();
            return Err(VocabularyError::UnsupportedModel { model });
        }
        let tokens = texts.len();
        if tokens == 0 {
            return Err(VocabularyError::Empty);
        }
        let types = match types.len() {
            0 => vec![TokenType::Normal; tokens],
            n if n == tokens => types,
            types => return Err(VocabularyError::TypeCount { tokens, types }),
        };
        Ok(Self { texts, types })
    }

    /// The text and the type of each token.
    #[must_use]
    pub fn into_parts(self) -> (Vec<String>, Vec<TokenType>) {
        (self.texts, self.types)
    }

    /// How many tokens there are; more than none.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.texts.len()
    }

    /// The text of each token as the model file has it (byte alphabet for normal tokens).
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The text of token `id`, as [`Vocabulary::texts`] has it.
    #[must_use]
    pub fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(String::as_str)
    }

    /// What kind of token `id` is.
    #[must_use]
    pub fn kind(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// The bytes that token `id` stands for in a text: none for unused tokens, nor for control tokens
    /// unless `show_special`. `None` for an id outside the vocabulary.
    #[must_use]
    pub fn bytes(&self, id: u32, show_special: bool) -> Option<Cow<'_, [u8]>> {
        let text = self.text(id)?;
        Some(match self.kind(id)? {
            TokenType::Normal => Cow::Owned(alphabet::unspell(text)),
            TokenType::UserDefined => Cow::Borrowed(text.as_bytes()),
            TokenType::Control | TokenType::Unknown if show_special => {
                Cow::Borrowed(text.as_bytes())
            }
            TokenType::Byte => Cow::Owned(spelled_byte(text).into_iter().collect()),
            _ => Cow::Borrowed(&[]),
        })
    }
}

/// The byte that `<0x0A>` stands for.
fn spelled_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_token_has_its_bytes() {
        let tokens: [(&str, TokenType, &[u8], &[u8]); 7] = [
            ("Ġa", TokenType::Normal, b" a", b" a"),
            ("<|end|>", TokenType::Control, b"", b"<|end|>"),
            ("<think>", TokenType::UserDefined, b"<think>", b"<think>"),
            ("[PAD]", TokenType::Unused, b"", b""),
            ("<unk>", TokenType::Unknown, b"", b"<unk>"),
            ("<0x0A>", TokenType::Byte, b"\n", b"\n"),
            ("<0xZZ>", TokenType::Byte, b"", b""),
        ];
        let texts = tokens.map(|(text, ..)| text.to_owned()).to_vec();
        let types = tokens.map(|(_, kind, ..)| kind).to_vec();
        let vocabulary = Vocabulary::new("gpt2", texts, types).unwrap();
        for (id, (text, kind, plain, shown)) in (0..).zip(tokens) {
            assert_eq!(vocabulary.text(id), Some(text));
            assert_eq!(vocabulary.kind(id), Some(kind));
            assert_eq!(
                vocabulary.bytes(id, false).as_deref(),
                Some(plain),
                "{text}"
            );
            assert_eq!(vocabulary.bytes(id, true).as_deref(), Some(shown), "{text}");
        }
        assert!(vocabulary.bytes(7, true).is_none());
    }

    #[test]
    fn what_is_no_vocabulary_is_refused() {
        let refused = |model, texts: &[&str], types: &[TokenType]| {
            let texts = texts.iter().map(|&text| text.to_owned()).collect();
            let vocabulary = Vocabulary::new(model, texts, types.to_vec());
            vocabulary.unwrap_err().to_string()
        };
        let two = [TokenType::Normal; 2];
        assert!(refused("gpt2", &[], &[]).contains("empty"));
        assert!(refused("gpt2", &["a"], &two).contains("2 token types for 1 tokens"));
        assert!(refused("llama", &["a"], &[]).contains("'llama'"));
    }
}
