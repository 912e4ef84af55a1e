//! A prefill worker over real gRPC, with the demo drafter.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gguf::GgufFile;
use prefill_worker::Config;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use worker_api::{
    CompressEvent, CompressPhase, CompressProgress, CompressRequest, CompressStream, Compression,
    PrefillClient, PrefillStats, WorkerError,
};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const CONTEXT: usize = 262_144;
/// Long enough to be under way when something happens to it.
const LONG: usize = 8000;

fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/demo")
        .join(name)
}

fn demo_file(name: &str) -> GgufFile {
    GgufFile::open(demo(name)).unwrap()
}

/// A prompt of 2048 tokens, and where the fact stands that its end asks for.
fn golden() -> (Vec<u32>, Range<usize>) {
    let text = std::fs::read(demo("goldens.json")).unwrap();
    let goldens: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let prefill = &goldens["prefill"];
    let fact: Vec<usize> = serde_json::from_value(prefill["fact"].clone()).unwrap();
    let ids = serde_json::from_value(prefill["ids"].clone()).unwrap();
    (ids, fact[0]..fact[1])
}

fn request(tokens: Vec<u32>) -> CompressRequest {
    CompressRequest {
        request_id: "test".to_owned(),
        tokens,
        keep_ratio: 0.1,
        protected: Vec::new(),
        within_budget: true,
        chunk_scores: false,
    }
}

fn long() -> CompressRequest {
    request((0..).map(|at| at * 7 % 8000).take(LONG).collect())
}

struct Worker {
    client: PrefillClient,
    shutdown: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
    _dir: TempDir,
}

