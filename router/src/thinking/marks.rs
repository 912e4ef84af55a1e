//! The tokens around reasoning, and those that end it.

use chat::ReasoningStart;
use generation::ThinkingLimit;
use tokenizer::{EncodeOptions, Tokenizer};

use crate::card::MARKER;

const OPEN: &str = "<think>";
/// Texts that may stand before the reasoning that an answer opens.
const BLANKS: [&str; 3] = ["\n", "\n\n", " "];

/// The tokens around reasoning in a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks {
    open_id: Option<u32>,
    close_id: u32,
    terminator: Vec<u32>,
    blank_ids: Vec<u32>,
}

impl Marks {
    /// `None`: the vocabulary has no token that closes reasoning, so that none can be forced. `hint`: what the model is made to
    /// say when its budget is used up.
    pub fn new(tokenizer: &Tokenizer, hint: Option<&str>) -> Option<Self> {
        let close_id = tokenizer.token_id(MARKER)?;
        let encode = |text: &str| {
            let options = EncodeOptions {
                add_bos: false,
                parse_special: false,
            };
            tokenizer.encode(text, options)
        };
        let (before, after) = hint.map_or(("\n", "\n\n"), |hint| {
            hint.split_once(MARKER).unwrap_or((hint, "\n\n"))
        });
        let blank = |text: &&str| {
            let ids = encode(text);
            (ids.len() == 1).then(|| ids[0])
        };
        Some(Self {
            open_id: tokenizer.token_id(OPEN),
            close_id,
            // The mark as a token, whatever the tokenizer makes of its letters.
            terminator: [encode(before), vec![close_id], encode(after)].concat(),
            blank_ids: BLANKS.iter().filter_map(blank).collect(),
        })
    }

    /// What the target is told of an answer's reasoning.
    pub fn limit(&self, start: ReasoningStart, budget: Option<u32>) -> ThinkingLimit {
        ThinkingLimit {
            budget,
            starts_inside: start == ReasoningStart::Inside,
            open_id: self.open_id,
            close_id: self.close_id,
            terminator: self.terminator.clone(),
            blank_ids: self.blank_ids.clone(),
        }
    }

    /// Tokens that a forced close takes.
    pub fn terminator_tokens(&self) -> usize {
        self.terminator.len()
    }
}
