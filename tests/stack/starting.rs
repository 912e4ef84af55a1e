//! Starts that cannot work, the configuration file, and roles started one by one.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use nix::sys::signal::Signal;

use crate::http::{Client, completion};
use crate::prefill::DEMO_DRAFTER;
use crate::processes::{Process, entries, run, tandem, wait_until};
use crate::set::Set;

const DEMO_TARGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/demo/demo-target.gguf");
const DEMO_DRAFT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/demo/demo-draft.gguf");
/// Of another size.
const OTHER_TARGET: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/crates/models/tests/data/qwen35-tiny-Q4_K_M.gguf"
);

/// An address where nobody listens now.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Runs what cannot start.
fn check_refused(args: &[&str], cause: &str) {
    let runtime_dir = tempfile::tempdir().unwrap();
    let ended = run(tandem(runtime_dir.path(), args));
    assert!(ended.is_failure(), "{args:?}: {ended:?}");
    assert!(ended.stderr.contains(cause), "{args:?}: {ended:?}");
    assert_eq!(ended.stdout, "", "{args:?}");
    let left = entries(runtime_dir.path());
    assert!(left.is_empty(), "{args:?}: {left:?}");
}

fn config(dir: &Path, text: &str) -> String {
    let path = dir.join("tandem.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_start_that_cannot_work_names_the_cause_and_leaves_nothing() {
    let free = ["up", "--listen", "127.0.0.1:0"];
    let up = |args: &[&'static str]| [&free[..], args].concat();
    check_refused(&up(&["--model", "/no/such.gguf"]), "/no/such.gguf");
    check_refused(&up(&["--model", "/dev/null"]), "/dev/null");
    check_refused(&up(&["--config", "/no/such.toml"]), "/no/such.toml");
    check_refused(
        &up(&["--chat-template-file", "/no/such.jinja"]),
        "/no/such.jinja",
    );
    check_refused(&up(&["--ctx-size", "100000000"]), "ctx-size");
    check_refused(&up(&["--parallel", "0"]), "parallel is 0");
    check_refused(&up(&["--draft", "/no/such.gguf"]), "/no/such.gguf");
    check_refused(&up(&["--draft", DEMO_TARGET]), "demo-target.gguf");
    let other = up(&["--model", OTHER_TARGET, "--draft", DEMO_DRAFT]);
    check_refused(&other, "demo-draft.gguf for ");
    check_refused(
        &up(&["--draft-device", "gpu"]),
        "there is no device \"gpu\"",
    );
    check_refused(&up(&["--draft-device", "cuda:99"]), "draft-device cuda:99");
    check_refused(
        &up(&["--target-device", "cuda:99"]),
        "target-device cuda:99",
    );
    let split = |devices, more: &[&'static str]| {
        let args = [&["--target-devices", devices], more].concat();
        up(&args)
    };
    check_refused(&split("cpu,gpu", &[]), "target-devices: there is no device");
    check_refused(&split("cpu,cuda:99", &[]), "target-devices cuda:99");
    let both = split("cpu,cpu", &["--device", "cpu"]);
    check_refused(&both, "cannot be used with '--target-device");
    let shares = |shares| split("cpu,cpu", &["--target-layer-split", shares]);
    check_refused(&shares("1"), "target-layer-split has 1 shares for 2");
    check_refused(&shares("1,0"), "target-layer-split: 0 is no share");
    check_refused(&shares("-1,1"), "target-layer-split: -1 is no share");
    check_refused(&shares("nan,1"), "target-layer-split: NaN is no share");
    check_refused(&shares("a,b"), "--target-layer-split");
    let alone = up(&["--target-layer-split", "0.5,0.5"]);
    check_refused(&alone, "2 shares for 0 target-devices");
    let many = split("cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu", &[]);
    check_refused(&many, "target-devices: a model of");
    // Each stage says so; the first one heard of ends the set.
    let large = split("cpu,cpu", &["--ctx-size", "100000000"]);
    check_refused(&large, "of 2 (cpu, layers");
    check_refused(&large, "target-layer-split");
    check_refused(
        &up(&["--prefill-drafter", "/no/such.gguf"]),
        "/no/such.gguf",
    );
    check_refused(&up(&["--prefill-drafter", DEMO_TARGET]), "demo-target.gguf");
    let scoring = |setting, value| up(&["--prefill-drafter", DEMO_DRAFTER, setting, value]);
    check_refused(
        &scoring("--prefill-device", "cuda:99"),
        "prefill-device cuda:99",
    );
    check_refused(
        &scoring("--prefill-score-positions", "turned"),
        "score-positions is `turned`",
    );
    check_refused(&scoring("--prefill-sparsity", "2"), "sparsity is `2`");
    check_refused(&scoring("--prefill-score-layers", "9"), "4 layers");
    check_refused(&up(&["--speculation", "twice"]), "`twice`");
    check_refused(&up(&["--ddtree-budget", "0"]), "ddtree-budget is 0");
    check_refused(&["up", "--listen", "nowhere"], "nowhere");
    check_refused(&["up", "--listn", "127.0.0.1:0"], "--listn");

    let dir = tempfile::tempdir().unwrap();
    for (text, cause) in [
        ("[target-worker]\nctx-sise = 100\n", "ctx-sise"),
        ("[router.defaults]\ntop-q = 1.0\n", "top-q"),
        ("[routr]\nlisten = \"127.0.0.1:0\"\n", "routr"),
        ("[router]\ncors = \"perhaps\"\n", "cors"),
        ("[router\n", "tandem.toml"),
        ("[draft-worker]\nblock-size = 8\n", "block-size"),
        ("[prefill-worker]\nkeep = 8\n", "keep"),
    ] {
        let path = config(dir.path(), text);
        check_refused(&["up", "--listen", "127.0.0.1:0", "--config", &path], cause);
    }
}

#[test]
fn a_port_in_use_is_named_even_if_a_server_answers_there() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    check_refused(&["up", "--listen", &address], &address);
    let set = Set::start(&[]);
    let address = set.address.to_string();
    check_refused(&["up", "--listen", &address], &address);
    set.client().wait_until_ready();
    assert!(set.stop().success());
}

#[test]
fn the_sample_configuration_is_the_defaults_and_says_every_key() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/config/tandem.toml");
    let read = |text: &str| -> (
        target_worker::Config,
        draft_worker::Config,
        prefill_worker::Config,
        router::Settings,
    ) {
        let mut tables: toml::Table = text.parse().unwrap();
        let mut take = |name| tables.remove(name).unwrap();
        let read = (
            take("target-worker").try_into().unwrap(),
            take("draft-worker").try_into().unwrap(),
            take("prefill-worker").try_into().unwrap(),
            take("router").try_into().unwrap(),
        );
        assert!(tables.is_empty(), "{tables:?}");
        read
    };
    let text = fs::read_to_string(sample).unwrap();
    let (worker, draft, prefill, router) = read(&text);
    assert_eq!(worker, target_worker::Config::default());
    assert_eq!(draft, draft_worker::Config::default());
    assert_eq!(prefill, prefill_worker::Config::default());
    assert_eq!(router, router::Settings::default());

    // With the settings that have no default, every field is there: none is at its default by being left out.
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with([' ', '#']) => setting.to_owned(),
        _ => line.to_owned(),
    };
    let text: Vec<String> = text.lines().map(uncomment).collect();
    let text = text.join("\n");
    let (worker, draft, prefill, router) = read(&text);
    let written: toml::Table = text.parse().unwrap();
    for (name, full) in [
        ("target-worker", toml::Value::try_from(&worker).unwrap()),
        ("draft-worker", toml::Value::try_from(&draft).unwrap()),
        ("prefill-worker", toml::Value::try_from(&prefill).unwrap()),
        ("router", toml::Value::try_from(&router).unwrap()),
    ] {
        assert_eq!(keys("", &written[name]), keys("", &full), "{name}");
    }

    let runtime_dir = tempfile::tempdir().unwrap();
    let set = Set::start_in(runtime_dir, &["--config", sample]);
    set.client().complete("a = ", 2);
    assert!(set.stop().success());
}

