//! Importance of a prompt's tokens by the demo drafter.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::GgufFile;
use kernels::Device;
use models::{PromptScorer, ScorePositions, ScoreProgress, ScorerOptions};

use common::device;

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
        sparsity: None,
        exact: true,
        ..ScorerOptions::default()
    };
    let got = chunk_scores(&scores(device(2), options, &ids));
    assert_eq!(got.len(), want.len());
    for (chunk, (got, want)) in got.iter().zip(&want).enumerate() {
        // They are written with six digits after the point.
        let error = (got - want).abs();
        assert!(error < 1e-6, "chunk {chunk}: {got}, expected {want}");
    }
}
