//! A router on a free port, gone when dropped.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use gguf::GgufFile;
use router::{Drafts, Prefill, RouterConfig};
use serde_json::Value;
use tokenizer::Tokenizer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{Reply, WATCHDOG, exchange, request};
use crate::script::Script;

pub const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/demo/demo-target.gguf"
);

/// The demo model's tokenizer.
pub static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let model = GgufFile::open(MODEL).unwrap();
    Arc::new(Tokenizer::from_gguf(model.metadata()).unwrap())
});

pub struct Server {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    runtime: Runtime,
    running: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Server {
    pub fn start(script: Script) -> Self {
        Self::with(RouterConfig::default(), script)
    }

    pub fn with(config: RouterConfig, script: Script) -> Self {
        Self::serve(config, script, || (None, None))
    }

    /// With a draft to keep; `drafts` is called inside the server's runtime.
    pub fn drafting(script: Script, drafts: impl FnOnce() -> Drafts) -> Self {
        Self::serve(RouterConfig::default(), script, || (Some(drafts()), None))
    }

    /// With a prefill worker; `prefill` is called inside the server's runtime.
    pub fn compressing(
        config: RouterConfig,
        script: Script,
        prefill: impl FnOnce() -> Prefill,
    ) -> Self {
        Self::serve(config, script, || (None, Some(prefill())))
    }

    fn serve(
        config: RouterConfig,
        script: Script,
        workers: impl FnOnce() -> (Option<Drafts>, Option<Prefill>),
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let model = GgufFile::open(MODEL).unwrap();
        let (drafts, prefill) = runtime.block_on(async { workers() });
        let running = router::run(
            config,
            model,
            script,
            drafts,
            prefill,
            listener,
            shutdown.clone(),
        );
        let running = Some(runtime.spawn(running));
        Self {
            address,
            shutdown,
            runtime,
            running,
        }
    }

    pub fn get(&self, path: &str) -> Reply {
        exchange(self.address, &request("GET", path, "", b""))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Reply {
        exchange(self.address, &request("POST", path, "", body))
    }

    /// Asks for the metrics until `line` is there.
    pub fn wait_for_metric(&self, line: &str) {
        let started = Instant::now();
        loop {
            let metrics = self.get("/metrics");
            if metrics.text().lines().any(|found| found == line) {
                return;
            }
            assert!(started.elapsed() < WATCHDOG, "{line}\n{}", metrics.text());
        }
    }

    /// Begins the shutdown and waits for its end.
    pub fn stop(&mut self) {
        self.shutdown.cancel();
        if let Some(running) = self.running.take() {
            let ended = async { tokio::time::timeout(WATCHDOG, running).await };
            let ended = self.runtime.block_on(ended);
            ended.expect("the router stops").unwrap().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}
