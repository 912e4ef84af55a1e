//! Budgets for reasoning: the close is forced where they end, plainly and with drafts, and nowhere else.

#![allow(clippy::unwrap_used)]

mod common;

use common::scripted::{Behaviour, Scripted};
use common::{
    Answer, CONFIG, FIBONACCI, FIBONACCI_ANSWER, IM_END, Stand, collect, prompt, request, start,
};
use engine::{EngineConfig, PrefixCacheConfig};
use generation::{
    FinishReason, GenerateRequest, SpeculationConfig, SpeculationMode, ThinkingLimit,
};
use sampling::SamplingParams;

const WAYS: [(SpeculationMode, usize); 5] = [
    (SpeculationMode::Chain, 22),
    (SpeculationMode::Tree, 4),
    (SpeculationMode::Tree, 22),
    (SpeculationMode::Tree, 64),
    (SpeculationMode::Auto, 64),
];

/// Stands for `</think>`: the demo says it after `FIBONACCI` by itself, as the 27th token.
const CLOSE: u32 = 365;
const NATURAL_AT: usize = 26;
const TERMINATOR: [u32; 4] = [1000, 1001, CLOSE, 198];

fn thinking(budget: u32) -> ThinkingLimit {
    ThinkingLimit {
        budget: Some(budget),
        starts_inside: true,
        open_id: None,
        close_id: CLOSE,
        terminator: TERMINATOR.to_vec(),
        blank_ids: Vec::new(),
    }
}

fn bounded(request: GenerateRequest, thinking: ThinkingLimit) -> GenerateRequest {
    GenerateRequest {
        thinking: Some(thinking),
        ..request
    }
}

fn sampled(request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        sampling: SamplingParams {
            temperature: 0.9,
            top_p: 0.95,
            repetition_penalty: 1.1,
            repetition_window: 16,
            seed: 11,
            ..SamplingParams::default()
        },
        logprobs: true,
        top_logprobs: 2,
        ..request
    }
}

/// The budget ends early, at once, late and not at all; the answer opens its reasoning; drafts meet all of it.
fn requests() -> Vec<GenerateRequest> {
    let opened = ThinkingLimit {
        starts_inside: false,
        open_id: Some(FIBONACCI_ANSWER[1]),
        blank_ids: vec![FIBONACCI_ANSWER[0]],
        ..thinking(6)
    };
    let early_end = GenerateRequest {
        stop_ids: vec![IM_END],
        min_tokens: 3,
        ..request(&FIBONACCI, 60)
    };
    vec![
        bounded(request(&FIBONACCI, 36), thinking(7)),
        bounded(sampled(request(&prompt(30, 1), 24)), thinking(5)),
        bounded(sampled(request(&prompt(50, 2), 24)), thinking(0)),
        bounded(early_end, thinking(40)),
        bounded(request(&FIBONACCI, 30), opened),
    ]
}

async fn all(stand: &Stand, requests: &[GenerateRequest]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for pair in requests.chunks(2) {
        let streams: Vec<_> = pair
            .iter()
            .map(|request| stand.handle.generate(request.clone()).unwrap())
            .collect();
        for stream in streams {
            answers.push(collect(stream).await);
        }
    }
    answers
}

#[tokio::test]
async fn the_close_is_forced_where_the_budget_ends() {
    let stand = start(CONFIG);
    let answer = stand
        .answer(&bounded(request(&FIBONACCI, 36), thinking(7)))
        .await;
    let ids = answer.ids();
    assert_eq!(ids[..7], FIBONACCI_ANSWER[..7]);
    assert_eq!(ids[7..11], TERMINATOR);
    assert_eq!(ids.len(), 36 + 4, "what is forced costs the answer nothing");
    assert_eq!(answer.reason(), FinishReason::Length);
    // The budget counts tokens of the answer, wherever the prompt ends.
    let answer = stand
        .answer(&bounded(request(&prompt(200, 3), 12), thinking(7)))
        .await;
    assert_eq!(answer.ids()[7..11], TERMINATOR);
}

#[tokio::test]
async fn reasoning_that_ends_by_itself_is_left_alone() {
    let stand = start(CONFIG);
    let free = stand.answer(&request(&FIBONACCI, 36)).await;
    assert_eq!(free.ids()[NATURAL_AT], CLOSE);
    for budget in [NATURAL_AT as u32 + 1, 30, 1000] {
        let asked = bounded(request(&FIBONACCI, 36), thinking(budget));
        let answer = stand.answer(&asked).await;
        assert_eq!(answer.tokens, free.tokens, "{budget}");
    }
    // Without a budget nothing is forced.
    let none = ThinkingLimit {
        budget: None,
        ..thinking(0)
    };
    let answer = stand.answer(&bounded(request(&FIBONACCI, 36), none)).await;
    assert_eq!(answer.tokens, free.tokens);
}

