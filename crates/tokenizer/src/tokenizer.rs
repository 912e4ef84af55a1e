//! The tokenizer itself: encoding, decoding and the vocabulary.

use std::borrow::Cow;
use std::collections::HashMap;

use vocabulary::{TokenType, Vocabulary, alphabet};

use crate::bpe::Bpe;
use crate::error::TokenizerError;
use crate::pretokenize::PreTokenizer;
use crate::spec::{EncodeOptions, TokenizerSpec};

/// Control tokens that end a turn whatever the metadata says.
const TURN_ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// A byte-level BPE tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    /// Ids in the order of their texts; of equal ones the last counts.
    by_text: Vec<u32>,
    /// Control and user-defined tokens by decreasing byte length.
    specials: Vec<u32>,
    bpe: Bpe,
    pre: PreTokenizer,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    stop_ids: Vec<u32>,
}

/// A stretch of text while special tokens are being cut out.
enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

impl Tokenizer {
    /// Builds a tokenizer.
    ///
    /// # Errors
    /// An unsupported model or pre-tokenizer, or a description that contradicts itself.
    pub fn new(spec: TokenizerSpec) -> Result<Self, TokenizerError> {
        let vocabulary = Vocabulary::new(&spec.model, spec.tokens, spec.token_types)?;
        let pre = PreTokenizer::new(spec.pre.as_deref())?;
        let (vocab, texts) = (vocabulary.num_tokens(), vocabulary.texts());
        for (role, id) in [("bos", spec.bos), ("eos", spec.eos), ("eot", spec.eot)] {
            if let Some(id) = id.filter(|&id| id as usize >= vocab) {
                return Err(TokenizerError::IdOutOfRange { role, id, vocab });
            }
        }
        let ids: HashMap<&str, u32> = texts.iter().map(String::as_str).zip(0..).collect();
        let bpe = Bpe::new(vocab, &ids, &spec.merges)?;
        let is_cut = |kind| matches!(kind, Some(TokenType::Control | TokenType::UserDefined));
        let mut specials: Vec<u32> = (0..vocab as u32)
            .filter(|&id| is_cut(vocabulary.kind(id)) && !texts[id as usize].is_empty())
            .collect();
        specials.sort_by_key(|&id| std::cmp::Reverse(texts[id as usize].len()));
        let turn_ends = TURN_ENDS
            .iter()
            .filter_map(|&text| ids.get(text).copied())
            .filter(|&id| vocabulary.kind(id) == Some(TokenType::Control));
        let mut stop_ids: Vec<u32> = spec
            .eos
            .into_iter()
            .chain(spec.eot)
            .chain(turn_ends)
            .collect();
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let mut by_text: Vec<u32> = (0..vocab as u32).collect();
        by_text.sort_by_key(|&id| &texts[id as usize]);
        Ok(Self {
            adds_bos: spec.add_bos.unwrap_or(pre.is_llama3()),
            vocabulary,
            by_text,
            specials,
            bpe,
            pre,
            bos: spec.bos,
            eos: spec.eos,
            stop_ids,
        })
    }

    /// The ids of `text`.
    #[must_use]
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut out = Vec::new();
        if options.add_bos && self.adds_bos {
            out.extend(self.bos);
        }
        for fragment in self.cut_specials(text, options.parse_special) {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(text) => self
                    .pre
                    .split(text, |piece| self.encode_piece(piece, &mut out)),
            }
        }
        out
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], show_special: bool) -> String {
        let mut bytes = Vec::new();
        for token in ids
            .iter()
            .filter_map(|&id| self.token_bytes(id, show_special))
        {
            bytes.extend_from_slice(&token);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that token `id` stands for in a text: none for unused tokens, nor for control tokens
    /// unless `show_special`. `None` for an id outside the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32, show_special: bool) -> Option<Cow<'_, [u8]>> {
        self.vocabulary.bytes(id, show_special)
    }

    /// Where each of `ids` ends in `text`, which they spell; a BOS before it that it does not spell ends where it begins. `None`
    /// where they spell something else, as where the vocabulary lacks a byte of the text.
    #[must_use]
    pub fn ends(&self, ids: &[u32], text: &str) -> Option<Vec<usize>> {
        let text = text.as_bytes();
        let mut ends = Vec::with_capacity(ids.len());
        let mut at = 0;
        for (index, &id) in ids.iter().enumerate() {
            let bytes = self.token_bytes(id, true)?;
            if text[at..].starts_with(&bytes) {
                at += bytes.len();
            } else if index > 0 || Some(id) != self.bos {
                return None;
            }
            ends.push(at);
        }
        (at == text.len()).then_some(ends)
    }

    /// How many tokens there are.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.num_tokens()
    }

    /// The beginning-of-sequence token.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether `EncodeOptions::add_bos` has an effect on this vocabulary.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// The tokens that end generation, in increasing order: end of sequence, end of turn, and
    /// `<|im_end|>` and `<|endoftext|>` where those are control tokens.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The id of the token whose vocabulary text is `text`.
    #[must_use]
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let texts = self.vocabulary.texts();
        let after = self
            .by_text
            .partition_point(|&id| texts[id as usize].as_str() <= text);
        let id = *self.by_text.get(after.checked_sub(1)?)?;
        (texts[id as usize] == text).then_some(id)
    }

    /// The text of token `id` as the vocabulary has it (byte alphabet for normal tokens).
    #[must_use]
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocabulary.text(id)
    }

    /// Whether `id` is a control or unknown token, which `decode` shows only on request.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        let kind = self.vocabulary.kind(id);
        matches!(kind, Some(TokenType::Control | TokenType::Unknown))
    }

    /// Lets the special tokens, the longest first, cut their occurrences out of the text still uncut.
    fn cut_specials<'t>(&self, text: &'t str, parse_special: bool) -> Vec<Fragment<'t>> {
        let mut fragments = vec![Fragment::Text(text)];
        for &id in &self.specials {
            let special = self.vocabulary.texts()[id as usize].as_str();
            let is_text = self.vocabulary.kind(id) == Some(TokenType::UserDefined);
            let wanted = parse_special || is_text;
            if !wanted || !text.contains(special) {
                continue;
            }
            let mut cut = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                let Fragment::Text(mut rest) = fragment else {
                    cut.push(fragment);
                    continue;
                };
                while let Some((before, after)) = rest.split_once(special) {
                    cut.push(Fragment::Text(before));
                    cut.push(Fragment::Token(id));
                    rest = after;
                }
                cut.push(Fragment::Text(rest));
            }
            fragments = cut;
        }
        fragments
    }

    fn encode_piece(&self, piece: &str, out: &mut Vec<u32>) {
        if self.pre.is_llama3()
            && let Some(id) = self.token_id(&alphabet::spell(piece.as_bytes()))
        {
            out.push(id);
            return;
        }
        self.bpe.encode(piece.as_bytes(), out);
    }
}