impl Worker {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().join("prefill.sock").display());
        let mut config = Config {
            listen: listen.parse().unwrap(),
            threads: 1,
            ..Config::default()
        };
        change(&mut config);
        let client = PrefillClient::new(&config.listen).unwrap();
        let shutdown = CancellationToken::new();
        let file = demo_file("demo-prefill.gguf");
        let running = tokio::spawn(prefill_worker::run(config, file, shutdown.clone()));
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

    async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.unwrap().unwrap();
    }

    async fn compress(&self, request: CompressRequest) -> Compression {
        let stream = self.client.compress(request).await.unwrap();
        finish(stream).await.1.unwrap()
    }

    async fn refusal(&self, request: CompressRequest) -> WorkerError {
        match self.client.compress(request).await {
            Err(error) => error,
            Ok(stream) => finish(stream).await.1.unwrap_err(),
        }
    }

    /// Starts a long one, and waits until the drafter is at it.
    async fn start_long(&self) -> CompressStream {
        let mut stream = self.client.compress(long()).await.unwrap();
        loop {
            let event = tokio::time::timeout(PATIENCE, stream.next()).await;
            match event.unwrap().unwrap().unwrap() {
                CompressEvent::Progress(progress) if progress.phase == CompressPhase::Scoring => {
                    return stream;
                }
                CompressEvent::Progress(_) => {}
                CompressEvent::Finished(_) => panic!("it was not long"),
            }
        }
    }

    async fn stats(&self) -> PrefillStats {
        self.client.stats().await.unwrap()
    }

    async fn until(&self, what: &str, holds: impl Fn(PrefillStats) -> bool) {
        let started = Instant::now();
        while !holds(self.stats().await) {
            assert!(started.elapsed() < PATIENCE, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// All progress, and what came of it.
async fn finish(
    mut stream: CompressStream,
) -> (Vec<CompressProgress>, Result<Compression, WorkerError>) {
    let mut progress = Vec::new();
    loop {
        let event = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap();
        match event.expect("the last event is the answer") {
            Ok(CompressEvent::Progress(so_far)) => progress.push(so_far),
            Ok(CompressEvent::Finished(compression)) => {
                assert!(stream.next().await.is_none());
                return (progress, Ok(compression));
            }
            Err(error) => return (progress, Err(error)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_end_asks_for_is_kept_with_what_is_protected() {
    let worker = Worker::start(|_| {}).await;
    let (tokens, fact) = golden();
    let protected = vec![100..130, 0..20];
    let asked = CompressRequest {
        keep_ratio: 0.05,
        within_budget: false,
        protected: protected.clone(),
        chunk_scores: true,
        ..request(tokens)
    };
    let stream = worker.client.compress(asked.clone()).await.unwrap();
    let (progress, answer) = finish(stream).await;
    let answer = answer.unwrap();
    let is_kept = |position: usize| answer.kept.iter().any(|span| span.contains(&position));
    assert!(fact.clone().all(is_kept), "{fact:?} of {:?}", answer.kept);
    assert!(protected.into_iter().flatten().all(is_kept));
    assert!(is_kept(2047));
    assert_eq!(answer.tokens_in, 2048);
    // Three chunks that the share allows, eight more that the end names, and what is protected beside them.
    assert_eq!(answer.tokens_out, 11 * 32 + 50);
    assert_eq!(answer.chunk_scores.len(), 64);
    assert!(answer.timings.load > Duration::ZERO && answer.timings.score > Duration::ZERO);

    let phases: Vec<_> = progress.iter().map(|progress| progress.phase).collect();
    assert_eq!(phases[..2], [CompressPhase::Loading; 2]);
    assert!(
        phases[2..]
            .iter()
            .all(|phase| *phase == CompressPhase::Scoring)
    );
    let done: Vec<u64> = progress[2..].iter().map(|progress| progress.done).collect();
    assert!(!done.is_empty() && done.is_sorted(), "{done:?}");

    let again = worker.compress(asked).await;
    assert_eq!(again.kept, answer.kept);
    assert_eq!(again.chunk_scores, answer.chunk_scores);
    assert_eq!(again.timings.load, Duration::ZERO, "it stays on the CPU");
    let stats = worker.stats().await;
    let counted = (stats.finished_requests, stats.loads, stats.parks);
    assert_eq!(counted, (2, 1, 0));
    assert_eq!(stats.tokens_in, 4096);
    assert_eq!(stats.tokens_out, 2 * answer.tokens_out as u64);
    assert!(stats.is_resident && stats.score_us > 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_says_what_it_has_and_whether_it_takes_memory() {
    let worker = Worker::start(|_| {}).await;
    let description = worker.client.describe().await.unwrap();
    assert_eq!(description.architecture, "qwen3");
    assert_eq!(description.context_length as usize, CONTEXT);
    assert_eq!(description.vocab_size, 8192);
    assert!(!description.is_resident, "nobody asked for anything yet");
    let target = demo_file("demo-target.gguf");
    let tokens = target.metadata().str_array("tokenizer.ggml.tokens");
    let tokens = tokens.unwrap().unwrap();
    assert_eq!(description.token_list, Some(tokens.sha256()));

    worker.compress(request((0..64).collect())).await;
    assert!(worker.client.describe().await.unwrap().is_resident);
    worker.client.park().await.unwrap();
    assert!(!worker.client.describe().await.unwrap().is_resident);
    worker.client.park().await.unwrap();
    let stats = worker.stats().await;
    assert_eq!((stats.loads, stats.parks), (1, 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_parks_it_has_when_the_answer_comes() {
    let worker = Worker::start(|config| config.skip_park = Some(false)).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let answer = worker.compress(request(golden().0)).await;
        assert!(answer.timings.load > Duration::ZERO);
        assert!(answer.timings.park > Duration::ZERO);
        assert!(!worker.stats().await.is_resident);
        kept.push(answer.kept);
    }
    assert_eq!(kept[0], kept[1]);
    let stats = worker.stats().await;
    assert_eq!((stats.loads, stats.parks), (2, 2));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_has_its_memory_back_with_the_answer_and_keeps_what_the_cpu_does() {
    // Three of six chunks, one of them for its importance.
    let request = CompressRequest {
        keep_ratio: 0.5,
        ..request((0..192).map(|at| at * 31 % 8000).collect())
    };
    let on_cpu = Worker::start(|_| {}).await;
    let expected = on_cpu.compress(request.clone()).await.kept;
    on_cpu.stop().await;
    let worker = Worker::start(|config| config.device = "emulated".to_owned()).await;
    let answer = worker.compress(request).await;
    assert_eq!(answer.kept, expected);
    let stats = worker.stats().await;
    assert_eq!((stats.is_resident, stats.parks), (false, 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_short_to_be_scored_stays_as_it_is() {
    let worker = Worker::start(|_| {}).await;
    for len in [0, 1, 8] {
        let answer = worker.compress(request((0..len).collect())).await;
        assert_eq!(answer.tokens_out, len as usize);
    }
    assert_eq!(worker.stats().await.loads, 0);
    let answer = worker.compress(request((0..9).collect())).await;
    assert_eq!(answer.tokens_out, 9);
    assert_eq!(worker.stats().await.loads, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_cannot_be_scored_is_refused_by_what_is_wrong() {
    let worker = Worker::start(|_| {}).await;
    let too_long = worker.refusal(request(vec![1; CONTEXT + 1])).await;
    assert!(
        matches!(too_long, WorkerError::PromptTooLong(_)),
        "{too_long:?}"
    );
    assert!(too_long.to_string().contains("262145"), "{too_long}");
    let mut tokens = vec![1; 64];
    tokens[7] = 8192;
    let unknown = worker.refusal(request(tokens)).await;
    assert!(matches!(unknown, WorkerError::Invalid(_)), "{unknown:?}");
    let words = unknown.to_string();
    assert!(words.contains("8192 at position 7"), "{words}");
    let ratio = CompressRequest {
        keep_ratio: 2.0,
        ..request(vec![1; 64])
    };
    let ratio = worker.refusal(ratio).await;
    assert!(matches!(ratio, WorkerError::Invalid(_)), "{ratio:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_does_not_fit_beside_the_weights_is_refused_before_anything_is_loaded() {
    // Weights and scratch take 0.0171 GiB.
    let worker = Worker::start(|config| config.device_memory = Some(0.0175)).await;
    let refused = worker.refusal(request(golden().0)).await;
    assert!(matches!(refused, WorkerError::NoRoom(_)), "{refused:?}");
    let words = refused.to_string();
    assert!(words.contains("a prompt of 2048 tokens"), "{words}");
    let stats = worker.stats().await;
    assert_eq!((stats.failed_requests, stats.loads), (1, 0));
    let answer = worker.compress(request((0..64).collect())).await;
    assert_eq!(answer.tokens_out, 32);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_wait_their_turn_up_to_a_bound_and_go_when_nobody_waits() {
    let worker = Worker::start(|config| config.queue_len = 1).await;
    let first = worker.start_long().await;
    let mut second = worker.client.compress(long()).await.unwrap();
    let waits = second.next().await.unwrap().unwrap();
    let expected = CompressProgress {
        phase: CompressPhase::Waiting,
        done: 0,
        total: 1,
    };
    assert_eq!(waits, CompressEvent::Progress(expected));
    assert_eq!(worker.stats().await.queued_requests, 1);
    let refused = worker.refusal(long()).await;
    assert!(matches!(refused, WorkerError::QueueFull(_)), "{refused:?}");

    drop(second);
    drop(first);
    worker
        .until("both are given up", |stats| stats.cancelled_requests == 2)
        .await;
    let stats = worker.stats().await;
    assert_eq!((stats.queued_requests, stats.failed_requests), (0, 0));
    let answer = worker.compress(request(golden().0)).await;
    assert_eq!(answer.tokens_out, 6 * 32);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_gives_up_what_it_is_at() {
    let worker = Worker::start(|config| config.drain_seconds = 0).await;
    let stream = worker.start_long().await;
    worker.shutdown.cancel();
    let error = finish(stream).await.1.unwrap_err();
    assert!(matches!(error, WorkerError::Unavailable(_)), "{error:?}");
    worker.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_cannot_score_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let default = Config::default();
    let layers = Config {
        score_layers: Some(9),
        ..default.clone()
    };
    let memory = Config {
        device_memory: Some(0.01),
        ..default.clone()
    };
    for (number, file, config, words) in [
        (0, "demo-target.gguf", default, "demo-target.gguf"),
        (1, "demo-prefill.gguf", layers, "4 layers"),
        (2, "demo-prefill.gguf", memory, "device-memory is 0.01 GiB"),
    ] {
        let listen = format!("unix:{}", dir.path().join(number.to_string()).display());
        let config = Config {
            listen: listen.parse().unwrap(),
            ..config
        };
        let ended = prefill_worker::run(config, demo_file(file), CancellationToken::new()).await;
        let error = format!("{:#}", ended.unwrap_err());
        assert!(error.contains(words), "{error}");
    }
}
