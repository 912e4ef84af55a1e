//! Whatever a draft says or does, the tokens are those of plain decoding.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::gated::Gate;
use common::scripted::{Behaviour, Scripted, Seen};
use common::{
    Answer, CONFIG, FIBONACCI, Stand, collect, load, load_with, prompt, request, start, start_with,
    within,
};
use engine::EngineConfig;
use generation::{GenerateRequest, SpeculationConfig, SpeculationMode, SpeculationStats};
use models::{Batch, BatchSegment, KvType, KvTypes, LogitsWanted};
use sampling::SamplingParams;

const MODES: [(SpeculationMode, usize); 6] = [
    (SpeculationMode::Chain, 22),
    (SpeculationMode::Tree, 4),
    (SpeculationMode::Tree, 16),
    (SpeculationMode::Tree, 22),
    (SpeculationMode::Tree, 64),
    (SpeculationMode::Auto, 64),
];

fn config(mode: SpeculationMode, budget: usize) -> EngineConfig {
    EngineConfig {
        speculation: SpeculationConfig { mode, budget },
        ..CONFIG
    }
}

/// Greedy, and every way to sample, with and without what ends an answer early.
fn requests() -> Vec<GenerateRequest> {
    let greedy = request(&FIBONACCI, 36);
    let sampled = GenerateRequest {
        sampling: SamplingParams {
            temperature: 0.8,
            top_p: 0.95,
            top_k: 40,
            min_p: 0.05,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            repetition_window: 16,
            logit_bias: vec![(220, 2.0), (198, -1.0)],
            seed: 11,
        },
        logprobs: true,
        top_logprobs: 2,
        ..request(&prompt(30, 1), 24)
    };
    let hot = GenerateRequest {
        sampling: SamplingParams {
            temperature: 1.3,
            seed: 5,
            ..SamplingParams::default()
        },
        ..request(&prompt(70, 2), 20)
    };
    let stops = GenerateRequest {
        stop_ids: vec![365, 8188],
        min_tokens: 3,
        ..request(&FIBONACCI, 60)
    };
    vec![greedy, sampled, hot, stops]
}

async fn all(stand: &Stand, requests: &[GenerateRequest]) -> Vec<Answer> {
    stand.gate.pass(0);
    let streams: Vec<_> = requests
        .iter()
        .map(|request| stand.handle.generate(request.clone()).unwrap())
        .collect();
    stand.gate.open();
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await);
    }
    answers
}

/// Prompt and answer of each request, as plain decoding has them.
async fn plain(requests: &[GenerateRequest]) -> (Vec<Answer>, Vec<Vec<u32>>) {
    let answers = all(&start(CONFIG), requests).await;
    let texts = texts(requests, &answers);
    (answers, texts)
}

fn texts(requests: &[GenerateRequest], answers: &[Answer]) -> Vec<Vec<u32>> {
    let answers = requests.iter().zip(answers);
    answers
        .map(|(request, answer)| [request.prompt.clone(), answer.ids()].concat())
        .collect()
}

struct Run {
    answers: Vec<Answer>,
    stats: SpeculationStats,
    seen: Arc<Mutex<Seen>>,
}

async fn run(
    config: EngineConfig,
    behaviour: Behaviour,
    requests: &[GenerateRequest],
    texts: &[Vec<u32>],
) -> Run {
    let stand = start(config);
    let (draft, seen) = Scripted::new(behaviour, texts.to_vec());
    let _lease = stand.handle.set_drafter(Box::new(draft));
    let answers = all(&stand, requests).await;
    Run {
        answers,
        stats: stand.handle.stats().speculation,
        seen,
    }
}

fn same(answers: &[Answer], expected: &[Answer], what: &str) {
    for (answer, expected) in answers.iter().zip(expected) {
        // Log-probabilities too, which come from the logits' bits.
        assert_eq!(answer.tokens, expected.tokens, "{what}");
        assert_eq!(answer.reason(), expected.reason(), "{what}");
    }
}

#[tokio::test]
async fn tokens_are_those_of_plain_decoding() {
    let requests = requests();
    let (expected, texts) = plain(&requests).await;
    for (mode, budget) in MODES {
        for right in [0, 6, 10] {
            let what = format!("{mode:?} {budget}, {right} of 10 right");
            let run = run(
                config(mode, budget),
                Behaviour::Answers { right },
                &requests,
                &texts,
            )
            .await;
            same(&run.answers, &expected, &what);
            assert!(run.stats.rounds > 0, "{what}");
            if right == 10 && mode != SpeculationMode::Auto {
                assert!(run.stats.accepted_tokens > 30, "{what}: {:?}", run.stats);
            }
        }
    }
}

