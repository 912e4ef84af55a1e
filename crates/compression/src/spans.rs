//! Sets of positions as ranges in order, none of which touch, and what tokens are left when bytes are cut.

use std::ops::Range;

/// How far a kept piece grows to whole words, in bytes.
const WORD_BYTES: usize = 32;

/// The parts of `whole` that are in none of `spans`, which are in order and apart.
#[must_use]
pub fn complement(spans: &[Range<usize>], whole: &Range<usize>) -> Vec<Range<usize>> {
    let mut gaps = Vec::with_capacity(spans.len() + 1);
    let mut at = whole.start;
    for span in intersect(spans, whole) {
        gaps.push(at..span.start);
        at = span.end;
    }
    gaps.push(at..whole.end);
    gaps.retain(|gap| gap.start < gap.end);
    gaps
}

/// The parts of `spans`, in order and apart, that are in `whole`.
#[must_use]
pub fn intersect(spans: &[Range<usize>], whole: &Range<usize>) -> Vec<Range<usize>> {
    let clip = |span: &Range<usize>| span.start.max(whole.start)..span.end.min(whole.end);
    let parts = spans.iter().map(clip);
    parts.filter(|part| part.start < part.end).collect()
}

/// The tokens, of which each ends at one of `ends`, that lie in `bytes` as a whole.
#[must_use]
pub fn inside(ends: &[usize], bytes: &Range<usize>) -> Range<usize> {
    let start = |token: usize| token.checked_sub(1).map_or(0, |before| ends[before]);
    let mut first = ends.partition_point(|&end| end <= bytes.start);
    if first < ends.len() && start(first) < bytes.start {
        first += 1;
    }
    let last = ends.partition_point(|&end| end <= bytes.end);
    first..last.max(first)
}

/// The bytes of a run of tokens.
#[must_use]
pub fn outside(ends: &[usize], tokens: &Range<usize>) -> Range<usize> {
    let end_of = |count: usize| {
        let last = count.checked_sub(1).and_then(|token| ends.get(token));
        last.copied().unwrap_or(0)
    };
    end_of(tokens.start)..end_of(tokens.end)
}

/// Lets `spans` of `text`, in order, grow to whole words within `whole`, so that what was found is not kept by half. Pieces
/// that meet become one. All ends are those of characters.
#[must_use]
pub fn widen(text: &str, spans: &[Range<usize>], whole: &Range<usize>) -> Vec<Range<usize>> {
    let mut wide: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        let start = word_start(text, span.start, whole.start);
        let end = word_end(text, span.end, whole.end);
        match wide.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => wide.push(start..end),
        }
    }
    wide
}

fn word_start(text: &str, at: usize, least: usize) -> usize {
    let at = text.floor_char_boundary(at).max(least);
    let from = text.ceil_char_boundary(at.saturating_sub(WORD_BYTES).max(least));
    let before = text.get(from..at).unwrap_or_default();
    match before.rfind(char::is_whitespace) {
        Some(space) => from + space,
        None if from == least => least,
        // No word is that long.
        None => at,
    }
}

fn word_end(text: &str, at: usize, most: usize) -> usize {
    let at = text.ceil_char_boundary(at).min(most);
    let to = text.floor_char_boundary((at + WORD_BYTES).min(most));
    let after = text.get(at..to).unwrap_or_default();
    match after.find(char::is_whitespace) {
        Some(space) => at + space,
        None if to == most => most,
        None => at,
    }
}

/// The tokens of `text` that are left when the bytes of `cut` go: all but those that lie in one of them as a whole. Where a
/// character would be split, its other tokens stay as well, and so does whatever `is_fixed`.
#[must_use]
pub fn remaining(
    text: &str,
    ends: &[usize],
    cut: &[Range<usize>],
    is_fixed: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let mut stays = vec![true; ends.len()];
    for bytes in cut {
        for token in inside(ends, bytes) {
            stays[token] = is_fixed(token);
        }
    }
    let splits = |token: usize| !text.is_char_boundary(ends[token]);
    for token in 1..ends.len() {
        stays[token] |= stays[token - 1] && splits(token - 1);
    }
    for token in (1..ends.len()).rev() {
        stays[token - 1] |= stays[token] && splits(token - 1);
    }
    (0..ends.len()).filter(|&token| stays[token]).collect()
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "sets of one range")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_and_parts() {
        let spans = [2..4, 6..7];
        assert_eq!(complement(&spans, &(0..9)), [0..2, 4..6, 7..9]);
        assert_eq!(complement(&spans, &(2..7)), vec![4..6]);
        assert_eq!(complement(&spans, &(3..6)), vec![4..6]);
        assert_eq!(complement(&[], &(1..3)), vec![1..3]);
        assert_eq!(intersect(&spans, &(3..9)), [3..4, 6..7]);
        assert_eq!(intersect(&spans, &(4..6)), []);
    }

    #[test]
    fn a_token_is_inside_only_as_a_whole() {
        // Tokens 0..3, 3..5, 5..5, 5..9.
        let ends = [3, 5, 5, 9];
        assert_eq!(inside(&ends, &(0..9)), 0..4);
        assert_eq!(inside(&ends, &(1..9)), 1..4);
        assert_eq!(inside(&ends, &(3..8)), 1..3);
        assert_eq!(inside(&ends, &(4..8)).len(), 1);
        assert!(inside(&ends, &(6..8)).is_empty());
        assert_eq!(outside(&ends, &(1..4)), 3..9);
        assert_eq!(outside(&ends, &(0..1)), 0..3);
    }

    #[test]
    fn pieces_grow_to_words_and_meet() {
        let text = "alpha beta gamma delta";
        assert_eq!(widen(text, &[7..8], &(0..22)), vec![5..10]);
        assert_eq!(widen(text, &[7..8, 12..13], &(0..22)), vec![5..16]);
        assert_eq!(widen(text, &[1..2, 20..21], &(0..22)), [0..5, 16..22]);
        let long = "x".repeat(100);
        assert_eq!(widen(&long, &[50..51], &(0..100)), vec![50..51]);
        let chars = "中".repeat(40);
        assert_eq!(widen(&chars, &[61..62], &(0..120)), vec![60..63]);
    }

    proptest! {
        /// Against the plain meaning: a byte survives unless its token lies in a cut as a whole, and no character is split.
        #[test]
        fn what_remains_is_text_and_holds_all_that_is_not_cut(
            text in "[aé中🚀 \n]{0,40}",
            lengths in prop::collection::vec(1usize..5, 0..60),
            cuts in prop::collection::vec((0usize..160, 1usize..40), 0..5),
        ) {
            let mut ends = Vec::new();
            for length in lengths {
                ends.push((ends.last().copied().unwrap_or(0) + length).min(text.len()));
            }
            ends.push(text.len());
            let mut cut: Vec<Range<usize>> = Vec::new();
            for (gap, length) in cuts {
                let start = cut.last().map_or(0, |last| last.end + 1) + gap % 20;
                cut.push(start..start + length);
            }
            let kept = remaining(&text, &ends, &cut, |_| false);
            let mut bytes = Vec::new();
            for &token in &kept {
                bytes.extend_from_slice(&text.as_bytes()[outside(&ends, &(token..token + 1))]);
            }
            prop_assert!(std::str::from_utf8(&bytes).is_ok());
            for token in 0..ends.len() {
                let span = outside(&ends, &(token..token + 1));
                let is_cut = cut.iter().any(|cut| cut.start <= span.start && span.end <= cut.end);
                prop_assert!(is_cut || kept.contains(&token));
            }
        }
    }
}
