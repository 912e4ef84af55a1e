//! The demo model on a device that the test can hold between steps, and which device that is.

#![allow(clippy::unwrap_used, dead_code)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, EngineConfig, EngineHandle, GenerateStream};
use generation::{
    FinishReason, GenerateError, GenerateEvent, GenerateRequest, ModelDescription, Timings, Token,
    WorkerStats,
};
use gguf::GgufFile;
use kernels::{Device, DeviceName, open_device};
use models::{LoadOptions, Model, load_path};
use sampling::SamplingParams;

pub mod conversations;
pub mod gated;
pub mod in_process;
pub mod matching;
pub mod scripted;

use gated::{Gate, GatedDevice};

/// Longer than anything here takes, a GPU's kernels that are compiled included; a test that waits this long has hung.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Variable that names the device that these tests compute on: `cpu` unless it says `emulated` (kernels for GPUs, run on the
/// host; slow), `cuda:0` or the like.
const DEVICE: &str = "TANDEM_TEST_DEVICE";

/// The device that tests compute on. One thread of a CPU: the tests of a file keep the others busy.
pub fn device() -> Arc<dyn Device> {
    let name = std::env::var(DEVICE).unwrap_or_default();
    let name = Some(name).filter(|name| !name.is_empty());
    let name = name.map_or(Ok(DeviceName::default()), |name| name.parse());
    name.and_then(|name| open_device(name, 1))
        .unwrap_or_else(|error| panic!("{DEVICE}: {error}"))
}

pub const CONFIG: EngineConfig = EngineConfig {
    max_sequences: 4,
    queue_len: 4,
    context_length: 256,
    prefill_chunk_tokens: 16,
    speculation: generation::SpeculationConfig::OFF,
    prefix_cache: engine::PrefixCacheConfig::OFF,
    verify_lossless: false,
};

/// `def fibonacci(n):` and a line end.
pub const FIBONACCI: [u32; 8] = [320, 289, 745, 262, 1113, 575, 819, 331];

/// Its greedy continuation by the same file in llama.cpp; the last is `<|im_end|>`.
pub const FIBONACCI_ANSWER: [u32; 50] = [
    258, 381, 2032, 304, 296, 12, 390, 472, 745, 262, 1113, 575, 1231, 1015, 258, 276, 11, 311,
    273, 220, 15, 11, 220, 16, 198, 258, 365, 366, 301, 1405, 819, 331, 259, 276, 11, 311, 273,
    311, 11, 276, 524, 311, 198, 258, 352, 276, 198, 402, 63, 8188,
];

/// `<|im_end|>`.
pub const IM_END: u32 = 8188;

/// A file of the tests of models.
pub fn model_data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../models/tests/data")
        .join(name)
}

pub fn load(config: EngineConfig, gate: &Arc<Gate>) -> Model {
    load_with(config.load_options(None), gate)
}

pub fn load_with(options: LoadOptions, gate: &Arc<Gate>) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo/demo-target.gguf");
    let device = Arc::new(GatedDevice::new(Arc::clone(gate)));
    let mut model = load_path(&path, device, options, &mut |_| {}).unwrap();
    model.keep_file(GgufFile::open(&path).unwrap());
    model
}

pub fn describe(model: &Model, config: EngineConfig) -> ModelDescription {
    ModelDescription {
        name: "demo-target".to_owned(),
        architecture: "qwen35".to_owned(),
        context_length: config.context_length as u32,
        vocab_size: model.config().vocab_size as u32,
        max_sequences: config.max_sequences as u32,
        device: "test".to_owned(),
    }
}

/// An engine and the gate that its steps pass.
pub struct Stand {
    pub engine: Option<Engine>,
    pub handle: EngineHandle,
    pub gate: Arc<Gate>,
}

pub fn start(config: EngineConfig) -> Stand {
    let gate = Arc::new(Gate::default());
    let model = load(config, &gate);
    start_with(model, config, gate)
}

pub fn start_with(model: Model, config: EngineConfig, gate: Arc<Gate>) -> Stand {
    let description = describe(&model, config);
    let engine = Engine::start(model, description, config, None).unwrap();
    let handle = engine.handle();
    Stand {
        engine: Some(engine),
        handle,
        gate,
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        // The engine, dropped next, joins a thread that may stand at the gate.
        self.gate.open();
    }
}

