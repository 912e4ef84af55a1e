//! What a sequence generates does not depend on what runs beside it, nor on how its prompt is cut.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, CONFIG, FIBONACCI, FIBONACCI_ANSWER, Stand, prompt, request, start, within};
use engine::EngineConfig;
use generation::GenerateRequest;
use sampling::SamplingParams;

/// Six requests: shorter and longer than a piece of prompt and than a page, short and long answers.
fn requests() -> Vec<GenerateRequest> {
    [(1, 24), (5, 9), (16, 30), (45, 3), (70, 20), (100, 12)]
        .iter()
        .zip(0..)
        .map(|(&(len, max_tokens), seed)| request(&prompt(len, seed), max_tokens))
        .collect()
}

/// Answers of requests that are sent at once.
async fn together(stand: &Stand, requests: &[GenerateRequest]) -> Vec<Answer> {
    // The first step waits until all are there, so that every later one holds as many as there are places.
    stand.gate.pass(0);
    let streams: Vec<_> = requests
        .iter()
        .map(|request| stand.handle.generate(request.clone()).unwrap())
        .collect();
    stand.gate.open();
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(common::collect(stream).await);
    }
    answers
}

async fn company_changes_nothing(requests: &[GenerateRequest]) {
    let stand = start(CONFIG);
    let mut solo = Vec::new();
    for request in requests {
        solo.push(stand.answer(request).await);
    }
    let solo_steps = stand.handle.stats().steps;
    let company = together(&stand, requests).await;
    let steps = stand.handle.stats().steps;
    assert!(steps < 2 * solo_steps, "nothing ran together");
    for ((request, solo), company) in requests.iter().zip(&solo).zip(&company) {
        assert_eq!(company.tokens, solo.tokens, "{}", request.request_id);
        assert_eq!(company.tokens.len() as u32, request.max_tokens);
        assert_eq!(company.reason(), solo.reason());
    }
    // Everything has been counted by the time it is seen.
    let stats = stand.handle.stats();
    let prompts: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let generated: u32 = requests.iter().map(|request| request.max_tokens).sum();
    assert_eq!(stats.prompt_tokens, 2 * prompts as u64);
    assert_eq!(stats.generated_tokens, 2 * u64::from(generated));
    assert_eq!(stats.finished_requests, 2 * requests.len() as u64);
    assert_eq!((stats.running_sequences, stats.queued_requests), (0, 0));
    assert_eq!(stats.steps, stand.gate.rows().len() as u64);
}

#[tokio::test]
async fn greedy_answers_in_company_equal_solo_answers() {
    company_changes_nothing(&requests()).await;
}

#[tokio::test]
async fn seeded_answers_in_company_equal_solo_answers() {
    let mut requests = requests();
    for (request, seed) in requests.iter_mut().zip(7..) {
        request.logprobs = true;
        request.sampling = SamplingParams {
            temperature: 0.9,
            top_p: 0.95,
            repetition_penalty: 1.1,
            seed,
            ..SamplingParams::default()
        };
    }
    company_changes_nothing(&requests).await;
}

#[tokio::test]
async fn the_seed_decides_the_answer() {
    let stand = start(CONFIG);
    let mut request = request(&FIBONACCI, 24);
    request.sampling.temperature = 1.5;
    let first = stand.answer(&request).await;
    assert_eq!(stand.answer(&request).await.ids(), first.ids());
    request.sampling.seed = 1;
    assert_ne!(stand.answer(&request).await.ids(), first.ids());
}

#[tokio::test]
async fn pieces_of_prompt_do_not_show_in_the_answer() {
    let request = request(&prompt(70, 3), 8);
    let mut answers = Vec::new();
    for prefill_chunk_tokens in [1, 23, 200] {
        let config = EngineConfig {
            prefill_chunk_tokens,
            ..CONFIG
        };
        let stand = start(config);
        answers.push(stand.answer(&request).await.ids());
        let prefills = 70_usize.div_ceil(prefill_chunk_tokens);
        assert_eq!(stand.gate.rows().len(), prefills + 7);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[tokio::test]
async fn a_long_prompt_does_not_hold_up_a_stream() {
    let stand = start(CONFIG);
    stand.gate.pass(1);
    let mut stream = stand.handle.generate(request(&FIBONACCI, 10)).unwrap();
    common::expect_start(&mut stream).await;
    common::next_token(&mut stream).await;
    // The second step stands at the gate; the long prompt joins the third.
    stand.until_at_gate(2).await;
    let long = stand.handle.generate(request(&prompt(100, 9), 1)).unwrap();
    stand.gate.open();
    let answer = within(common::collect(long)).await;
    assert_eq!(answer.tokens.len(), 1);
    for expected in &FIBONACCI_ANSWER[1..10] {
        assert_eq!(common::next_token(&mut stream).await.id, *expected);
    }
    // The stream's own prompt, its row alone, its row beside each piece of the long prompt, its row alone again.
    let rows = stand.gate.rows();
    assert_eq!(rows, [8, 1, 17, 17, 17, 17, 17, 17, 5, 1]);
}
