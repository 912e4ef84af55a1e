//! How an engine starts and ends: refused sizes, shutdown, and a device that breaks down.

#![allow(clippy::unwrap_used)]

mod common;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use common::gated::Gate;
use common::{
    CONFIG, FIBONACCI, FIBONACCI_ANSWER, collect, describe, load, off_runtime, request, start,
    within,
};
use engine::{ConfigError, Engine, EngineConfig, EngineHandle};
use generation::{GenerateError, ModelDescription};

const ONE_PLACE: EngineConfig = EngineConfig {
    max_sequences: 1,
    ..CONFIG
};

fn refusal(config: EngineConfig, description: impl Fn(&mut ModelDescription)) -> ConfigError {
    let model = load(CONFIG, &Arc::new(Gate::default()));
    let mut described = describe(&model, config);
    description(&mut described);
    let error = Engine::start(model, described, config, None).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let source = error.into_inner().unwrap();
    *source.downcast::<ConfigError>().unwrap()
}

#[test]
fn sizes_that_do_not_go_with_the_model_are_refused() {
    let zero = EngineConfig {
        queue_len: 0,
        ..CONFIG
    };
    let field = "queue_len";
    assert_eq!(refusal(zero, |_| {}), ConfigError::Zero { field });
    let many = EngineConfig {
        max_sequences: 5,
        ..CONFIG
    };
    let error = refusal(many, |_| {});
    assert_eq!(
        error.to_string(),
        "max_sequences is 5, the model was loaded with 4 sequences"
    );
    let long = EngineConfig {
        context_length: 1025,
        ..CONFIG
    };
    let error = refusal(long, |_| {});
    assert_eq!(
        error.to_string(),
        "a context of 1025 tokens takes 17 pages, the model was loaded with 16"
    );
    let error = refusal(CONFIG, |description| description.vocab_size = 9000);
    assert_eq!(
        error.to_string(),
        "the model is described with vocab_size 9000, expected 8192"
    );
}

#[tokio::test]
async fn shutdown_lets_requests_end_in_time() {
    let mut stand = start(ONE_PLACE);
    let running = stand.handle.generate(request(&FIBONACCI, 20)).unwrap();
    let queued = stand.handle.generate(request(&FIBONACCI, 10)).unwrap();
    stand.shutdown(Duration::MAX).await;
    assert_eq!(collect(running).await.ids(), FIBONACCI_ANSWER[..20]);
    assert_eq!(collect(queued).await.ids(), FIBONACCI_ANSWER[..10]);
    let refused = stand.handle.generate(request(&FIBONACCI, 1)).unwrap_err();
    assert_eq!(refused, GenerateError::ShuttingDown);
    assert!(!stand.handle.is_alive());
    within(stand.handle.closed()).await;
}

#[tokio::test]
async fn shutdown_ends_what_is_late() {
    let mut stand = start(ONE_PLACE);
    stand.gate.pass(2);
    let running = stand.handle.generate(request(&FIBONACCI, 100)).unwrap();
    let queued = stand.handle.generate(request(&FIBONACCI, 100)).unwrap();
    stand.until_at_gate(3).await;
    let engine = stand.engine.take().unwrap();
    let shutdown = off_runtime(move || engine.shutdown(Duration::ZERO));
    // It takes no more requests from here on, though a step is under way still.
    let refused = within(first_refusal(&stand.handle)).await;
    assert_eq!(refused, GenerateError::ShuttingDown);
    assert!(stand.handle.is_alive());
    stand.gate.open();
    within(shutdown).await;
    let running = collect(running).await;
    assert_eq!(running.ids(), FIBONACCI_ANSWER[..3]);
    assert_eq!(running.end.unwrap_err(), GenerateError::ShuttingDown);
    let queued = collect(queued).await;
    assert_eq!((queued.started, queued.tokens.len()), (None, 0));
    assert_eq!(queued.end.unwrap_err(), GenerateError::ShuttingDown);
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (0, 0));
}

/// Sends requests and drops their streams, until one is refused.
async fn first_refusal(handle: &EngineHandle) -> GenerateError {
    loop {
        match handle.generate(request(&FIBONACCI, 1)) {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => return error,
        }
    }
}

#[tokio::test]
async fn an_idle_engine_ends_when_it_is_dropped() {
    let mut stand = start(CONFIG);
    let handle = stand.handle.clone();
    let closed = tokio::spawn(async move { handle.closed().await });
    assert!(stand.handle.is_alive());
    let engine = stand.engine.take().unwrap();
    within(off_runtime(move || drop(engine))).await;
    within(closed).await.unwrap();
    assert!(!stand.handle.is_alive());
}

#[tokio::test]
async fn a_device_that_breaks_down_leaves_nobody_waiting() {
    let stand = start(ONE_PLACE);
    stand.gate.pass(1);
    let running = stand.handle.generate(request(&FIBONACCI, 100)).unwrap();
    let queued = stand.handle.generate(request(&FIBONACCI, 100)).unwrap();
    stand.until_at_gate(2).await;
    stand.gate.break_down();
    stand.gate.open();
    let stopped = GenerateError::Model("the engine stopped".to_owned());
    let running = collect(running).await;
    assert_eq!(running.ids(), FIBONACCI_ANSWER[..1]);
    assert_eq!(running.end.unwrap_err(), stopped);
    assert_eq!(collect(queued).await.end.unwrap_err(), stopped);
    within(stand.handle.closed()).await;
    assert!(!stand.handle.is_alive());
    let refused = stand.handle.generate(request(&FIBONACCI, 1)).unwrap_err();
    assert_eq!(refused, stopped);
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (0, 0));
}