impl Stand {
    /// The whole answer to a request.
    pub async fn answer(&self, request: &GenerateRequest) -> Answer {
        collect(self.handle.generate(request.clone()).unwrap()).await
    }

    /// Shuts down off the runtime, as a worker does.
    pub async fn shutdown(&mut self, grace: Duration) {
        let engine = self.engine.take().unwrap();
        within(off_runtime(move || engine.shutdown(grace))).await;
    }

    /// Waits for the counters to be as expected.
    pub async fn until(&self, what: &str, condition: impl Fn(&WorkerStats) -> bool) -> WorkerStats {
        let wait = async {
            loop {
                let stats = self.handle.stats();
                if condition(&stats) {
                    return stats;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        match tokio::time::timeout(WATCHDOG, wait).await {
            Ok(stats) => stats,
            Err(_) => panic!("{what}: {:?}", self.handle.stats()),
        }
    }

    /// Waits for a step to stand at the closed gate; `steps` have come so far, this one among them.
    pub async fn until_at_gate(&self, steps: usize) {
        let gate = Arc::clone(&self.gate);
        within(off_runtime(move || gate.wait_for(steps))).await;
    }
}

/// Runs what blocks on a thread of its own. A runtime would wait for it at its end, past any watchdog.
pub fn off_runtime<T: Send + 'static>(
    blocking: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    let (sender, done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(blocking()));
    async { done.await.expect("what blocks does not panic") }
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WATCHDOG, future)
        .await
        .expect("the watchdog saw no end")
}

pub fn request(prompt: &[u32], max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        request_id: format!("{} + {max_tokens}", prompt.len()),
        prompt: prompt.to_vec(),
        history_tokens: 0,
        max_tokens,
        min_tokens: 0,
        stop_ids: Vec::new(),
        sampling: SamplingParams::default(),
        logprobs: false,
        top_logprobs: 0,
        speculation: None,
        thinking: None,
        grammar: None,
    }
}

/// A prompt without meaning, of ordinary tokens.
pub fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|i| 256 + (i * 37 + seed * 101 + i * i * 7) % 7000)
        .collect()
}

/// All that came for a request.
#[derive(Debug)]
pub struct Answer {
    /// Prompt tokens and cached tokens.
    pub started: Option<(u32, u32)>,
    pub tokens: Vec<Token>,
    pub end: Result<(FinishReason, Timings), GenerateError>,
}

impl Answer {
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    pub fn reason(&self) -> FinishReason {
        self.end.clone().unwrap().0
    }
}

/// Reads a stream to its end, and checks that nothing comes after it.
pub async fn collect(mut stream: GenerateStream) -> Answer {
    let (mut started, mut tokens) = (None, Vec::new());
    let end = loop {
        let event = within(stream.recv()).await.expect("no end before it ends");
        match event {
            Ok(GenerateEvent::Started {
                prompt_tokens,
                cached_tokens,
            }) => {
                assert!(started.is_none() && tokens.is_empty());
                started = Some((prompt_tokens, cached_tokens));
            }
            Ok(GenerateEvent::Progress { prompt_tokens }) => {
                let (all, seen) = started.expect("a start comes first");
                assert!(tokens.is_empty() && seen < prompt_tokens && prompt_tokens < all);
            }
            Ok(GenerateEvent::Token(token)) => tokens.push(token),
            Ok(GenerateEvent::Finished { reason, timings }) => break Ok((reason, timings)),
            Err(error) => break Err(error),
        }
    };
    assert!(within(stream.recv()).await.is_none());
    Answer {
        started,
        tokens,
        end,
    }
}

/// The next event that is no progress, which must be a token.
pub async fn next_token(stream: &mut GenerateStream) -> Token {
    loop {
        match within(stream.recv()).await {
            Some(Ok(GenerateEvent::Progress { .. })) => {}
            Some(Ok(GenerateEvent::Token(token))) => return token,
            other => panic!("expected a token, got {other:?}"),
        }
    }
}

/// The next event, which must be the start.
pub async fn expect_start(stream: &mut GenerateStream) {
    let event = within(stream.recv()).await;
    assert!(
        matches!(event, Some(Ok(GenerateEvent::Started { .. }))),
        "{event:?}"
    );
}
