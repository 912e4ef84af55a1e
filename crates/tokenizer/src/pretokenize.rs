//! Splitting text into the pieces that merges never cross.
//!
//! The published patterns end in `\s+(?!\S)|\s+`. Here they end in `\s+` alone and the splitter gives
//! the last character of such a run back when text follows: the same pieces, but patterns without
//! look-ahead run in linear time and without a backtracking limit.

use fancy_regex::Regex;

use crate::error::TokenizerError;

/// Case-insensitive contractions.
const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/// Which family of patterns a vocabulary was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Gpt2,
    Smollm,
    Qwen2,
    Qwen35,
    Llama3,
}

/// A compiled pre-tokenizer.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    family: Family,
    pattern: Regex,
}

impl PreTokenizer {
    /// The pre-tokenizer of the given GGUF name; the GPT-2 pattern when there is none.
    pub(crate) fn new(pre: Option<&str>) -> Result<Self, TokenizerError> {
        let family = match pre {
            None => Family::Gpt2,
            Some("smollm") => Family::Smollm,
            Some("qwen2" | "deepseek-r1-qwen" | "megrez") => Family::Qwen2,
            Some("qwen35") => Family::Qwen35,
            Some("llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral") => Family::Llama3,
            Some(other) => {
                return Err(TokenizerError::UnsupportedPre {
                    pre: other.to_owned(),
                });
            }
        };
        let modern = |word: &str, digits: &str, marks: &str| {
            format!(
                r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{word}+|{digits}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+"
            )
        };
        let pattern = match family {
            Family::Gpt2 | Family::Smollm => {
                r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+".to_owned()
            }
            Family::Qwen2 => modern(r"\p{L}", r"\p{N}", ""),
            Family::Qwen35 => modern(r"[\p{L}\p{M}]", r"\p{N}", r"\p{M}"),
            Family::Llama3 => modern(r"\p{L}", r"\p{N}{1,3}", ""),
        };
        let pattern = Regex::new(&pattern).map_err(|e| TokenizerError::Pattern(Box::new(e)))?;
        Ok(Self { family, pattern })
    }

    /// Whether a piece that is a token as it stands is taken without merging; such vocabularies also
    /// begin texts with BOS unless told otherwise.
    pub(crate) fn is_llama3(&self) -> bool {
        self.family == Family::Llama3
    }

    /// Calls `each` for every piece of `text` in order; the pieces make up the whole text.
    pub(crate) fn split<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str)) {
        if self.family != Family::Smollm {
            return self.split_run(text, &mut each);
        }
        let mut start = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| c.is_numeric()) {
            let end = at + c.len_utf8();
            self.split_run(&text[start..at], &mut each);
            each(&text[at..end]);
            start = end;
        }
        self.split_run(&text[start..], &mut each);
    }

    /// Splits by the pattern; what it does not match is a piece of its own.
    fn split_run<'t>(&self, text: &'t str, each: &mut impl FnMut(&'t str)) {
        let mut at = 0;
        while at < text.len() {
            // Without look-around there are no run-time errors; treat one like "no match".
            let Ok(Some(found)) = self.pattern.find_from_pos(text, at) else {
                break;
            };
            if found.start() > at {
                each(&text[at..found.start()]);
            }
            let end = self.shorten(text, found.start(), found.end());
            each(&text[found.start()..end]);
            at = end;
        }
        if at < text.len() {
            each(&text[at..]);
        }
    }

    /// The end of the match `start..end` after the look-ahead that the pattern leaves out: white space
    /// before text leaves its last character to what follows. Only the last alternative ends in white
    /// space, apart from the line ends of the newer patterns.
    fn shorten(&self, text: &str, start: usize, end: usize) -> usize {
        let Some(last) = text[start..end].chars().next_back() else {
            return end;
        };
        let line_end =
            matches!(last, '\r' | '\n') && !matches!(self.family, Family::Gpt2 | Family::Smollm);
        let shorter = end - last.len_utf8();
        if last.is_whitespace() && !line_end && end < text.len() && shorter > start {
            shorter
        } else {
            end
        }
    }
}

#[cfg(test)]
#[path = "pretokenize_tests.rs"]
mod tests;
