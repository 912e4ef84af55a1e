//! Weights leave the device in the middle of answers and come back: the answers are the same, and nobody waits for ever.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::conversations::{ROOMY, TREE};
use common::gated::Gate;
use common::in_process::{InProcess, demo};
use common::{
    Answer, CONFIG, FIBONACCI, FIBONACCI_ANSWER, Stand, collect, expect_start, load_with,
    next_token, prompt, request, start, start_with, within,
};
use engine::{EngineConfig, ParkingLease};
use generation::{GenerateError, GenerateRequest, ParkError, SpeculationConfig};
use models::load_path;

const LONG: Duration = Duration::from_secs(3600);

async fn park(stand: &Stand) -> ParkingLease {
    within(stand.handle.park(LONG)).await.unwrap()
}

/// The same, where a step stands at the gate: it is done first. The gate is open then.
async fn park_behind_step(stand: &Stand) -> ParkingLease {
    let leaving = stand.handle.park(LONG);
    tokio::pin!(leaving);
    assert!(is_pending(&mut leaving).await);
    stand.gate.open();
    within(leaving).await.unwrap()
}

/// One that goes on from a prefix, one whose prompt takes several steps, one without drafts that draws.
fn requests() -> [GenerateRequest; 3] {
    let mut drawn = request(&prompt(5, 3), 30);
    drawn.speculation = Some(SpeculationConfig::OFF);
    drawn.sampling.temperature = 0.9;
    drawn.sampling.seed = 5;
    let next_turn = [&FIBONACCI[..], &FIBONACCI_ANSWER[..9], &[331, 258]].concat();
    let requests = [request(&next_turn, 40), request(&prompt(60, 1), 30), drawn];
    requests.map(|request| GenerateRequest {
        logprobs: true,
        ..request
    })
}

/// The answers to them by the demo pair, after an answer that becomes a prefix. The weights leave again and again, each of `pauses`
/// steps after they came back.
async fn answers(verify_lossless: bool, pauses: &[usize]) -> Vec<Answer> {
    let config = EngineConfig {
        prefix_cache: ROOMY,
        speculation: TREE,
        verify_lossless,
        ..CONFIG
    };
    let gate = Arc::new(Gate::default());
    let model = load_with(config.load_options(None), &gate);
    let stand = start_with(model, config, gate);
    let [target, draft] = ["demo-target.gguf", "demo-draft.gguf"].map(demo);
    let draft = InProcess::open(&draft, &target, 8);
    let _lease = stand.handle.set_drafter(Box::new(draft));
    stand.answer(&request(&FIBONACCI, 10)).await;

    let mut steps = stand.gate.rows().len();
    stand.gate.pass(steps);
    let streams = requests().map(|request| stand.handle.generate(request).unwrap());
    // Loading rehearses first, and coming back does not.
    let loads = stand.gate.loads();
    let expected = |times: usize| loads + times * loads / 2;
    for (times, pause) in pauses.iter().enumerate() {
        stand.gate.pass(steps + pause - 1);
        stand.until_at_gate(steps + pause).await;
        let lease = park_behind_step(&stand).await;
        steps = stand.gate.rows().len();
        let late = stand.handle.generate(request(&FIBONACCI, 1)).unwrap();
        let stats = stand.handle.stats();
        assert_eq!((stats.running_sequences, stats.queued_requests), (3, 1));
        drop(late);
        let forgotten = stand.until("a request without a place that nobody waits for", |s| {
            s.queued_requests == 0
        });
        let cancelled = forgotten.await.cancelled_requests;
        assert_eq!(cancelled as usize, times + 1);
        // Steps were called for all the while.
        assert_eq!(stand.gate.rows().len(), steps);
        assert_eq!(stand.gate.loads(), expected(times));
        stand.gate.pass(steps);
        drop(lease);
    }
    stand.gate.open();
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await);
    }
    assert_eq!(stand.gate.loads(), expected(pauses.len()));
    let stats = stand.handle.stats();
    assert_eq!(stats.prefix_cache.hits as usize, 1);
    assert!(stats.speculation.rounds > 0 && stats.speculation.accepted_tokens > 0);
    assert_eq!(stats.speculation.mismatched_tokens, 0);
    assert_eq!(stats.speculation.checked_tokens > 0, verify_lossless);
    answers
}

/// Whether a future has nothing to say yet.
async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending())
    })
    .await
}

#[tokio::test]
async fn answers_are_to_the_bit_what_they_are_without_a_pause() {
    let want = answers(false, &[]).await;
    assert!(want[0].started.unwrap().1 > 0);
    assert!(want.iter().all(|answer| answer.ids().len() >= 20));
    // All have their places by the second step.
    for (verify_lossless, pauses) in [(false, &[2, 1, 1, 2, 1, 3][..]), (true, &[4, 20])] {
        let got = answers(verify_lossless, pauses).await;
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.tokens, want.tokens);
            assert_eq!(got.reason(), want.reason());
        }
    }
}

#[tokio::test]
async fn who_leaves_while_the_weights_are_away_gives_all_back() {
    let stand = start(CONFIG);
    stand.gate.pass(1);
    let mut stream = stand.handle.generate(request(&FIBONACCI, 40)).unwrap();
    expect_start(&mut stream).await;
    stand.until_at_gate(2).await;
    let lease = park_behind_step(&stand).await;
    // Another one that wants it holds them away too.
    let other = park(&stand).await;
    drop(stream);
    let is_gone = |s: &generation::WorkerStats| s.running_sequences == 0;
    stand
        .until("a running request that nobody waits for", is_gone)
        .await;
    assert_eq!(stand.handle.stats().cancelled_requests, 1);
    let waiting = stand.handle.generate(request(&FIBONACCI, 5)).unwrap();
    drop(lease);
    let steps = stand.gate.rows().len();
    let third = park(&stand).await;
    drop(third);
    assert_eq!(stand.gate.rows().len(), steps);
    drop(other);
    assert_eq!(collect(waiting).await.ids(), FIBONACCI_ANSWER[..5]);
}

