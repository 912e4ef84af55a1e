//! What a scorer of prompts refuses, and what it says that it needs.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;

use gguf::GgufFile;
use models::{ModelError, PromptScorer, ScoreProgress, ScorerOptions, scorer_memory_need};

use common::{data, device};

fn file(name: &str) -> GgufFile {
    GgufFile::open(data().join(name)).unwrap()
}

fn load(name: &str, options: ScorerOptions) -> Result<PromptScorer, ModelError> {
    PromptScorer::load(&file(name), device(1), options)
}

fn go_on(_: ScoreProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn options_that_a_model_does_not_have_are_refused() {
    let name = "qwen3-nano-BF16.gguf";
    let layers = load(name, ScorerOptions::default())
        .unwrap()
        .config()
        .num_layers;
    for got in [0, layers + 1] {
        let options = ScorerOptions {
            scored_layers: Some(got),
            ..ScorerOptions::default()
        };
        let error = load(name, options).unwrap_err();
        assert!(
            matches!(error, ModelError::ScoredLayers { got: it, .. } if it == got),
            "{error}"
        );
    }
    for got in [0.0, -1.0, 1.5, f32::NAN] {
        let options = ScorerOptions {
            sparsity: Some(got),
            ..ScorerOptions::default()
        };
        let error = load(name, options).unwrap_err();
        assert!(matches!(error, ModelError::Sparsity { .. }), "{error}");
    }
    let error = load("qwen35-tiny-Q4_K_M.gguf", ScorerOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("expected one of qwen3, llama"),
        "{error}"
    );
}

#[test]
fn prompts_that_cannot_be_scored_are_refused() {
    let mut scorer = load("qwen3-nano-BF16.gguf", ScorerOptions::default()).unwrap();
    let vocab = scorer.config().vocab_size as u32;
    let limit = models::max_scored_tokens(scorer.config());
    let error = scorer.score(&[], &mut go_on).unwrap_err();
    assert!(matches!(error, ModelError::EmptySegment { .. }), "{error}");
    let error = scorer.score(&[1, vocab], &mut go_on).unwrap_err();
    assert!(
        matches!(error, ModelError::TokenOutOfRange { index: 1, .. }),
        "{error}"
    );
    let error = scorer.score(&vec![1; limit + 1], &mut go_on).unwrap_err();
    assert!(
        matches!(error, ModelError::ContextOverflow { .. }),
        "{error}"
    );
    // And goes on after that, with prompts shorter than a tail too.
    for len in [1, 7, 60] {
        let scores = scorer.score(&vec![1; len], &mut go_on).unwrap();
        assert_eq!(scores.len(), len);
        assert!(scores.iter().all(|score| *score > 0.0));
    }
}

#[test]
fn scoring_stops_when_it_is_told_to() {
    let mut scorer = load("llama-nano-Q4_1.gguf", ScorerOptions::default()).unwrap();
    let layers = scorer.config().num_layers as u64;
    let mut seen = Vec::new();
    let whole = scorer.score(&[3; 20], &mut |progress| {
        seen.push((progress.done, progress.total));
        ControlFlow::Continue(())
    });
    assert!(whole.is_ok());
    let every: Vec<_> = (1..=layers)
        .map(|layer| (20 * layer, 20 * layers))
        .collect();
    assert_eq!(seen, every);
    let stopped = scorer.score(&[3; 20], &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(ModelError::ScoringStopped)));
    assert_eq!(scorer.score(&[3; 20], &mut go_on).unwrap(), whole.unwrap());
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_taken() {
    let name = "qwen3-nano-BF16.gguf";
    let options = ScorerOptions::default();
    let need = |tokens| scorer_memory_need(&file(name), &options, tokens).unwrap();
    let (loaded, prompt) = (need(0).total(), need(100).total());
    assert!(prompt > loaded);
    let exact = ScorerOptions {
        exact: true,
        ..options
    };
    let expanded = scorer_memory_need(&file(name), &exact, 0).unwrap();
    assert!(expanded.weights > 3 * need(0).weights / 2);

    let device = device(1);
    device.limit_memory(loaded - 1);
    let error = PromptScorer::load(&file(name), device.clone(), options).unwrap_err();
    assert!(
        matches!(error, ModelError::DoesNotFit { missing: 1, .. }),
        "{error}"
    );
    // The CPU counts nothing off for what is loaded.
    device.limit_memory(loaded);
    let mut scorer = PromptScorer::load(&file(name), device.clone(), options).unwrap();
    device.limit_memory(prompt - loaded - 1);
    let error = scorer.score(&[1; 100], &mut go_on).unwrap_err();
    assert!(
        matches!(error, ModelError::DoesNotFit { missing: 1, .. }),
        "{error}"
    );
    device.limit_memory(prompt - loaded);
    assert!(scorer.score(&[1; 100], &mut go_on).is_ok());
}