#[tokio::test]
async fn the_context_bounds_what_is_forced() {
    let stand = start(CONFIG);
    for room in [1, 3, 6] {
        let long = prompt(CONFIG.context_length - room, 4);
        let answer = stand
            .answer(&bounded(request(&long, 100), thinking(1)))
            .await;
        let ids = answer.ids();
        assert_eq!(ids.len(), room);
        let forced = TERMINATOR.len().min(room - 1);
        assert_eq!(ids[1..1 + forced], TERMINATOR[..forced]);
        assert_eq!(answer.reason(), FinishReason::Length);
    }
    let nothing = stand
        .answer(&bounded(request(&FIBONACCI, 0), thinking(0)))
        .await;
    assert_eq!(nothing.tokens.len(), 0);
}

#[tokio::test]
async fn a_loop_behind_a_forced_close_ends_the_answer() {
    let stand = start(CONFIG);
    let mut looping = request(&FIBONACCI, 150);
    looping.sampling.logit_bias = vec![(333, 100.0)];
    // Thinking may go round in circles until its budget ends.
    let answer = stand.answer(&bounded(looping.clone(), thinking(60))).await;
    let ids = answer.ids();
    assert_eq!(ids[60..64], TERMINATOR);
    assert_eq!(ids.len(), 60 + 4 + 48);
    assert_eq!(answer.reason(), FinishReason::Length);
    let free = stand.answer(&looping).await;
    assert_eq!(free.tokens.len(), 150, "no budget, no end");
}

#[tokio::test]
async fn budgets_hold_behind_a_kept_prefix() {
    let kept = EngineConfig {
        context_length: 1024,
        prefill_chunk_tokens: 128,
        prefix_cache: PrefixCacheConfig {
            slots: 8,
            max_bytes: usize::MAX,
        },
        ..CONFIG
    };
    let stand = start(kept);
    let asked = bounded(request(&prompt(900, 5), 20), thinking(9));
    let cold = stand.answer(&asked).await;
    let warm = stand.answer(&asked).await;
    assert_eq!(cold.started.unwrap().1, 0);
    assert!(warm.started.unwrap().1 >= 832, "{:?}", warm.started);
    assert_eq!(warm.tokens, cold.tokens);
    assert_eq!(warm.ids()[9..13], TERMINATOR);
    assert_eq!(warm.tokens.len(), 24);
}

#[tokio::test]
async fn drafts_change_nothing_of_it() {
    let requests = requests();
    let plain = all(&start(CONFIG), &requests).await;
    let whole = |(request, answer): (&GenerateRequest, &Answer)| {
        [request.prompt.clone(), answer.ids()].concat()
    };
    let texts: Vec<Vec<u32>> = requests.iter().zip(&plain).map(whole).collect();
    let opened = plain[4].ids();
    assert_eq!(opened[..8], FIBONACCI_ANSWER[..8]);
    assert_eq!(opened[8..12], TERMINATOR);
    for (mode, budget) in WAYS {
        for right in [6, 10] {
            let is_held_against = (budget, right) == (22, 6);
            let speculation = SpeculationConfig { mode, budget };
            let stand = start(EngineConfig {
                speculation,
                verify_lossless: is_held_against,
                ..CONFIG
            });
            // Where everything is right, drafts run over the place where the close is forced, and are right there as well.
            let (draft, _) = Scripted::new(Behaviour::Answers { right }, texts.clone());
            let _lease = stand.handle.set_drafter(Box::new(draft));
            let answers = all(&stand, &requests).await;
            for (answer, expected) in answers.iter().zip(&plain) {
                let what = format!("{mode:?} {budget}, {right} of 10 right");
                assert_eq!(answer.tokens, expected.tokens, "{what}");
                assert_eq!(answer.reason(), expected.reason(), "{what}");
            }
            let stats = stand.handle.stats().speculation;
            assert!(stats.rounds > 0);
            assert_eq!(stats.mismatched_tokens, 0);
            assert_eq!(stats.checked_tokens > 0, is_held_against);
        }
    }
}
