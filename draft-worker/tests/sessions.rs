//! A draft worker over real gRPC and real channels, with the demo models.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use draft_link::{Answer, Ask, LinkShape, Refusal, TargetEnd, link_spec};
use draft_worker::Config;
use gguf::GgufFile;
use models::DraftFile;
use tempfile::TempDir;
use tensor_channel::{Transport, available};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use worker_api::{DraftClient, OpenSession, SessionError};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/demo/");
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
const DEPTH: usize = 15;
const TOP_K: usize = 4;

struct Worker {
    client: DraftClient,
    shutdown: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
    _dir: TempDir,
}

impl Worker {
    async fn start(parallel: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().join("draft.sock").display());
        let config = Config {
            listen: listen.parse().unwrap(),
            threads: 1,
            parallel,
            ..Config::default()
        };
        let client = DraftClient::new(&config.listen).unwrap();
        let draft = DraftFile::open(format!("{DEMO}demo-draft.gguf")).unwrap();
        let target = GgufFile::open(format!("{DEMO}demo-target.gguf")).unwrap();
        let shutdown = CancellationToken::new();
        let role = draft_worker::run(config, draft, target, |_| {}, shutdown.clone());
        let running = tokio::spawn(role);
        let started = Instant::now();
        while client.describe().await.is_err() {
            assert!(started.elapsed() < PATIENCE && !running.is_finished());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Self {
            client,
            shutdown,
            running,
            _dir: dir,
        }
    }

    async fn attach(&self, transport: Transport) -> (OpenSession, Target) {
        let open = self.client.open(&[transport]).await.unwrap();
        let session = open.session().clone();
        assert_eq!(session.transport(), transport);
        let shape = LinkShape {
            feature_len: session.draft.capture_layers.len() * session.draft.hidden_size as usize,
            vocab_size: session.draft.vocab_size,
            depth: session.draft.block_size as usize - 1,
            max_top_k: session.draft.max_top_k as usize,
        };
        let attach = move || {
            let spec = link_spec(&shape);
            let ends = tensor_channel::attach(&session.channel, spec, PATIENCE, None).unwrap();
            TargetEnd::new(ends, shape).unwrap()
        };
        let end = tokio::task::spawn_blocking(attach).await.unwrap();
        let target = Target {
            end,
            feature_len: shape.feature_len,
        };
        (open, target)
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.unwrap().unwrap();
    }

