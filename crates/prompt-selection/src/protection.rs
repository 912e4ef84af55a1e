//! Positions that the caller keeps in any case.

use std::ops::Range;

/// Which tokens are protected.
pub(crate) struct Protection(Vec<bool>);

impl Protection {
    /// Of a prompt of `num_tokens` tokens; what lies past its end protects nothing.
    pub fn new(spans: &[Range<usize>], num_tokens: usize) -> Self {
        let mut is_protected = vec![false; num_tokens];
        for span in spans {
            let end = span.end.min(num_tokens);
            if let Some(tokens) = is_protected.get_mut(span.start..end) {
                tokens.fill(true);
            }
        }
        Self(is_protected)
    }

    pub fn has(&self, token: usize) -> bool {
        self.0[token]
    }

    /// Whether nothing of `range` could be cut.
    pub fn has_all(&self, range: Range<usize>) -> bool {
        !self.0[range].contains(&false)
    }
}
