//! Importance of a prompt's tokens by the demo drafter.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::GgufFile;
use kernels::Device;
use models::{PromptScorer, ScorePositions, ScoreProgress, ScorerOptions};

use common::naive_dense::NaiveDense;
use common::{device, gpu};

/// Tokens that are kept or dropped together.
const CHUNK: usize = 32;

fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/demo")
        .join(name)
}

fn scores(device: Arc<dyn Device>, options: ScorerOptions, tokens: &[u32]) -> Vec<f32> {
    let file = GgufFile::open(demo("demo-prefill.gguf")).unwrap();
    let mut scorer = PromptScorer::load(&file, device, options).unwrap();
    let go_on = &mut |_: ScoreProgress| ControlFlow::Continue(());
    scorer.score(tokens, go_on).unwrap()
}

/// With nothing left out or rounded that need not be.
const EXACT: ScorerOptions = ScorerOptions {
    scored_layers: None,
    positions: ScorePositions::Unrotated,
    sparsity: None,
    exact: true,
};

/// Chunks of the highest scores, of which so large a part is kept.
fn selected(scores: &[f32], part: f64) -> Vec<usize> {
    let chunks = chunk_scores(scores);
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    order.sort_by(|a, b| chunks[*b].total_cmp(&chunks[*a]));
    order.truncate((chunks.len() as f64 * part) as usize);
    order.sort_unstable();
    order
}

fn chunk_scores(scores: &[f32]) -> Vec<f32> {
    let mean = |chunk: &[f32]| chunk.iter().sum::<f32>() / chunk.len() as f32;
    scores.chunks(CHUNK).map(mean).collect()
}

/// A prompt of 2048 tokens with a fact hidden in it, and what another implementation says of its chunks.
fn golden() -> (Vec<u32>, Vec<f32>) {
    let text = std::fs::read_to_string(demo("goldens.json")).unwrap();
    let goldens: serde_json::Value = serde_json::from_str(&text).unwrap();
    let field = |name: &str| goldens["prefill"][name].clone();
    let ids = serde_json::from_value(field("ids")).unwrap();
    (ids, serde_json::from_value(field("chunk_scores")).unwrap())
}

#[test]
fn rotated_scores_are_those_of_another_implementation() {
    let (ids, want) = golden();
    let options = ScorerOptions {
        positions: ScorePositions::Rotated,
        ..EXACT
    };
    let got = chunk_scores(&scores(device(2), options, &ids));
    assert_eq!(got.len(), want.len());
    for (chunk, (got, want)) in got.iter().zip(&want).enumerate() {
        // They are written with six digits after the point.
        let error = (got - want).abs();
        assert!(error < 1e-6, "chunk {chunk}: {got}, expected {want}");
    }
}

#[test]
fn dense_scores_are_those_of_plain_loops() {
    let (mut ids, _) = golden();
    // The last rows are not all in the last pass.
    ids.extend_from_within(0..3);
    let naive = NaiveDense::new(GgufFile::open(demo("demo-prefill.gguf")).unwrap());
    let want = naive.scores(&ids, 3, false);
    let options = ScorerOptions {
        scored_layers: Some(3),
        ..EXACT
    };
    let got = scores(device(2), options, &ids);
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() < 1e-6, "{got}, expected {want}");
    }
    for part in [0.05, 0.1, 0.2, 0.5] {
        assert_eq!(selected(&got, part), selected(&want, part), "{part}");
    }
}

#[test]
fn a_gpu_scores_as_the_cpu_does() {
    let (ids, _) = golden();
    let ids = &ids[ids.len() - 40..];
    let worst = |options: ScorerOptions| {
        let (got, want) = (scores(gpu(), options, ids), scores(device(2), options, ids));
        let errors = got
            .iter()
            .zip(&want)
            .map(|(got, want)| (got - want).abs() / want);
        errors.fold(0.0, f32::max)
    };
    let error = worst(EXACT);
    assert!(error < 1e-4, "{error}");
    // Both round to 8 bits, which puts some values to the other side.
    let error = worst(ScorerOptions::default());
    assert!(error < 0.05, "{error}");
}

/// Other text of so many tokens, from its `start`th piece on, with the golden's fact somewhere and its question at the end.
fn needle(len: usize, start: usize, depth: f64) -> Vec<u32> {
    let path = demo("../../crates/engine/tests/data/acceptance.json");
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let prompts = file["prompts"].as_array().unwrap();
    let pieces = prompts
        .iter()
        .flat_map(|prompt| [&prompt["prompt_ids"], &prompt["output_ids"]]);
    let pieces: Vec<Vec<u32>> = pieces
        .map(|ids| serde_json::from_value(ids.clone()).unwrap())
        .collect();
    let (golden, _) = golden();
    let (fact, question) = (&golden[1700..1735], &golden[golden.len() - 48..]);
    let mut text: Vec<u32> = pieces
        .into_iter()
        .cycle()
        .skip(start)
        .flatten()
        .take(len)
        .collect();
    let at = (depth * len as f64) as usize;
    text.splice(at..at + fact.len(), fact.iter().copied());
    text.splice(len - question.len().., question.iter().copied());
    text
}

#[test]
fn sparse_attention_selects_what_dense_attention_does() {
    let sparse = ScorerOptions::default();
    assert!(sparse.sparsity.is_some());
    let dense = ScorerOptions {
        sparsity: None,
        ..sparse
    };
    let (mut kept, mut wanted) = (0, 0);
    for (len, start, depth) in [
        (2048, 0, 0.3),
        (2048, 40, 0.8),
        (4096, 10, 0.1),
        (4096, 70, 0.6),
        (8192, 20, 0.45),
    ] {
        let ids = needle(len, start, depth);
        let [dense, sparse] = [dense, sparse].map(|options| scores(device(2), options, &ids));
        for part in [0.05, 0.1, 0.2] {
            let (want, got) = (selected(&dense, part), selected(&sparse, part));
            let common = want.iter().filter(|chunk| got.contains(chunk)).count();
            kept += common;
            wanted += want.len();
        }
    }
    let recall = kept as f64 / wanted as f64;
    assert!(recall >= 0.95, "{kept} of {wanted} chunks");
}