#[tokio::test]
async fn weights_come_back_though_nobody_calls_them() {
    let stand = start(CONFIG);
    let five = request(&FIBONACCI, 5);
    let answer = || stand.answer(&five);
    // The time is over.
    let mut at_most = Duration::from_millis(30);
    let mut lease = loop {
        match within(stand.handle.park(at_most)).await {
            Ok(lease) => break lease,
            // It was over before they had left.
            Err(error) => assert!(matches!(error, ParkError::CalledBack), "{error}"),
        }
        at_most *= 2;
    };
    within(lease.ended()).await;
    assert_eq!(answer().await.ids(), FIBONACCI_ANSWER[..5]);
    // Who wants them away leaves before they are.
    let steps = stand.gate.rows().len();
    stand.gate.pass(steps);
    let stream = stand.handle.generate(request(&FIBONACCI, 5)).unwrap();
    stand.until_at_gate(steps + 1).await;
    let mut leaving = Box::pin(stand.handle.park(LONG));
    assert!(is_pending(&mut leaving).await);
    drop(leaving);
    stand.gate.open();
    assert_eq!(collect(stream).await.ids(), FIBONACCI_ANSWER[..5]);
    // Somebody else calls them.
    let mut lease = park(&stand).await;
    within(stand.handle.unpark()).await.unwrap();
    within(lease.ended()).await;
    assert_eq!(answer().await.ids(), FIBONACCI_ANSWER[..5]);
    within(stand.handle.unpark()).await.unwrap();
}

#[tokio::test]
async fn without_room_the_weights_are_tried_again_until_there_is_some() {
    let stand = start(CONFIG);
    let steps = stand.gate.rows().len();
    stand.gate.pass(steps + 6);
    let stream = stand.handle.generate(request(&FIBONACCI, 50)).unwrap();
    stand.until_at_gate(steps + 7).await;
    let lease = park_behind_step(&stand).await;
    stand.gate.fill(true);
    let waiting = stand.handle.generate(request(&FIBONACCI, 5)).unwrap();
    drop(lease);
    let is_away = |_: &generation::WorkerStats| stand.handle.away().is_some();
    stand.until("a try without room", is_away).await;
    let why = stand.handle.away().unwrap();
    assert!(why.contains("77 bytes"), "{why}");
    within(stand.handle.until_away(true)).await;
    let refused = stand.handle.generate(request(&FIBONACCI, 5)).unwrap_err();
    assert_eq!(refused, GenerateError::Away(why));
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (1, 1));
    // Others may still want them away, and nobody is refused for that.
    let lease = park(&stand).await;
    assert_eq!(stand.handle.away(), None);
    let later = stand.handle.generate(request(&FIBONACCI, 3)).unwrap();
    drop(lease);
    stand.until("another try without room", is_away).await;
    stand.gate.fill(false);
    for (stream, tokens) in [(stream, 50), (waiting, 5), (later, 3)] {
        assert_eq!(collect(stream).await.ids(), FIBONACCI_ANSWER[..tokens]);
    }
    within(stand.handle.until_away(false)).await;
    assert_eq!(stand.handle.away(), None);
}

#[tokio::test]
async fn an_engine_whose_weights_are_away_ends_like_any_other() {
    // Requests that are there get their answers within the grace.
    let mut stand = start(CONFIG);
    let mut lease = park(&stand).await;
    let stream = stand.handle.generate(request(&FIBONACCI, 5)).unwrap();
    stand.shutdown(LONG).await;
    assert_eq!(collect(stream).await.ids(), FIBONACCI_ANSWER[..5]);
    within(lease.ended()).await;
    let refused = within(stand.handle.park(LONG)).await.unwrap_err();
    assert_eq!(refused, ParkError::ShuttingDown);
    assert!(within(stand.handle.unpark()).await.is_err());
    // Without any the weights stay away.
    let mut stand = start(CONFIG);
    let loads = stand.gate.loads();
    let _lease = park(&stand).await;
    stand.shutdown(LONG).await;
    assert_eq!(stand.gate.loads(), loads);
    // Nor is more waited for than the grace.
    let mut stand = start(CONFIG);
    let _lease = park(&stand).await;
    let mut stream = stand.handle.generate(request(&FIBONACCI, 5)).unwrap();
    stand.gate.fill(true);
    stand.shutdown(Duration::from_millis(50)).await;
    let end = within(stream.recv()).await.unwrap();
    assert_eq!(end, Err(GenerateError::ShuttingDown));
}

#[tokio::test]
async fn weights_that_could_not_come_back_do_not_leave() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo/demo-target.gguf");
    let options = CONFIG.load_options(None);
    let model = load_path(path, common::device(), options, &mut |_| {}).unwrap();
    let stand = start_with(model, CONFIG, Arc::new(Gate::default()));
    let refused = within(stand.handle.park(LONG)).await.unwrap_err();
    assert_eq!(refused, ParkError::Unsupported);
    let mut stream = stand.handle.generate(request(&FIBONACCI, 2)).unwrap();
    expect_start(&mut stream).await;
    assert_eq!(next_token(&mut stream).await.id, FIBONACCI_ANSWER[0]);
}
