//! What a user asks is at the beginning or the end of what they send.

use std::ops::Range;

use crate::spans::inside;

/// Tokens of a first paragraph that is kept whole, at most.
const HEAD_TOKENS: usize = 256;
/// Tokens of a last paragraph that is kept whole, at most.
const TAIL_TOKENS: usize = 768;
/// Of a text without short paragraphs at its ends, this share of it is kept there instead.
const HEAD_SHARE: usize = 32;
const TAIL_SHARE: usize = 16;
/// But that many tokens at least.
const LEAST_TOKENS: usize = 64;

/// The bytes between the first and the last paragraph of a user's message, which may be cut. Paragraphs are parted by blank
/// lines, or by line ends where there is no blank line. One that is too long to be a question is kept in part, and more of a
/// long text than of a short one, which would not be worth cutting else.
pub(crate) fn middle(text: &str, body: &Range<usize>, ends: &[usize]) -> Range<usize> {
    let tokens = inside(ends, body);
    let whole = text.get(body.clone()).unwrap_or_default();
    let shown = whole.trim();
    let part = if shown.contains("\n\n") { "\n\n" } else { "\n" };
    let lead = whole.len() - whole.trim_start().len();
    let first = shown
        .find(part)
        .map_or(whole.len(), |at| lead + at + part.len());
    let last = shown.rfind(part).map_or(0, |at| lead + at);
    let end_of = |count: usize| match count {
        0 => body.start,
        count if count < tokens.len() => ends[tokens.start + count - 1],
        _ => body.end,
    };
    let length = tokens.len();
    let mut start = body.start + first;
    if start > end_of(HEAD_TOKENS.min(length)) {
        start = end_of(
            (length / HEAD_SHARE)
                .clamp(LEAST_TOKENS, HEAD_TOKENS)
                .min(length),
        );
    }
    let mut end = body.start + last;
    if end < end_of(length.saturating_sub(TAIL_TOKENS)) {
        let tail = (length / TAIL_SHARE).clamp(LEAST_TOKENS, TAIL_TOKENS);
        end = end_of(length.saturating_sub(tail));
    }
    let start = text.floor_char_boundary(start);
    let end = text.ceil_char_boundary(end);
    start..end.max(start)
}
