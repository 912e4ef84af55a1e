//! What those who watch are told of rounds.

#![allow(clippy::unwrap_used)]

mod common;

use common::scripted::{Behaviour, Scripted};
use common::{CONFIG, FIBONACCI, FIBONACCI_ANSWER, request, start, within};
use engine::EngineConfig;
use generation::{RoundReport, SpeculationConfig, SpeculationMode};

const BUDGET: usize = 12;

/// The first round of the sequence that all tests here have, where `right` of ten proposed tokens are those of the text.
async fn first_round(right: u64) -> (RoundReport, Vec<u32>) {
    let stand = start(EngineConfig {
        speculation: SpeculationConfig {
            mode: SpeculationMode::Tree,
            budget: BUDGET,
        },
        ..CONFIG
    });
    let text = [&FIBONACCI[..], &FIBONACCI_ANSWER].concat();
    let (draft, _) = Scripted::new(Behaviour::Answers { right }, vec![text.clone()]);
    let _lease = stand.handle.set_drafter(Box::new(draft));
    let mut rounds = stand.handle.watch();
    stand.gate.open();
    let answer = stand.answer(&request(&FIBONACCI, 49)).await;
    // Being watched changes no token.
    assert_eq!(answer.ids(), FIBONACCI_ANSWER[..49]);
    // Not each proposal has its right tokens where a tree takes them.
    let mut round = within(rounds.recv()).await.expect("the engine is there");
    while right > 0 && round.accepted.is_empty() {
        round = within(rounds.recv()).await.expect("a round that was right");
    }
    (RoundReport::clone(&round), text)
}

#[tokio::test]
async fn a_round_is_told_with_its_tree_and_the_path_that_became_text() {
    let (round, text) = first_round(10).await;
    let position = round.position as usize;
    assert_eq!(round.anchor, text[position], "{round:?}");
    assert_eq!(round.chosen[..], text[position + 1..][..round.chosen.len()]);
    let nodes = round.tokens.len();
    assert!(nodes > 0 && nodes <= BUDGET);
    assert_eq!((round.parents.len(), round.log_probs.len()), (nodes, nodes));
    let comes_before = |(node, parent): (usize, &u32)| (*parent as usize) <= node;
    assert!(round.parents.iter().enumerate().all(comes_before));
    // A path from the root, whose tokens the target chose itself; the token behind it is in no node.
    let accepted = round.accepted.iter().map(|node| *node as usize - 1);
    let mut parent = 0;
    let mut path = Vec::new();
    for node in accepted {
        assert_eq!(round.parents[node], parent);
        parent = node as u32 + 1;
        path.push(round.tokens[node]);
    }
    assert_eq!(path, round.chosen[..path.len()]);
    assert_eq!(round.chosen.len(), path.len() + 1);
    assert!(round.stages.verify_us > 0 && round.step_sequences == 1);
}

#[tokio::test]
async fn a_round_in_which_nothing_was_right_has_one_token_of_the_targets_own() {
    let (round, text) = first_round(0).await;
    assert!(round.accepted.is_empty());
    assert_eq!(round.chosen, [text[round.position as usize + 1]]);
}
