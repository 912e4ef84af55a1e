//! The commands around the server.

use serde_json::Value;

use crate::processes::{entries, run, tandem};
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
