//! Where in the text a character stands.

use crate::head::Place;

/// Characters of a line that are looked at.
const SEEN: usize = 8;
const FENCE: &str = "```";

/// Follows the lines of a text.
#[derive(Debug, Clone, Default)]
pub(super) struct Tracker {
    /// The beginning of the line.
    line: String,
    is_in_fence: bool,
    last: Option<char>,
}

impl Tracker {
    /// Where `next` stands, if a call may begin there. `has_content`: whether anything stands before it.
    pub fn place(&self, next: char, has_content: bool) -> Option<Place> {
        if next.is_whitespace() {
            return None;
        }
        // What stands in a block of code is shown.
        let line_start = self.line.trim().is_empty() && !self.is_in_fence;
        let word_start = self.last.is_none_or(|last| !last.is_alphanumeric());
        let may_begin = next == '<' || line_start || (next == 'c' && word_start);
        may_begin.then_some(Place {
            line_start,
            content_start: !has_content,
            word_start,
        })
    }

    pub fn advance(&mut self, c: char) {
        self.last = Some(c);
        if c != '\n' {
            if self.line.len() < SEEN {
                self.line.push(c);
            }
            return;
        }
        if self.line.trim_start().starts_with(FENCE) {
            self.is_in_fence = !self.is_in_fence;
        }
        self.line.clear();
    }
}
