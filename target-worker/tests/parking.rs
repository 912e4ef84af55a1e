//! A target worker over real gRPC whose weights leave their device and come back, with the demo model.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use generation::{GenerateEvent, GenerateRequest};
use gguf::GgufFile;
use sampling::SamplingParams;
use target_worker::Config;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use worker_api::{GenerateStream, TargetClient, WorkerError, check_health};

const DEMO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/demo/demo-target.gguf"
);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3600);

struct Worker {
    config: Config,
    client: TargetClient,
    shutdown: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
    _dir: TempDir,
}

impl Worker {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().join("target.sock").display());
        let config = Config {
            listen: listen.parse().unwrap(),
            threads: 1,
            ctx_size: 256,
            ..Config::default()
        };
        let client = TargetClient::new(&config.listen).unwrap();
        let shutdown = CancellationToken::new();
        let file = GgufFile::open(DEMO).unwrap();
        let role = target_worker::run(config.clone(), file, |_| {}, shutdown.clone());
        let running = tokio::spawn(role);
        let started = Instant::now();
        while client.describe().await.is_err() {
            assert!(started.elapsed() < PATIENCE && !running.is_finished());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Self {
            config,
            client,
            shutdown,
            running,
            _dir: dir,
        }
    }

    async fn generate(&self, max_tokens: u32) -> GenerateStream {
        let request = GenerateRequest {
            request_id: "parked".to_owned(),
            prompt: (300..320).collect(),
            history_tokens: 0,
            max_tokens,
            min_tokens: max_tokens,
            stop_ids: Vec::new(),
            sampling: SamplingParams::default(),
            logprobs: false,
            top_logprobs: 0,
            speculation: None,
            thinking: None,
            grammar: None,
        };
        self.client.generate(request).await.unwrap()
    }

    async fn until_queued(&self, requests: u32) {
        let started = Instant::now();
        while self.client.stats().await.unwrap().queued_requests != requests {
            assert!(started.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        within(self.running).await.unwrap().unwrap();
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it ends")
}

/// The tokens that are left of an answer.
async fn tokens(stream: &mut GenerateStream) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(event) = within(stream.next()).await {
        if let GenerateEvent::Token(token) = event.unwrap() {
            tokens.push(token.id);
        }
    }
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_target_answers_what_is_asked_of_it_and_requests_wait() {
    let worker = Worker::start().await;
    let want = tokens(&mut worker.generate(12).await).await;
    assert_eq!(want.len(), 12);
    let parking = within(worker.client.park(LONG)).await.unwrap();
    let mut waiting = worker.generate(12).await;
    worker.until_queued(1).await;
    worker.client.describe().await.unwrap();
    assert!(check_health(&worker.config.listen).await.is_ok());
    drop(parking);
    assert_eq!(tokens(&mut waiting).await, want);
    // Not only who parked it calls it back.
    let parking = within(worker.client.park(LONG)).await.unwrap();
    within(worker.client.unpark()).await.unwrap();
    assert_eq!(tokens(&mut worker.generate(12).await).await, want);
    drop(parking);
    // A call that is given up parks nothing, or no longer than it lives.
    for _ in 0..10 {
        let leaving = worker.client.park(LONG);
        let _ = tokio::time::timeout(Duration::from_micros(300), leaving).await;
    }
    assert_eq!(tokens(&mut worker.generate(12).await).await, want);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_comes_back_when_whoever_parked_it_dies_or_forgets_it() {
    let worker = Worker::start().await;
    // A client in a runtime of its own, which ends with all its connections, as a process does.
    let listen = worker.config.listen.clone();
    let dying = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let parking = runtime.block_on(async {
            let client = TargetClient::new(&listen).unwrap();
            client.park(LONG).await.unwrap()
        });
        drop(runtime);
        parking
    });
    let parking = dying.join().unwrap();
    assert_eq!(tokens(&mut worker.generate(3).await).await.len(), 3);
    drop(parking);
    let parking = within(worker.client.park(Duration::from_millis(20))).await;
    assert_eq!(tokens(&mut worker.generate(3).await).await.len(), 3);
    drop(parking);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_target_stops_like_any_other() {
    let worker = Worker::start().await;
    let _parking = within(worker.client.park(LONG)).await.unwrap();
    let mut waiting = worker.generate(3).await;
    worker.until_queued(1).await;
    let client = worker.client.clone();
    let (stopped, answer) = tokio::join!(worker.stop(), tokens(&mut waiting));
    let () = stopped;
    assert_eq!(answer.len(), 3);
    let refused = client.park(LONG).await.unwrap_err();
    assert!(matches!(refused, WorkerError::Unavailable(_)), "{refused}");
}
