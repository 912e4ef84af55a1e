use proptest::prelude::*;

use super::*;

fn options(keep_ratio: f64) -> SelectOptions<'static> {
    SelectOptions {
        keep_ratio,
        protected: &[],
        within_budget: false,
    }
}

/// Tokens that differ, so that there are no anchors.
fn distinct(len: usize) -> Vec<u32> {
    (0..).take(len).collect()
}

/// Importance that is `value` for the tokens of `chunk`, and 0 elsewhere.
fn peaks(len: usize, peaks: &[(usize, f32)]) -> Vec<f32> {
    let mut importance = vec![0.0; len];
    for &(chunk, value) in peaks {
        importance[chunk_range(chunk, len)].fill(value);
    }
    importance
}

#[test]
fn fewer_than_nine_tokens_stay_as_they_are() {
    assert!(select(&[], &[], &options(0.1)).spans.is_empty());
    let kept = select(&distinct(8), &[], &options(0.01));
    assert_eq!((kept.chunks, kept.spans), (vec![0], vec![0..8]));
    let kept = select(&distinct(9), &[0.0; 9], &options(0.01));
    assert_eq!(kept.spans, [0..9]);
}

#[test]
fn head_and_tail_shrink_with_the_budget_and_leave_one_chunk_to_choose() {
    let check = |budget, expected| assert_eq!(head_and_tail(budget), expected, "{budget}");
    check(1, (0, 1));
    check(2, (0, 1));
    check(3, (0, 2));
    check(6, (1, 4));
    check(17, (4, 12));
    check(32, (7, 24));
    check(33, (8, 24));
    check(400, (8, 24));
}

#[test]
fn the_best_chunks_fill_the_budget_and_of_equal_ones_the_first() {
    let len = 100 * CHUNK_TOKENS;
    let check = |peaked: &[(usize, f32)], expected: &[usize]| {
        let kept = select(&distinct(len), &peaks(len, peaked), &options(0.06));
        assert_eq!(kept.chunks, expected);
    };
    // Six, of them one at the start and four at the end.
    check(&[(50, 1.0)], &[0, 50, 96, 97, 98, 99]);
    check(&[(50, 1.0), (40, 2.0)], &[0, 40, 96, 97, 98, 99]);
    check(&[(50, 1.0), (40, 1.0)], &[0, 40, 96, 97, 98, 99]);
    check(&[], &[0, 1, 96, 97, 98, 99]);
    check(&[(98, 9.0), (0, 9.0)], &[0, 1, 96, 97, 98, 99]);
}

#[test]
fn the_share_is_rounded_down_but_not_to_nothing() {
    let check = |num_chunks: usize, keep_ratio, expected| {
        let len = num_chunks * CHUNK_TOKENS;
        let kept = select(&distinct(len), &vec![0.0; len], &options(keep_ratio));
        assert_eq!(kept.chunks.len(), expected, "{num_chunks} {keep_ratio}");
    };
    check(64, 0.05, 3);
    check(10, 0.7, 7);
    check(10, 0.69, 6);
    check(10, 0.01, 1);
    check(10, 1.0, 10);
}

#[test]
fn a_short_last_chunk_counts_by_the_mean_of_what_it_has() {
    let mut importance = vec![1.0; 65];
    importance[64] = 3.0;
    assert_eq!(chunk_scores(&importance), [1.0, 1.0, 3.0]);
    let kept = select(&distinct(65), &importance, &options(0.4));
    assert_eq!((kept.chunks, kept.spans), (vec![2], vec![64..65]));
}

/// 40 chunks; the end repeats what stands in chunk 10.
fn with_anchor() -> Vec<u32> {
    let mut tokens = distinct(40 * CHUNK_TOKENS);
    tokens.copy_within(325..335, 1240);
    tokens
}

#[test]
fn anchors_come_on_top_of_the_budget_or_out_of_it() {
    let tokens = with_anchor();
    let importance = peaks(tokens.len(), &[(20, 5.0), (9, 1.0), (12, 2.0)]);
    let check = |keep_ratio, within_budget, expected: &[usize]| {
        let options = SelectOptions {
            within_budget,
            ..options(keep_ratio)
        };
        assert_eq!(select(&tokens, &importance, &options).chunks, expected);
    };
    // Two: the tail and one more.
    check(0.05, false, &[8, 9, 10, 11, 12, 39]);
    check(0.05, true, &[10, 39]);
    // Four, two of them of the tail: the place, and the best of all.
    check(0.1, true, &[10, 20, 38, 39]);
    // Eight, four of them at the ends; beyond the budget seven.
    check(0.2, true, &[0, 9, 10, 12, 20, 37, 38, 39]);
    check(0.2, false, &[0, 8, 9, 10, 11, 12, 34, 35, 36, 37, 38, 39]);
}

