//! Places and the queue: who waits, who is refused, and what a caller that leaves gives back.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::gated::Gate;
use common::{
    CONFIG, FIBONACCI, FIBONACCI_ANSWER, collect, expect_start, load_with, next_token, prompt,
    request, start, start_with,
};
use engine::EngineConfig;
use generation::GenerateError;
use models::LoadOptions;

const ONE_PLACE: EngineConfig = EngineConfig {
    max_sequences: 1,
    queue_len: 1,
    ..CONFIG
};

#[tokio::test]
async fn a_full_queue_refuses_and_takes_again() {
    let stand = start(ONE_PLACE);
    stand.gate.pass(0);
    let first = stand.handle.generate(request(&FIBONACCI, 4)).unwrap();
    let second = stand.handle.generate(request(&FIBONACCI, 5)).unwrap();
    let full = GenerateError::QueueFull { limit: 1 };
    let refused = stand.handle.generate(request(&FIBONACCI, 6)).unwrap_err();
    assert_eq!(refused, full);
    stand.until_at_gate(1).await;
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (1, 1));
    stand.gate.open();
    assert_eq!(collect(first).await.ids(), FIBONACCI_ANSWER[..4]);
    // The first has told its end, so its place is free and the queue takes one more.
    let third = stand.handle.generate(request(&FIBONACCI, 6)).unwrap();
    assert_eq!(collect(second).await.ids(), FIBONACCI_ANSWER[..5]);
    assert_eq!(collect(third).await.ids(), FIBONACCI_ANSWER[..6]);
    let stats = stand.handle.stats();
    assert_eq!((stats.finished_requests, stats.cancelled_requests), (3, 0));
}

#[tokio::test]
async fn a_dropped_stream_frees_its_place_within_a_step() {
    let stand = start(ONE_PLACE);
    stand.gate.pass(3);
    let mut first = stand.handle.generate(request(&FIBONACCI, 200)).unwrap();
    let second = stand.handle.generate(request(&FIBONACCI, 2)).unwrap();
    expect_start(&mut first).await;
    for expected in &FIBONACCI_ANSWER[..3] {
        assert_eq!(next_token(&mut first).await.id, *expected);
    }
    // The fourth step is under way when the caller leaves; the fifth belongs to the next request.
    stand.until_at_gate(4).await;
    drop(first);
    stand.gate.pass(4);
    stand.until_at_gate(5).await;
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (1, 0));
    assert_eq!((stats.cancelled_requests, stats.finished_requests), (1, 0));
    stand.gate.open();
    assert_eq!(collect(second).await.ids(), FIBONACCI_ANSWER[..2]);
    assert_eq!(stand.gate.rows(), [8, 1, 1, 1, 8, 1]);
}

#[tokio::test]
async fn an_engine_whose_callers_left_rests() {
    let stand = start(CONFIG);
    stand.gate.pass(0);
    let streams: Vec<_> = (0..4)
        .map(|_| stand.handle.generate(request(&FIBONACCI, 200)).unwrap())
        .collect();
    // All are there before the second step, so by the third all have a place.
    stand.gate.pass(2);
    stand.until_at_gate(3).await;
    assert_eq!(stand.handle.stats().running_sequences, 4);
    drop(streams);
    stand.gate.open();
    let stats = stand
        .until("all cancelled", |stats| stats.cancelled_requests == 4)
        .await;
    assert_eq!((stats.running_sequences, stats.queued_requests), (0, 0));
    assert_eq!(stats.steps, 3);
    let answer = stand.answer(&request(&FIBONACCI, 1)).await;
    assert_eq!(answer.ids(), FIBONACCI_ANSWER[..1]);
    assert_eq!(stand.handle.stats().steps, 4);
}

#[tokio::test]
async fn a_request_cancelled_in_the_queue_never_runs() {
    let stand = start(ONE_PLACE);
    stand.gate.pass(0);
    let first = stand.handle.generate(request(&FIBONACCI, 3)).unwrap();
    stand.until_at_gate(1).await;
    let second = stand.handle.generate(request(&prompt(50, 1), 3)).unwrap();
    drop(second);
    // Its place in the queue is free at once.
    let third = stand.handle.generate(request(&FIBONACCI, 2)).unwrap();
    assert_eq!(stand.handle.stats().cancelled_requests, 1);
    stand.gate.open();
    assert_eq!(collect(first).await.ids(), FIBONACCI_ANSWER[..3]);
    assert_eq!(collect(third).await.ids(), FIBONACCI_ANSWER[..2]);
    let stats = stand.handle.stats();
    assert_eq!((stats.finished_requests, stats.cancelled_requests), (2, 1));
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (16, 5));
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_up_nobody() {
    let stand = start(CONFIG);
    let stuck = stand.handle.generate(request(&FIBONACCI, 20)).unwrap();
    let answer = stand.answer(&request(&FIBONACCI, 40)).await;
    assert_eq!(answer.ids(), FIBONACCI_ANSWER[..40]);
    // The stuck reader's answer was complete long before.
    assert_eq!(stand.handle.stats().finished_requests, 2);
    assert_eq!(collect(stuck).await.ids(), FIBONACCI_ANSWER[..20]);
}

#[tokio::test]
async fn a_request_waits_for_pages_rather_than_failing_on_its_way() {
    let gate = Arc::new(Gate::default());
    let options = LoadOptions {
        max_tokens: CONFIG.context_length,
        max_sequences: CONFIG.max_sequences,
        max_batch_rows: 32,
        kv_type: None,
    };
    let stand = start_with(load_with(options, &gate), CONFIG, gate);
    stand.gate.pass(0);
    // Three of four pages, two pages, one page.
    let large = stand.handle.generate(request(&prompt(100, 1), 40)).unwrap();
    let middle = stand.handle.generate(request(&FIBONACCI, 80)).unwrap();
    let small = stand.handle.generate(request(&FIBONACCI, 10)).unwrap();
    // All are there before the second step.
    stand.gate.pass(1);
    stand.until_at_gate(2).await;
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (1, 2));
    stand.gate.open();
    assert_eq!(collect(large).await.tokens.len(), 40);
    assert_eq!(collect(middle).await.tokens.len(), 80);
    assert_eq!(collect(small).await.ids(), FIBONACCI_ANSWER[..10]);
}
