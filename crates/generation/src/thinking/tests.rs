use super::{CloseKind, ThinkingLimit, ThinkingTracker, is_loop};
use crate::error::GenerateError;
use crate::worker::ModelDescription;

const OPEN: u32 = 1;
const CLOSE: u32 = 2;
const BLANK: u32 = 3;

fn limit(budget: u32) -> ThinkingLimit {
    ThinkingLimit {
        budget: Some(budget),
        starts_inside: true,
        open_id: Some(OPEN),
        close_id: CLOSE,
        terminator: vec![70, 71, CLOSE, BLANK],
        blank_ids: vec![BLANK],
    }
}

/// An answer for which the model would say `said`, one after the other.
fn answer(limit: &ThinkingLimit, said: &[u32]) -> (Vec<u32>, ThinkingTracker) {
    let mut tracker = ThinkingTracker::new(limit.clone());
    let mut tokens = Vec::new();
    let mut said = said.iter();
    loop {
        let forced = tracker.forced();
        let Some(token) = forced.or_else(|| said.next().copied()) else {
            return (tokens, tracker);
        };
        assert_eq!(tracker.push(token), forced.is_some());
        tokens.push(token);
    }
}

#[test]
fn the_close_is_forced_where_the_budget_ends() {
    let (tokens, tracker) = answer(&limit(3), &[10, 11, 12, 13, 14]);
    assert_eq!(tokens, [10, 11, 12, 70, 71, CLOSE, BLANK, 13, 14]);
    assert_eq!(tracker.close(), Some(CloseKind::Hard));
    let forced: Vec<_> = (0..9).map(|index| tracker.forced_at(index)).collect();
    let four = [70, 71, CLOSE, BLANK].map(Some);
    assert_eq!(forced[..3], [None; 3]);
    assert_eq!(forced[3..7], four);
    assert_eq!(forced[7..], [None; 2]);
    let (tokens, _) = answer(&limit(0), &[13]);
    assert_eq!(tokens, [70, 71, CLOSE, BLANK, 13]);
}

#[test]
fn nothing_is_forced_behind_a_close_of_the_models_own() {
    for said in [vec![CLOSE, 10, 11, 12, 13], vec![10, 11, CLOSE, 12, 13, 14]] {
        let (tokens, tracker) = answer(&limit(3), &said);
        assert_eq!(tokens, said);
        assert_eq!(tracker.close(), Some(CloseKind::Natural));
        assert_eq!(tracker.free_tokens(), None);
        assert!(!tracker.is_open());
    }
    // Marks in what is said then are text.
    let said = [CLOSE, 10, OPEN, 11, 12, 13, 14, 15];
    assert_eq!(answer(&limit(3), &said).0, said);
}

#[test]
fn reasoning_that_the_answer_opens_counts_from_its_mark() {
    let outside = ThinkingLimit {
        starts_inside: false,
        ..limit(2)
    };
    let (tokens, tracker) = answer(&outside, &[BLANK, OPEN, 10, 11, 12]);
    assert_eq!(tokens, [BLANK, OPEN, 10, 11, 70, 71, CLOSE, BLANK, 12]);
    assert_eq!(tracker.close(), Some(CloseKind::Hard));
    // Where it is not the first thing said, the mark is text.
    let said = [9, OPEN, 10, 11, 12, 13];
    let (tokens, tracker) = answer(&outside, &said);
    assert_eq!(tokens, said);
    assert_eq!(tracker.close(), None);
}

#[test]
fn without_a_budget_nothing_is_forced() {
    let free = ThinkingLimit {
        budget: None,
        ..limit(0)
    };
    let said = [10, 11, 12, CLOSE, 13];
    let (tokens, tracker) = answer(&free, &said);
    assert_eq!(tokens, said);
    assert_eq!(tracker.close(), Some(CloseKind::Natural));
    assert_eq!(free.forced_tokens(), 0);
}

#[test]
fn drafts_are_worth_asking_for_up_to_the_terminator() {
    let mut tracker = ThinkingTracker::new(limit(2));
    let mut free = Vec::new();
    for token in [10, 11, 70, 71, CLOSE, BLANK] {
        free.push(tracker.free_tokens());
        tracker.push(token);
    }
    free.push(tracker.free_tokens());
    let zero = Some(0);
    assert_eq!(free, [Some(2), Some(1), zero, zero, zero, zero, None]);
}

#[test]
fn a_loop_behind_a_forced_close_is_seen() {
    let turn: Vec<u32> = (100..115).collect();
    let looped = turn.repeat(4);
    assert!(is_loop(&looped));
    assert!(is_loop(&[vec![5, 6], looped.clone()].concat()));
    assert!(is_loop(&[7].repeat(48)), "a short loop, in several turns");
    assert!(!is_loop(&turn.repeat(3)));
    assert!(!is_loop(&looped[1..]));
    let long: Vec<u32> = (100..181).collect();
    assert!(!is_loop(&long.repeat(4)), "81 tokens are no loop");
    assert!(is_loop(&long[1..].repeat(4)));

    let said = [vec![10], looped.clone()].concat();
    let (tokens, tracker) = answer(&limit(1), &said);
    assert!(tracker.is_degenerate(&tokens));
    assert!(!tracker.is_degenerate(&tokens[..tokens.len() - 1]));
    let natural = [vec![CLOSE], looped].concat();
    let (tokens, tracker) = answer(&limit(1), &natural);
    assert!(!tracker.is_degenerate(&tokens), "it closed by itself");
    // What was thought is no part of the answer.
    let (tokens, tracker) = answer(&limit(48), &[7; 48]);
    assert!(!tracker.is_degenerate(&tokens));
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let model = ModelDescription {
        name: "m".to_owned(),
        architecture: "a".to_owned(),
        context_length: 64,
        vocab_size: 100,
        max_sequences: 1,
        device: "d".to_owned(),
    };
    assert_eq!(limit(3).check(&model), Ok(()));
    let foreign = ThinkingLimit {
        terminator: vec![100, CLOSE],
        ..limit(3)
    };
    let unknown = GenerateError::UnknownToken {
        field: "thinking",
        token: 100,
        vocab_size: 100,
    };
    assert_eq!(foreign.check(&model), Err(unknown));
    let refused = |limit: ThinkingLimit, word: &str| {
        let error = limit.check(&model).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    let open = ThinkingLimit {
        terminator: vec![70],
        ..limit(3)
    };
    refused(open, "does not hold the token");
    let long = ThinkingLimit {
        terminator: vec![CLOSE; 1025],
        ..limit(3)
    };
    refused(long, "longer than 1024");
    let blank = ThinkingLimit {
        blank_ids: vec![BLANK; 65],
        ..limit(3)
    };
    refused(blank, "more than 64");
}