    async fn until(&self, what: &str, holds: impl Fn(worker_api::DraftStats) -> bool) {
        let started = Instant::now();
        while !holds(self.client.stats().await.unwrap()) {
            assert!(started.elapsed() < PATIENCE, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

struct Target {
    end: TargetEnd,
    feature_len: usize,
}

impl Target {
    /// Features that depend on the sequence's seed and the position only.
    fn feed(&mut self, sequence: u64, seed: usize, positions: std::ops::Range<usize>) {
        let row = |position: usize| {
            let value = move |at: usize| ((seed * 31 + position * 7 + at * 13) % 97) as f32 / 97.0;
            (0..self.feature_len).map(value)
        };
        let values = positions.clone().flat_map(row);
        let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
        let row_bytes = self.feature_len * size_of::<f32>();
        let part =
            |rows: std::ops::Range<usize>| &bytes[rows.start * row_bytes..rows.end * row_bytes];
        let fed = self
            .end
            .feed(sequence, positions.start, positions.len(), part)
            .unwrap();
        assert_eq!(fed, positions.len());
    }

    fn ask(&mut self, sequence: u64, position: usize) {
        let ask = Ask {
            anchor: 5,
            position,
            depth: DEPTH,
            top_k: TOP_K,
        };
        assert!(self.end.ask(sequence, ask).unwrap());
    }

    fn answer(&mut self) -> Answer {
        self.end.receive(PATIENCE).unwrap().expect("an answer")
    }

    /// Feeds a context of 20 positions and asks.
    fn round(&mut self, sequence: u64, seed: usize) -> Answer {
        self.feed(sequence, seed, 0..20);
        self.ask(sequence, 20);
        self.answer()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proposals_are_the_same_over_every_transport_and_in_company() {
    let worker = Worker::start(4).await;
    let mut alone = Vec::new();
    for transport in available(None) {
        let (_open, mut target) = worker.attach(transport).await;
        let answers: Vec<_> = (0..3)
            .map(|seed| target.round(seed as u64, seed).proposal.unwrap())
            .collect();
        assert!(answers.iter().all(|proposal| proposal.depth() == DEPTH));
        assert_ne!(answers[0], answers[1]);
        alone.push(answers);
    }
    assert!(alone.iter().all(|answers| *answers == alone[0]));

    let (_open, mut target) = worker.attach(Transport::Tcp).await;
    for seed in 0..3 {
        // In another order of pieces, too.
        target.feed(seed as u64, seed, 0..7);
        target.feed(seed as u64, seed, 7..20);
    }
    (0..3).for_each(|sequence| target.ask(sequence, 20));
    for _ in 0..3 {
        let answer = target.answer();
        let expected = &alone[0][answer.sequence as usize];
        assert_eq!(answer.proposal.as_ref(), Ok(expected));
        assert!(answer.draft_time > Duration::ZERO);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_does_not_continue_the_context_is_refused_and_a_gap_begins_anew() {
    let worker = Worker::start(4).await;
    let (_open, mut target) = worker.attach(Transport::Tcp).await;
    target.ask(1, 20);
    assert_eq!(target.answer().proposal, Err(Refusal::Context));
    target.feed(1, 1, 0..10);
    target.ask(1, 20);
    assert_eq!(target.answer().proposal, Err(Refusal::Context));
    target.feed(1, 1, 15..20);
    target.ask(1, 20);
    let after_gap = target.answer().proposal.unwrap();
    target.feed(2, 1, 15..20);
    target.ask(2, 20);
    assert_eq!(target.answer().proposal.unwrap(), after_gap);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_not_used_for_longest_makes_room() {
    let worker = Worker::start(2).await;
    let (_open, mut target) = worker.attach(Transport::Tcp).await;
    let first = target.round(1, 1).proposal;
    target.round(2, 2).proposal.unwrap();
    target.ask(1, 20);
    assert_eq!(target.answer().proposal, first);
    target.round(3, 3).proposal.unwrap();
    target.ask(2, 20);
    assert_eq!(target.answer().proposal, Err(Refusal::Context));
    target.ask(1, 20);
    assert_eq!(target.answer().proposal, first);
    assert_eq!(worker.client.stats().await.unwrap().evicted_sequences, 1);
    assert!(target.end.forget(1).unwrap());
    target.round(4, 4).proposal.unwrap();
    assert_eq!(worker.client.stats().await.unwrap().evicted_sequences, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_either_side_and_frees_its_contexts() {
    let worker = Worker::start(4).await;
    let idle = |stats: worker_api::DraftStats| stats.sessions == 0 && stats.sequences == 0;
    for transport in available(None) {
        // The target goes.
        let (mut open, mut target) = worker.attach(transport).await;
        target.round(1, 1).proposal.unwrap();
        worker
            .until("a sequence", |stats| stats.sequences == 1)
            .await;
        drop(target);
        let ended = tokio::time::timeout(PATIENCE, open.ended()).await.unwrap();
        assert!(matches!(ended, SessionError::Gone(_)), "{ended}");
        worker.until("nothing is held", idle).await;

        // Who holds the session goes.
        let (open, mut target) = worker.attach(transport).await;
        target.round(1, 1).proposal.unwrap();
        drop(open);
        assert!(target.end.receive(PATIENCE).is_err());
        worker.until("nothing is held", idle).await;
    }

    // The worker goes.
    let (mut open, mut target) = worker.attach(Transport::Tcp).await;
    target.round(1, 1).proposal.unwrap();
    worker.stop().await;
    let ended = tokio::time::timeout(PATIENCE, open.ended()).await.unwrap();
    assert!(matches!(ended, SessionError::Gone(_)), "{ended}");
    assert!(target.end.receive(PATIENCE).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_without_a_target_or_a_way_to_it_end_by_themselves() {
    let worker = Worker::start(1).await;
    let mut open = worker.client.open(&[Transport::Tcp]).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, open.ended()).await.unwrap();
    assert!(matches!(ended, SessionError::Gone(_)), "{ended}");
    let refused = worker.client.open(&[Transport::HipIpc]).await.unwrap_err();
    assert!(matches!(refused, SessionError::Mismatch(_)), "{refused}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_draft_ends_its_sessions_and_says_the_same_when_it_is_back() {
    let worker = Worker::start(2).await;
    let (mut open, mut target) = worker.attach(Transport::Tcp).await;
    let before = target.round(1, 1).proposal.unwrap();
    worker.client.park().await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, open.ended()).await.unwrap();
    assert!(matches!(ended, SessionError::Gone(_)), "{ended}");
    let stats = worker.client.stats().await.unwrap();
    assert_eq!((stats.sessions, stats.sequences), (0, 0));
    let refused = worker.client.describe().await.unwrap_err().to_string();
    assert!(refused.contains("parked"), "{refused}");
    assert!(worker.client.open(&[Transport::Tcp]).await.is_err());
    worker.client.park().await.unwrap();
    worker.client.unpark().await.unwrap();
    worker.client.unpark().await.unwrap();
    let (_open, mut target) = worker.attach(Transport::Tcp).await;
    assert_eq!(target.round(1, 1).proposal.unwrap(), before);
    // The last wish counts, and nobody waits for what no longer comes.
    let (parked, unparked) = tokio::join!(worker.client.park(), worker.client.unpark());
    assert!(parked.is_ok() || unparked.is_ok());
    worker.client.park().await.unwrap();
    // A parked one stops like any other.
    worker.stop().await;
}

#[tokio::test]
async fn a_draft_of_another_target_is_refused_by_name() {
    let other = GgufFile::open(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/models/tests/data/qwen3-tiny-Q5_K_M.gguf"
    ));
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}", dir.path().join("draft.sock").display());
    let config = Config {
        listen: listen.parse().unwrap(),
        ..Config::default()
    };
    let draft = DraftFile::open(format!("{DEMO}demo-draft.gguf")).unwrap();
    let shutdown = CancellationToken::new();
    let ended = draft_worker::run(config, draft, other.unwrap(), |_| {}, shutdown).await;
    let words = format!("{:#}", ended.unwrap_err());
    assert!(words.contains("demo-draft.gguf"), "{words}");
    assert!(words.contains("512"), "{words}");
}
