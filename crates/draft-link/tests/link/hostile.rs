//! Messages that no end of ours sends.

use std::time::Duration;

use draft_link::{DraftEnd, LinkError, LinkShape, TargetEnd, link_spec};
use tensor_channel::Tag;

use crate::{ASK, PATIENCE, SHAPE, memory, talk};

const FEATURES: u64 = 1;
const PROPOSE: u64 = 2;
const FORGET: u64 = 3;
const PROPOSAL: u64 = 4;

fn sizes(depth: u64, top_k: u64) -> u64 {
    depth << 16 | top_k << 32
}

fn place(position: u64, low: u64) -> u64 {
    position << 32 | low
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

#[track_caller]
fn assert_foreign(error: &LinkError, words: &str) {
    let text = error.to_string();
    assert!(matches!(error, LinkError::Foreign { .. }), "{text}");
    assert!(text.contains(words), "{text}");
}

#[test]
fn requests_that_cannot_be_are_refused_by_field() {
    let check = |tag: [u64; 4], payload: &[u8], words: &str| {
        let (mut target, draft) = memory::pair(&SHAPE);
        let mut draft = DraftEnd::new(draft, SHAPE).unwrap();
        target.sender.send(Tag(tag), payload, PATIENCE).unwrap();
        assert_foreign(&talk::hear(&mut draft, PATIENCE).unwrap_err(), words);
    };
    let row = bytes(&[1.0; 6]);
    check([0; 4], &[], "kind");
    check([FEATURES, 1, 0, 0], &[], "length");
    check([FEATURES, 1, 0, 0], &row[..20], "length");
    check([FEATURES, 1, 1 << 40, 0], &row, "position");
    for odd in [f32::NAN, f32::INFINITY] {
        let row = bytes(&[1.0, 1.0, odd, 1.0, 1.0, 1.0]);
        check([FEATURES, 1, 0, 0], &row, "element");
    }
    check([PROPOSE | sizes(4, 2), 1, place(9, 42), 0], &[], "depth");
    check([PROPOSE | sizes(0, 2), 1, place(9, 42), 0], &[], "depth");
    check([PROPOSE | sizes(3, 3), 1, place(9, 42), 0], &[], "top_k");
    check([PROPOSE | sizes(3, 2), 1, place(9, 100), 0], &[], "anchor");
    check([PROPOSE | sizes(3, 2), 1, place(9, 42), 0], &row, "length");
    check([FORGET, 1, 0, 0], &row, "length");
}

#[test]
fn answers_that_cannot_be_are_refused_by_field() {
    let check = |tag: [u64; 4], ids: &[u32], log_probs: &[f32], words: &str| {
        let (target, mut draft) = memory::pair(&SHAPE);
        let mut target = TargetEnd::new(target, SHAPE).unwrap();
        assert!(target.ask(1, ASK).unwrap());
        let ids = ids.iter().flat_map(|id| id.to_ne_bytes());
        let payload: Vec<u8> = ids.chain(bytes(log_probs)).collect();
        draft.sender.send(Tag(tag), &payload, PATIENCE).unwrap();
        assert_foreign(&target.receive(PATIENCE).unwrap_err(), words);
    };
    let tag = [PROPOSAL | sizes(1, 2), 1, 0, place(9, 50)];
    let with = |index: usize, word: u64| {
        let mut tag = tag;
        tag[index] = word;
        tag
    };
    let (ids, log_probs) = ([5, 6], [-0.5, -1.0]);
    check(with(0, 77), &ids, &log_probs, "kind");
    check(with(0, PROPOSAL | sizes(4, 1)), &ids, &log_probs, "depth");
    check(with(0, PROPOSAL | sizes(0, 2)), &ids, &log_probs, "depth");
    check(with(0, PROPOSAL | sizes(1, 3)), &ids, &log_probs, "top_k");
    check(with(0, PROPOSAL | sizes(2, 2)), &ids, &log_probs, "length");
    check(with(2, 1), &ids, &log_probs, "request");
    check(with(3, place(8, 50)), &ids, &log_probs, "position");
    check(tag, &[5, 100], &log_probs, "token id");
    for odd in [
        [0.5, -1.0],
        [-1.0, -0.5],
        [f32::NAN, -1.0],
        [-1.0, f32::NAN],
    ] {
        check(tag, &ids, &odd, "log-probability");
    }
    check(tag, &ids, &[f32::INFINITY, -1.0], "log-probability");
}

#[test]
fn impossible_tokens_are_a_proposal_too() {
    let (target, mut draft) = memory::pair(&SHAPE);
    let mut target = TargetEnd::new(target, SHAPE).unwrap();
    assert!(target.ask(1, ASK).unwrap());
    let log_probs = bytes(&[0.0, f32::NEG_INFINITY]);
    let payload: Vec<u8> = [5u32, 6].iter().flat_map(|id| id.to_ne_bytes()).collect();
    let tag = Tag([PROPOSAL | sizes(1, 2), 1, 0, place(9, 50)]);
    draft
        .sender
        .send(tag, &[payload, log_probs].concat(), PATIENCE)
        .unwrap();
    let answer = target.receive(Duration::ZERO).unwrap().unwrap();
    assert_eq!(answer.proposal.unwrap().ids, [5, 6]);
}

#[test]
fn channels_of_another_shape_are_refused() {
    let other = LinkShape {
        feature_len: 7,
        ..SHAPE
    };
    let (target, draft) = memory::pair(&other);
    assert_ne!(link_spec(&other), link_spec(&SHAPE));
    assert_foreign(&TargetEnd::new(target, SHAPE).unwrap_err(), "shape");
    assert_foreign(&DraftEnd::new(draft, SHAPE).unwrap_err(), "shape");
}
