//! The prefill worker of a set: it comes, goes and comes back, and the set goes on.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use service::Endpoint;
use tokio_stream::StreamExt;
use worker_api::{CompressEvent, CompressRequest, Compression, PrefillClient, WorkerError};

use crate::processes::{children, entries, is_running, send, wait_for, wait_until};
use crate::set::Set;

pub const DEMO_DRAFTER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/demo/demo-prefill.gguf");

/// The prefill worker's socket, from outside the set.
struct Prefill {
    runtime: tokio::runtime::Runtime,
    client: PrefillClient,
}

impl Prefill {
    fn of(set: &Set) -> Self {
        let dir = set.runtime_dir.path();
        let socket = dir.join(&entries(dir)[0]).join("prefill.sock");
        // With a thread of its own: a connection that nobody drives does not hear that the worker wants to end.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let client = PrefillClient::new(&Endpoint::Unix(socket)).unwrap();
        Self { runtime, client }
    }

    fn compress(&self, tokens: &[u32]) -> Result<Compression, WorkerError> {
        let request = CompressRequest {
            request_id: "stack".to_owned(),
            tokens: tokens.to_vec(),
            keep_ratio: 0.05,
            protected: Vec::new(),
            within_budget: false,
            chunk_scores: false,
        };
        self.runtime.block_on(async {
            let mut stream = self.client.compress(request).await?;
            loop {
                match stream.next().await.expect("the last event is the answer")? {
                    CompressEvent::Progress(_) => {}
                    CompressEvent::Finished(compression) => return Ok(compression),
                }
            }
        })
    }

    fn wait_for(&self, tokens: &[u32]) -> Compression {
        wait_for("the prefill worker", || self.compress(tokens).ok())
    }
}

/// 2048 tokens.
fn golden_prompt() -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/demo/goldens.json");
    let goldens: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    serde_json::from_value(goldens["prefill"]["ids"].clone()).unwrap()
}

#[test]
fn whatever_happens_to_the_prefill_worker_the_set_goes_on_and_it_comes_back() {
    let set = Set::start(&["--prefill-drafter", DEMO_DRAFTER, "--prefill-threads", "1"]);
    let client = set.client();
    let prefill = Prefill::of(&set);
    let tokens = golden_prompt();
    let before = prefill.wait_for(&tokens);
    // Three chunks that the share allows, and eight that the end of the prompt names.
    assert_eq!((before.tokens_in, before.tokens_out), (2048, 11 * 32));
    let answer = client.complete("def add(a, b):\n", 16);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let killed = set.pid("prefill-worker");
        let target = set.pid("target-worker");
        send(killed, signal);
        wait_until("its end", || !is_running(killed));
        assert_eq!(client.complete("def add(a, b):\n", 16), answer);
        assert_eq!(prefill.wait_for(&tokens).kept, before.kept);
        assert_ne!(set.pid("prefill-worker"), killed);
        assert_eq!(set.pid("target-worker"), target);
    }
    assert!(set.stop().success());
}

#[test]
fn without_a_drafter_there_is_no_prefill_process() {
    let set = Set::start(&[]);
    let roles = children(set.supervisor.pid());
    let is_prefill = |role: &(i32, String)| role.1.contains(" prefill-worker ");
    assert!(!roles.iter().any(is_prefill), "{roles:?}");
    assert!(set.stop().success());
}