#[tokio::test]
async fn the_same_holds_of_keys_and_values_that_are_codes() {
    let requests = requests();
    for (k, v) in [
        (KvType::Q8_0, KvType::Q4_1),
        (KvType::Q5_0, KvType::Bf16),
        (KvType::Q4_0, KvType::Tq3_0),
    ] {
        let stand = |config: EngineConfig| {
            let gate = Arc::new(Gate::default());
            let options = config.load_options(Some(KvTypes { k, v }));
            start_with(load_with(options, &gate), config, gate)
        };
        let expected = all(&stand(CONFIG), &requests).await;
        let texts = texts(&requests, &expected);
        let speculating = stand(config(SpeculationMode::Tree, 16));
        let (draft, _) = Scripted::new(Behaviour::Answers { right: 6 }, texts);
        let _lease = speculating.handle.set_drafter(Box::new(draft));
        let answers = all(&speculating, &requests).await;
        same(&answers, &expected, &format!("{k} keys, {v} values"));
        assert!(speculating.handle.stats().speculation.rounds > 0);
    }
}

/// A window makes other answers, with a draft or without the same ones, and leaves prompts alone.
#[tokio::test]
async fn a_window_of_attention_forgets_the_same_whoever_proposes() {
    let requests = requests();
    let stand = |config: EngineConfig| {
        let gate = Arc::new(Gate::default());
        let mut model = load(config, &gate);
        model.set_decode_window(Some(12)).unwrap();
        start_with(model, config, gate)
    };
    let (all_seen, _) = plain(&requests).await;
    let expected = all(&stand(CONFIG), &requests).await;
    let differs = |(a, b): (&Answer, &Answer)| a.ids()[0] == b.ids()[0] && a.ids() != b.ids();
    assert!(expected.iter().zip(&all_seen).any(differs));
    let config = EngineConfig {
        verify_lossless: true,
        ..config(SpeculationMode::Tree, 16)
    };
    let speculating = stand(config);
    let texts = texts(&requests, &expected);
    let (draft, _) = Scripted::new(Behaviour::Answers { right: 6 }, texts);
    let _lease = speculating.handle.set_drafter(Box::new(draft));
    let answers = all(&speculating, &requests).await;
    same(&answers, &expected, "through a window");
    let stats = speculating.handle.stats().speculation;
    assert!(stats.rounds > 0 && stats.checked_tokens > 0, "{stats:?}");
    assert_eq!(stats.mismatched_tokens, 0);
}

#[tokio::test]
async fn a_chain_that_is_right_saves_the_steps_that_it_can() {
    let requests = [request(&FIBONACCI, 33)];
    let (expected, texts) = plain(&requests).await;
    let (draft, _) = Scripted::new(Behaviour::Answers { right: 10 }, texts);
    let stand = start(config(SpeculationMode::Chain, 0));
    let _lease = stand.handle.set_drafter(Box::new(draft));
    let answers = all(&stand, &requests).await;
    same(&answers, &expected, "chain");
    let timings = answers[0].end.clone().unwrap().1.speculation;
    // The prompt's step gives one token, each round sixteen.
    assert_eq!(timings.rounds, 2, "{timings:?}");
    assert_eq!((timings.draft_tokens, timings.accepted_tokens), (30, 30));
    assert_eq!(stand.handle.stats().steps, 3);
}

#[tokio::test]
async fn a_draft_that_fails_hangs_or_lags_changes_nothing() {
    let requests = requests();
    let (expected, texts) = plain(&requests).await;
    for behaviour in [
        Behaviour::Hangs,
        Behaviour::IsLate,
        Behaviour::IsBehind,
        Behaviour::FailsAt(1),
        Behaviour::FailsAt(9),
        Behaviour::TalksNonsense,
    ] {
        let config = config(SpeculationMode::Tree, 8);
        let run = run(config, behaviour, &requests, &texts).await;
        same(&run.answers, &expected, &format!("{behaviour:?}"));
        let stats = run.stats;
        match behaviour {
            Behaviour::Hangs => {
                // Once a wait was in vain, nobody else waits.
                let asked = run.seen.lock().unwrap().asked;
                assert_eq!((stats.rounds, stats.draft_timeouts), (0, asked as u64));
            }
            Behaviour::FailsAt(_) => assert_eq!(stats.drafts_lost, 1),
            Behaviour::TalksNonsense => assert_eq!(stats.rounds, 0),
            _ => assert!(stats.rounds > 0, "{behaviour:?}: {stats:?}"),
        }
    }
}

#[tokio::test]
async fn a_draft_that_comes_back_has_its_context_again() {
    let requests = [request(&FIBONACCI, 50)];
    let (expected, texts) = plain(&requests).await;
    let stand = start(config(SpeculationMode::Tree, 8));
    stand.gate.pass(0);
    let (first, _) = Scripted::new(Behaviour::FailsAt(2), texts.clone());
    let mut lease = stand.handle.set_drafter(Box::new(first));
    let stream = stand.handle.generate(requests[0].clone()).unwrap();
    stand.gate.pass(4);
    within(lease.lost()).await;
    let (second, seen) = Scripted::new(Behaviour::Answers { right: 10 }, texts);
    let _lease = stand.handle.set_drafter(Box::new(second));
    stand.gate.open();
    same(&[collect(stream).await], &expected, "after a loss");
    let seen = seen.lock().unwrap();
    assert!(seen.asked > 0);
    assert_eq!(seen.fed[&1].0, 0, "from the first position on");
    assert!(stand.handle.stats().speculation.draft_attached);
}

