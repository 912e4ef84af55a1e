//! The commands around the server.

use std::net::TcpListener;

use nix::unistd::Uid;
use serde_json::Value;

use crate::processes::{Process, entries, run, tandem, wait_until};
use crate::set::Set;

const ASK: [&str; 7] = [
    "chat",
    "--temperature",
    "0",
    "--max-tokens",
    "24",
    "-p",
    "Write a function that adds two numbers.",
];

#[test]
fn chat_answers_alike_from_a_server_and_by_itself() {
    let set = Set::start(&[]);
    let url = format!("http://{}", set.address);
    let runtime_dir = tempfile::tempdir().unwrap();
    let ask = |more: &[&str]| {
        let ended = run(tandem(runtime_dir.path(), &[&ASK, more].concat()));
        assert!(ended.is_success(), "{ended:?}");
        assert!(!ended.stdout.trim().is_empty());
        ended.stdout
    };
    let served = ask(&["--url", &url]);
    assert!(set.stop().success());
    assert_eq!(ask(&["--threads", "1"]), served);
    assert!(entries(runtime_dir.path()).is_empty());

    let ended = run(tandem(
        runtime_dir.path(),
        &[&ASK[..], &["--url", &url]].concat(),
    ));
    assert!(ended.is_failure());
    assert!(ended.stderr.contains(&url), "{ended:?}");
}

#[test]
fn doctor_reports_in_json() {
    let runtime_dir = tempfile::tempdir().unwrap();
    let ended = run(tandem(
        runtime_dir.path(),
        &["doctor", "--json", "--threads", "1"],
    ));
    assert!(ended.is_success(), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("one JSON object");
    assert_eq!(report["model"]["architecture"], "qwen35");
    assert_eq!(report["model"]["missing_bytes"], 0);
    let prefill = &report["prefill"];
    assert_eq!(prefill["prompt_tokens"], 32768);
    assert!(prefill["prompt_bytes"].as_u64().unwrap() > 0);
    assert_eq!(prefill["fits"][0]["missing_bytes"], 0);
    assert!(
        report["devices"][0]["read_bytes_per_second"]
            .as_f64()
            .unwrap()
            > 0.0
    );
}

#[test]
fn health_tells_who_serves() {
    let set = Set::start(&["--prefill-compression", "auto"]);
    let supervisor = set.supervisor.pid();
    let sockets = set
        .runtime_dir
        .path()
        .join(format!("tandem-{}-{supervisor}", Uid::current()));
    let socket = |role: &str| format!("unix:{}/{role}.sock", sockets.display());
    let runtime_dir = tempfile::tempdir().unwrap();
    let ask = |endpoint: &str| run(tandem(runtime_dir.path(), &["health", endpoint]));
    let router = format!("http://{}", set.address);
    // The two that nobody waits for may still be loading.
    for endpoint in [
        &router,
        &socket("target"),
        &socket("draft"),
        &socket("prefill"),
    ] {
        wait_until(endpoint, || {
            let ended = ask(endpoint);
            ended.is_success() && ended.stdout == "serving\n"
        });
    }
    let target = socket("target");
    assert!(set.stop().success());
    for endpoint in [&router, &target] {
        let ended = ask(endpoint);
        assert!(
            ended.is_failure() && ended.stderr.contains(endpoint),
            "{ended:?}"
        );
    }
    let ended = ask("localhost:8000");
    assert!(ended.stderr.contains("http://HOST:PORT"), "{ended:?}");
}

#[test]
fn health_tells_that_a_router_has_no_worker() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = format!("unix:{}", dir.path().join("target.sock").display());
    // A port that the system has just given away and taken back.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let listen = address.to_string();
    let _router = Process::start(tandem(
        dir.path(),
        &["router", "--listen", &listen, "--target", &nobody],
    ));
    wait_until("the reason", || {
        let ended = run(tandem(
            dir.path(),
            &["health", &format!("http://{address}")],
        ));
        assert!(ended.is_failure(), "{ended:?}");
        ended.stderr.contains("503")
    });
}