/// Paths of all settings in a table.
fn keys(path: &str, value: &toml::Value) -> Vec<String> {
    let mut found = match value {
        toml::Value::Table(table) => table
            .iter()
            .flat_map(|(key, value)| keys(&format!("{path}.{key}"), value))
            .collect(),
        _ => vec![path.to_owned()],
    };
    found.sort();
    found
}

#[test]
fn router_and_workers_serve_as_separate_programs_over_tcp() {
    let runtime_dir = tempfile::tempdir().unwrap();
    let (worker_address, address) = (free_address(), free_address());
    let endpoint = format!("tcp:{worker_address}");
    let draft_endpoint = format!("tcp:{}", free_address());
    let start = |args: &[&str]| Process::start(tandem(runtime_dir.path(), args));
    // The router may come first.
    let mut router = start(&[
        "router",
        "--listen",
        &address.to_string(),
        "--target",
        &endpoint,
        "--draft",
        &draft_endpoint,
    ]);
    let mut worker = start(&["target-worker", "--listen", &endpoint, "--threads", "1"]);
    let client = Client::new(address);
    client.wait_until_ready();
    let (text, _) = client.complete("def add(a, b):\n", 16);
    assert_eq!(client.draft_state(), "waiting");
    let mut draft = start(&[
        "draft-worker",
        "--listen",
        &draft_endpoint,
        "--threads",
        "1",
    ]);
    client.wait_until_attached();
    assert_eq!(client.complete("def add(a, b):\n", 16).0, text);
    draft.signal(Signal::SIGTERM);
    assert!(draft.wait().success());
    wait_until("the router to see it", || client.draft_state() == "waiting");
    let body = completion("def add(a, b):\n", 16);
    assert_eq!(client.stream("/v1/completions", &body).rest().0, text);
    worker.signal(Signal::SIGTERM);
    assert!(worker.wait().success());
    wait_until("the router to see it", || {
        client.get("/health").status == 503
    });
    router.signal(Signal::SIGTERM);
    assert!(router.wait().success());
    assert!(entries(runtime_dir.path()).is_empty());
}