#[tokio::test]
async fn a_lease_that_is_dropped_takes_the_draft_away() {
    let stand = start(config(SpeculationMode::Tree, 8));
    let (draft, seen) = Scripted::new(Behaviour::Answers { right: 0 }, Vec::new());
    let lease = stand.handle.set_drafter(Box::new(draft));
    stand
        .until("attached", |stats| stats.speculation.draft_attached)
        .await;
    drop(lease);
    stand
        .until("detached", |stats| !stats.speculation.draft_attached)
        .await;
    // The idle thread let go of it, and of what it shares with the test.
    assert_eq!(Arc::strong_count(&seen), 1);
}

#[tokio::test]
async fn a_draft_sees_the_features_of_accepted_tokens_and_learns_of_the_end() {
    let requests = requests();
    let (_, texts) = plain(&requests).await;
    let config = config(SpeculationMode::Tree, 16);
    let run = run(config, Behaviour::Answers { right: 6 }, &requests, &texts).await;
    let mut model = load(CONFIG, &Arc::new(Gate::default()));
    let seen = run.seen.lock().unwrap();
    assert_eq!(seen.fed.len(), requests.len());
    for (sequence, (first, values)) in &seen.fed {
        assert_eq!(*first, 0);
        let text = &texts[*sequence as usize - 1];
        let id = model.create_sequence().unwrap();
        let mut expected = Vec::new();
        for token in &text[..values.len() / (3 * 512)] {
            let segment = BatchSegment {
                sequence: id,
                tokens: vec![*token],
                parents: Vec::new(),
                advance: true,
                logits: LogitsWanted::None,
            };
            let batch = Batch {
                segments: vec![segment],
                capture_layers: vec![1, 3, 5],
            };
            model.forward(&batch).unwrap();
            expected.extend(model.features([0]));
        }
        model.free_sequence(id).unwrap();
        assert!(*values == expected, "features of sequence {sequence}");
    }
}

#[tokio::test]
async fn an_ended_sequence_is_forgotten_by_the_draft() {
    let requests = [request(&FIBONACCI, 8), request(&FIBONACCI, 30)];
    let (_, texts) = plain(&requests).await;
    let config = config(SpeculationMode::Tree, 8);
    let run = run(config, Behaviour::Answers { right: 3 }, &requests, &texts).await;
    assert!(run.seen.lock().unwrap().forgotten.contains(&1));
}

#[tokio::test]
async fn tokens_can_be_held_against_plain_decoding_as_they_come() {
    let requests = requests();
    let (expected, texts) = plain(&requests).await;
    let config = EngineConfig {
        verify_lossless: true,
        ..config(SpeculationMode::Tree, 16)
    };
    let run = run(config, Behaviour::Answers { right: 6 }, &requests, &texts).await;
    same(&run.answers, &expected, "checked");
    let tokens: usize = expected.iter().map(|answer| answer.tokens.len()).sum();
    assert_eq!(
        (run.stats.checked_tokens, run.stats.mismatched_tokens),
        (tokens as u64, 0)
    );
}

#[tokio::test]
async fn speculation_that_is_off_takes_no_draft() {
    let stand = start(CONFIG);
    let (draft, _) = Scripted::new(Behaviour::Answers { right: 10 }, Vec::new());
    let mut lease = stand.handle.set_drafter(Box::new(draft));
    tokio::time::timeout(Duration::from_secs(30), lease.lost())
        .await
        .expect("it is given back");
}

#[tokio::test]
async fn a_request_gets_the_way_it_asks_for_and_no_more_than_there_is_room_for() {
    let mut requests = [request(&FIBONACCI, 20), request(&FIBONACCI, 20)];
    let (expected, texts) = plain(&requests).await;
    let ask = |mode| SpeculationConfig { mode, budget: 64 };
    requests[0].speculation = Some(ask(SpeculationMode::Chain));
    requests[1].speculation = Some(ask(SpeculationMode::Off));
    let config = config(SpeculationMode::Tree, 3);
    let run = run(config, Behaviour::Answers { right: 10 }, &requests, &texts).await;
    same(&run.answers, &expected, "asked for");
    let rounds = |answer: &Answer| answer.end.clone().unwrap().1.speculation;
    let (chain, off) = (rounds(&run.answers[0]), rounds(&run.answers[1]));
    assert!(
        chain.rounds > 0 && chain.draft_tokens <= 3 * chain.rounds,
        "{chain:?}"
    );
    assert_eq!(off.rounds, 0);
}
