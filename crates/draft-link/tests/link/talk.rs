//! What the two sides say to each other.

use std::ops::Range;
use std::time::Duration;

use draft_link::{
    Answer, Ask, DraftEnd, LinkError, Question, Refusal, Request, TargetEnd, link_spec,
};
use speculative::Proposal;

use crate::{ASK, PATIENCE, SHAPE, memory};

const TIME: Duration = Duration::from_micros(1234);

fn ends() -> (TargetEnd, DraftEnd) {
    let (target, draft) = memory::pair(&SHAPE);
    (
        TargetEnd::new(target, SHAPE).unwrap(),
        DraftEnd::new(draft, SHAPE).unwrap(),
    )
}

fn proposal(depth: usize, top_k: usize) -> Proposal {
    let candidates = depth * top_k;
    Proposal {
        top_k,
        ids: (0..candidates).map(|id| id as u32).collect(),
        log_probs: (0..candidates)
            .map(|at| -((at % top_k) as f32) - 0.5)
            .collect(),
    }
}

/// What the draft hears, where nobody looks at features.
pub fn hear(draft: &mut DraftEnd, patience: Duration) -> Result<Option<Request>, LinkError> {
    hear_rows(draft, patience).map(|heard| heard.map(|(request, _)| request))
}

/// What the draft hears, and the room that features land in.
fn hear_rows(
    draft: &mut DraftEnd,
    patience: Duration,
) -> Result<Option<(Request, Vec<f32>)>, LinkError> {
    let mut room = vec![0.0; link_spec(&SHAPE).inbound.slot_rows * SHAPE.feature_len];
    let heard = draft.receive(&mut bytemuck::cast_slice_mut(&mut room), patience)?;
    Ok(heard.map(|request| (request, room)))
}

/// Feeds rows from the host.
fn feed(
    target: &mut TargetEnd,
    sequence: u64,
    position: usize,
    rows: &[f32],
) -> Result<usize, LinkError> {
    let len = SHAPE.feature_len;
    let part =
        |range: Range<usize>| bytemuck::cast_slice(&rows[range.start * len..range.end * len]);
    target.feed(sequence, position, rows.len() / len, part)
}

fn question(draft: &mut DraftEnd) -> Question {
    match hear(draft, PATIENCE).unwrap() {
        Some(Request::Propose(question)) => question,
        other => panic!("a question, not {other:?}"),
    }
}

/// A round over any transport: features in several slots, a question, its answer, the end of the sequence.
pub fn check_round(target: &mut TargetEnd, draft: &mut DraftEnd) {
    let slot_rows = link_spec(&SHAPE).inbound.slot_rows;
    let rows: Vec<f32> = (0..(slot_rows + 1) * SHAPE.feature_len)
        .map(|at| at as f32)
        .collect();
    assert_eq!(feed(target, 7, 100, &rows).unwrap(), slot_rows + 1);
    assert!(target.ask(7, ASK).unwrap());
    let (first, second) = rows.split_at(slot_rows * SHAPE.feature_len);
    for (position, part) in [(100, first), (100 + slot_rows, second)] {
        let expected = Request::Features {
            sequence: 7,
            first_position: position,
            num_rows: part.len() / SHAPE.feature_len,
        };
        let (heard, room) = hear_rows(draft, PATIENCE).unwrap().unwrap();
        assert_eq!((heard, &room[..part.len()]), (expected, part));
    }
    let question = question(draft);
    assert_eq!((question.sequence, question.ask), (7, ASK));
    draft
        .reply(&question, &proposal(3, 2), TIME, PATIENCE)
        .unwrap();
    let expected = Answer {
        sequence: 7,
        position: ASK.position,
        proposal: Ok(proposal(3, 2)),
        draft_time: TIME,
    };
    assert_eq!(target.receive(PATIENCE).unwrap(), Some(expected));
    assert!(target.forget(7).unwrap());
    let forget = Request::Forget { sequence: 7 };
    assert_eq!(hear(draft, PATIENCE).unwrap(), Some(forget));
}

#[test]
fn a_round_goes_through() {
    let (mut target, mut draft) = ends();
    check_round(&mut target, &mut draft);
    assert_eq!(target.receive(Duration::ZERO).unwrap(), None);
    assert_eq!(hear(&mut draft, Duration::ZERO).unwrap(), None);
}

#[test]
fn a_refusal_says_why() {
    let (mut target, mut draft) = ends();
    for refusal in [Refusal::Context, Refusal::Model] {
        assert!(target.ask(7, ASK).unwrap());
        let question = question(&mut draft);
        draft.refuse(&question, refusal, PATIENCE).unwrap();
        let answer = target.receive(PATIENCE).unwrap().unwrap();
        assert_eq!(answer.proposal, Err(refusal));
        assert_eq!((answer.sequence, answer.position), (7, ASK.position));
    }
}

#[test]
fn a_draft_that_is_behind_makes_nobody_wait() {
    let (mut target, _draft) = ends();
    let spec = link_spec(&SHAPE).inbound;
    let room = spec.slots * spec.slot_rows;
    let rows = vec![0.0; (room + 5) * SHAPE.feature_len];
    assert_eq!(feed(&mut target, 1, 0, &rows).unwrap(), room);
    assert_eq!(feed(&mut target, 1, room, &rows).unwrap(), 0);
    assert!(!target.ask(1, ASK).unwrap());
    assert!(!target.forget(1).unwrap());
}

#[test]
fn answers_to_questions_that_were_given_up_are_passed_over() {
    let (mut target, mut draft) = ends();
    let later = Ask {
        position: 11,
        ..ASK
    };
    assert!(target.ask(1, ASK).unwrap());
    assert!(target.ask(1, later).unwrap());
    assert!(target.ask(2, ASK).unwrap());
    assert!(target.forget(2).unwrap());
    for _ in 0..3 {
        let question = question(&mut draft);
        draft
            .reply(&question, &proposal(1, 1), TIME, PATIENCE)
            .unwrap();
    }
    let answer = target.receive(PATIENCE).unwrap().unwrap();
    assert_eq!((answer.sequence, answer.position), (1, later.position));
    assert_eq!(target.receive(Duration::ZERO).unwrap(), None);
}

#[test]
fn what_does_not_fit_is_not_sent() {
    let (mut target, mut draft) = ends();
    let too_deep = Ask { depth: 4, ..ASK };
    let nothing = Ask { top_k: 0, ..ASK };
    assert!(target.ask(1, too_deep).is_err());
    assert!(target.ask(1, nothing).is_err());
    let short = |_| &[0; 20][..];
    assert!(target.feed(1, 0, 1, short).is_err());
    assert!(feed(&mut target, 1, 1 << 32, &[0.0; 6]).is_err());
    assert_eq!(hear(&mut draft, Duration::ZERO).unwrap(), None);
    assert!(target.ask(1, ASK).unwrap());
    let question = question(&mut draft);
    let ragged = Proposal {
        log_probs: vec![0.0],
        ..proposal(3, 2)
    };
    for unfit in [Proposal::default(), proposal(4, 2), proposal(1, 3), ragged] {
        assert!(draft.reply(&question, &unfit, TIME, PATIENCE).is_err());
    }
    assert_eq!(target.receive(Duration::ZERO).unwrap(), None);
}