#[test]
fn the_first_that_are_not_kept_yet_are_taken_up_to_a_number_and_the_budget() {
    let choice = |left, most| {
        let mut choice = Choice {
            is_kept: vec![true, false, false, false, false],
            values: vec![0.0; 5],
            left,
        };
        choice.keep_first(&[0, 3, 1, 4], most);
        choice.is_kept
    };
    assert_eq!(choice(9, 2), [true, true, false, true, false]);
    assert_eq!(choice(1, 2), [true, false, false, true, false]);
}

#[test]
fn what_is_protected_is_kept_and_leaves_the_budget_to_the_rest() {
    let len = 40 * CHUNK_TOKENS;
    let importance = peaks(len, &[(20, 5.0), (25, 4.0)]);
    // A whole chunk, half of two others, and the end.
    let end = 36 * CHUNK_TOKENS;
    let protected = [end..len, 64..96, 208..240];
    let options = SelectOptions {
        protected: &protected,
        ..options(0.06)
    };
    let kept = select(&distinct(len), &importance, &options);
    // Two of 35 chunks: the tail's is protected already.
    assert_eq!(kept.chunks, [2, 20, 25, 36, 37, 38, 39]);
    assert_eq!(kept.spans, [64..96, 208..240, 640..672, 800..832, end..len]);
}

#[test]
fn a_chunk_is_worth_what_is_not_protected_of_it() {
    let len = 40 * CHUNK_TOKENS;
    let mut importance = peaks(len, &[(20, 1.0)]);
    importance[10 * CHUNK_TOKENS] = 1000.0;
    let first = 10 * CHUNK_TOKENS;
    let options = SelectOptions {
        protected: &[first..first + 1],
        ..options(0.05)
    };
    let kept = select(&distinct(len), &importance, &options);
    assert_eq!(kept.chunks, [20, 39]);
    assert_eq!(kept.spans[0], first..first + 1);
}

#[test]
fn where_all_is_protected_all_is_kept() {
    let options = SelectOptions {
        protected: &[0..50, 50..100],
        ..options(0.01)
    };
    let kept = select(&distinct(100), &[0.0; 100], &options);
    assert_eq!((kept.chunks, kept.spans), (vec![0, 1, 2, 3], vec![0..100]));
}

fn spans(len: usize) -> impl Strategy<Value = Vec<Range<usize>>> {
    let span = (0..len, 1..200_usize).prop_map(move |(start, n)| start..len.min(start + n));
    prop::collection::vec(span, 0..4)
}

proptest! {
    #[test]
    fn selections_keep_what_they_must_and_no_more_than_they_may(
        (tokens, importance, protected) in (9..3000_usize).prop_flat_map(|len| (
            // Few tokens there are, so that there are anchors.
            prop::collection::vec(0..12_u32, len),
            prop::collection::vec(0.0..1.0_f32, len),
            spans(len),
        )),
        keep_ratio in 0.001..=1.0_f64,
        within_budget: bool,
    ) {
        let len = tokens.len();
        let options = SelectOptions { keep_ratio, protected: &protected, within_budget };
        let kept = select(&tokens, &importance, &options);
        let is_kept = |token: usize| kept.spans.iter().any(|span| span.contains(&token));
        let is_protected = |token: usize| protected.iter().any(|span| span.contains(&token));
        let chunks = || (0..len.div_ceil(CHUNK_TOKENS)).map(|chunk| chunk_range(chunk, len));

        prop_assert!(kept.spans.iter().all(|span| !span.is_empty() && span.end <= len));
        prop_assert!(kept.spans.windows(2).all(|pair| pair[0].end < pair[1].start));
        prop_assert!(protected.iter().cloned().flatten().all(is_kept));
        for (chunk, mut tokens) in chunks().enumerate() {
            if kept.chunks.contains(&chunk) {
                prop_assert!(tokens.all(is_kept));
            } else {
                prop_assert!(tokens.all(|token| is_kept(token) == is_protected(token)));
            }
        }
        prop_assert!(is_kept(len - 1), "the end of the question");

        let open: Vec<usize> = chunks()
            .enumerate()
            .filter(|(_, tokens)| !tokens.clone().all(is_protected))
            .map(|(chunk, _)| chunk)
            .collect();
        let budget = ((open.len() as f64 * keep_ratio) as usize).max(1);
        let anchors = anchors::find(&tokens, chunks().count());
        let is_anchor = |chunk: &usize| anchors.all.contains(chunk);
        let chosen: Vec<usize> = kept.chunks.iter().copied().filter(|chunk| open.contains(chunk)).collect();
        if within_budget {
            prop_assert_eq!(chosen.len(), budget.min(open.len()));
        } else {
            let others = chosen.iter().filter(|chunk| !is_anchor(chunk)).count();
            prop_assert!(others <= budget);
            prop_assert!(chosen.len() >= budget.min(open.len()));
            prop_assert!(open.iter().filter(|chunk| is_anchor(chunk)).all(|chunk| chosen.contains(chunk)));
        }
    }
}
