//! Trees against those of DDTree's reference code, node for node, and against their definition.
#![allow(clippy::unwrap_used, reason = "test helpers outside test functions")]

use std::path::Path;

use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::Value;
use speculative::{DraftTree, Proposal, TreeOptions};

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(path).unwrap()
}

fn numbers(value: &Value) -> Vec<i64> {
    let list = value.as_array().unwrap();
    list.iter().map(|v| v.as_i64().unwrap()).collect()
}

fn best_first(budget: usize) -> TreeOptions {
    TreeOptions {
        budget,
        chain_seed: false,
    }
}

#[test]
fn trees_are_those_of_the_reference() {
    let bytes = data("ddtree_logits.safetensors");
    let logits = SafeTensors::deserialize(&bytes).unwrap();
    let golden: Value = serde_json::from_slice(&data("ddtree_trees.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 10);
    for case in cases {
        let name = case["logits"].as_str().unwrap();
        let budget = case["budget"].as_u64().unwrap() as usize;
        let view = logits.tensor(name).unwrap();
        let values: Vec<f32> = view
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        let proposal = Proposal::from_logits(&values, view.shape()[1], budget);
        let tree = DraftTree::grow(&proposal, best_first(budget));
        let what = format!("{name}, budget {budget}");
        let tokens: Vec<i64> = tree.tokens().iter().map(|&t| t.into()).collect();
        let depths: Vec<i64> = tree.depths().iter().map(|&d| d as i64).collect();
        let parents: Vec<i64> = tree.parents().iter().map(|&p| p.into()).collect();
        assert_eq!(tokens, numbers(&case["node_token_ids"]), "{what}");
        assert_eq!(depths, numbers(&case["node_depths"]), "{what}");
        assert_eq!(parents, numbers(&case["parents"]), "{what}");
        let visible: Vec<String> = tree
            .visibility()
            .iter()
            .map(|row| row.iter().map(|&v| if v { '1' } else { '0' }).collect())
            .collect();
        assert_eq!(Value::from(visible), case["visibility_rows"], "{what}");
    }
}

fn proposals() -> impl Strategy<Value = Proposal> {
    (1..6_usize, 1..5_usize).prop_flat_map(|(depth, top_k)| {
        // Steps of a quarter give many ties.
        let row = prop::collection::vec(0..12_u8, top_k);
        prop::collection::vec(row, depth).prop_map(move |rows| {
            let mut proposal = Proposal {
                top_k,
                ..Proposal::default()
            };
            for mut row in rows {
                row.sort_unstable();
                for (rank, step) in row.into_iter().enumerate() {
                    proposal.ids.push(rank as u32);
                    proposal.log_probs.push(-f32::from(step) / 4.0);
                }
            }
            proposal
        })
    })
}

/// Log-probabilities of all beginnings of a proposal, the likeliest first.
fn all_beginnings(proposal: &Proposal) -> Vec<f64> {
    let mut level = vec![0.0];
    let mut all = Vec::new();
    for row in proposal.log_probs.chunks(proposal.top_k) {
        level = level
            .iter()
            .flat_map(|sum| row.iter().map(move |p| sum + f64::from(*p)))
            .collect();
        all.extend(&level);
    }
    all.sort_by(|a: &f64, b| b.total_cmp(a));
    all
}

proptest! {
    #[test]
    fn no_other_nodes_are_likelier(proposal in proposals(), budget in 0..40_usize) {
        let tree = DraftTree::grow(&proposal, best_first(budget));
        let mut best = all_beginnings(&proposal);
        best.truncate(budget);
        // Quarters add up exactly.
        prop_assert_eq!(tree.log_probs(), &best[..]);
    }

    #[test]
    fn a_tree_is_a_tree(proposal in proposals(), budget in 0..40_usize, chain_seed: bool) {
        let tree = DraftTree::grow(&proposal, TreeOptions { budget, chain_seed });
        prop_assert!(tree.num_nodes() <= budget);
        prop_assert_eq!(tree.parents().len(), tree.num_nodes() + 1);
        for node in 1..=tree.num_nodes() {
            let parent = usize::try_from(tree.parents()[node]).unwrap();
            prop_assert!(parent < node);
            let depth = if parent == 0 { 0 } else { tree.depths()[parent - 1] };
            prop_assert_eq!(tree.depths()[node - 1], depth + 1);
            // Siblings differ, so that a token leads to one child.
            prop_assert_eq!(tree.child(parent, tree.tokens()[node - 1]), Some(node));
        }
    }

    #[test]
    fn a_cut_tree_is_the_tree_of_the_smaller_budget(proposal in proposals(), budget in 0..40_usize, nodes in 0..40_usize) {
        let mut cut = DraftTree::grow(&proposal, best_first(budget));
        cut.truncate(nodes);
        prop_assert_eq!(cut, DraftTree::grow(&proposal, best_first(budget.min(nodes))));
    }
}

#[test]
fn a_chain_takes_the_likeliest_token_of_each_position() {
    let proposal = Proposal {
        top_k: 2,
        ids: vec![5, 6, 7, 8],
        log_probs: vec![-3.0, -3.5, -0.1, -4.0],
    };
    let chain = DraftTree::chain(&proposal);
    assert_eq!(chain.tokens(), [5, 7]);
    assert_eq!(chain.parents(), [-1, 0, 1]);
    let seeded = DraftTree::grow(
        &proposal,
        TreeOptions {
            budget: 4,
            chain_seed: true,
        },
    );
    assert_eq!(seeded.tokens(), [5, 7, 6, 7]);
    assert_eq!(seeded.parents(), [-1, 0, 1, 0, 3]);
}

#[test]
fn impossible_tokens_are_in_no_tree() {
    let proposal = Proposal {
        top_k: 2,
        ids: vec![1, 2],
        log_probs: vec![0.0, f32::NEG_INFINITY],
    };
    assert_eq!(DraftTree::grow(&proposal, best_first(4)).tokens(), [1]);
    let nothing = Proposal {
        top_k: 1,
        ids: vec![1],
        log_probs: vec![f32::NAN],
    };
    assert_eq!(DraftTree::chain(&nothing).num_nodes(), 0);
}
