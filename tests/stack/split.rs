//! A target whose layers are split over processes: the answers of one process, and what happens when a stage goes.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::http::{Client, Event, completion, endless};
use crate::processes::{Process, is_running, run, send, tandem, wait_until};
use crate::set::Set;
use crate::starting::free_address;

const PROMPT: &str = "def quicksort(items):\n";
const MAX_TOKENS: u32 = 48;

fn body(temperature: f64) -> Value {
    let mut body = completion(PROMPT, MAX_TOKENS);
    body["temperature"] = json!(temperature);
    body["seed"] = json!(7);
    body["logprobs"] = json!(5);
    body
}

/// Greedy and sampled answers, with their tokens and log-probabilities.
fn answers(client: &Client) -> Vec<Value> {
    let ask = |temperature| {
        let answer = client.post("/v1/completions", &body(temperature)).ok();
        let choice = &answer["choices"][0];
        assert!(choice["logprobs"].is_object(), "{choice}");
        json!([choice["text"], choice["logprobs"]])
    };
    [0.0, 0.9].map(ask).to_vec()
}

#[test]
fn a_split_target_answers_bit_for_bit_as_one_process() {
    let whole = Set::start(&["--speculation", "off"]);
    let expected = answers(&whole.client());
    assert!(whole.stop().success());
    let splits: [&[&str]; 2] = [
        &["--target-devices", "cpu,cpu", "--speculation", "off"],
        &[
            "--target-devices",
            "cpu,cpu,cpu",
            "--target-layer-split",
            "1,4,1",
            "--speculation",
            "tree",
        ],
    ];
    for split in splits {
        let set = Set::start(split);
        let client = set.client();
        let drafts = split.contains(&"tree");
        if drafts {
            client.wait_until_attached();
        }
        assert_eq!(answers(&client), expected, "{split:?}");
        let rounds = client.metric("tandem_speculation_rounds", &[]);
        assert_eq!(rounds > 0.0, drafts, "{split:?}");
        let device = client.get("/props").ok()["device"].take();
        let device = device.as_str().unwrap();
        let stages = split[1].split(',').count();
        assert_eq!(device.matches(": layer").count(), stages, "{device}");
        assert!(set.stop().success());
    }
}

#[test]
fn when_a_stage_goes_answers_fail_clearly_and_the_set_comes_back() {
    let set = Set::start(&["--target-devices", "cpu,cpu,cpu", "--speculation", "tree"]);
    let client = set.client();
    client.wait_until_attached();
    let before = client.complete(PROMPT, MAX_TOKENS);
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let mut stream = client.stream("/v1/completions", &endless(PROMPT));
        stream.first_text();
        let (stage, target) = (set.stage_pid(1), set.pid("target-worker"));
        send(stage, signal);
        let (_, last) = stream.rest();
        let Event::Part(part) = last else {
            panic!("an error, not {last:?}");
        };
        let error = &part["error"];
        assert_eq!(error["code"], "worker_unavailable", "{part}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("stage 1"), "{message}");
        assert_eq!(stream.next(), Event::Done, "clients wait for it");
        wait_until("the target to start again", || !is_running(target));
        if signal == Signal::SIGSTOP {
            send(stage, Signal::SIGCONT);
        }
        client.wait_until_ready();
        client.wait_until_attached();
        assert_eq!(client.complete(PROMPT, MAX_TOKENS), before);
    }
    // While nobody asks anything, the target notices as well.
    let (stage, target) = (set.stage_pid(1), set.pid("target-worker"));
    send(stage, Signal::SIGKILL);
    wait_until("the target to start again", || !is_running(target));
    client.wait_until_ready();
    assert_eq!(client.complete(PROMPT, MAX_TOKENS), before);
    // And stages serve the target that comes after one that was killed.
    let (stage, target) = (set.stage_pid(1), set.pid("target-worker"));
    send(target, Signal::SIGKILL);
    wait_until("its end", || !is_running(target));
    client.wait_until_ready();
    assert_eq!(set.stage_pid(1), stage);
    assert_eq!(client.complete(PROMPT, MAX_TOKENS), before);
    assert!(set.stop().success());
}

#[test]
fn commands_without_a_server_split_as_well() {
    let runtime_dir = tempfile::tempdir().unwrap();
    let json = |args: &[&str]| -> Value {
        let ended = run(tandem(runtime_dir.path(), args));
        assert!(ended.is_success(), "{ended:?}");
        serde_json::from_str(&ended.stdout).expect("one JSON object")
    };
    let ask = ["run", "--json", "--threads", "1", "-n", "24", "-p", PROMPT];
    let split = ["--target-devices", "cpu,cpu"];
    let whole = json(&ask);
    assert_eq!(
        json(&[&ask[..], &split].concat())["tokens"],
        whole["tokens"]
    );
    let bench = [
        "bench",
        "--json",
        "--threads",
        "1",
        "-r",
        "1",
        "--pp",
        "16",
        "--tg",
        "2",
        "--rows",
        "4",
    ];
    let report = json(&[&bench[..], &split].concat());
    let device = report["device"].as_str().unwrap();
    assert_eq!(device.matches(": layer").count(), 2, "{device}");
    assert!(report["results"][1]["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(report["trees"][0]["verify_ms"].as_f64().unwrap() > 0.0);
    let doctor = ["doctor", "--json", "--threads", "1"];
    let report = json(&[&doctor[..], &split].concat());
    let stages = report["model"]["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    assert_eq!(stages[0]["missing_bytes"], 0, "{report}");

    let both = [&ask[..], &split, &["--device", "cpu"]].concat();
    let ended = run(tandem(runtime_dir.path(), &both));
    assert!(ended.is_failure());
    assert!(ended.stderr.contains("cannot be used with"), "{ended:?}");
    assert!(crate::processes::entries(runtime_dir.path()).is_empty());
}

#[test]
fn stages_serve_as_separate_programs_over_tcp() {
    let runtime_dir = tempfile::tempdir().unwrap();
    let start = |args: &[&str]| Process::start(tandem(runtime_dir.path(), args));
    let (address, worker_address) = (free_address(), free_address());
    let listen = format!("tcp:{worker_address}");
    let stages = format!("tcp:{}", free_address());
    let split = [
        "--threads",
        "1",
        "--target-devices",
        "cpu,cpu",
        "--stages",
        &stages,
    ];
    let worker = [&["target-worker", "--listen", &listen][..], &split].concat();
    let listen_http = address.to_string();
    let mut router = start(&["router", "--listen", &listen_http, "--target", &listen]);
    // The target may come before its stage, and waits for it.
    let mut target = start(&worker);
    let mut stage = start(&[&["target-stage", "--stage", "1"][..], &split].concat());
    let client = Client::new(address);
    client.wait_until_ready();
    let before = client.complete(PROMPT, 8);

    // One that is set up differently is told so, and harms nobody.
    let other = format!("tcp:{}", free_address());
    let other = ["target-worker", "--listen", &other, "--ctx-size", "64"];
    let refused = run(tandem(runtime_dir.path(), &[&other[..], &split].concat()));
    assert!(refused.is_failure());
    let words = "two stages are set up for different tokens of all sequences";
    assert!(refused.stderr.contains(words), "{refused:?}");
    let number = ["target-stage", "--stage", "2"];
    let refused = run(tandem(runtime_dir.path(), &[&number[..], &split].concat()));
    assert!(
        refused.stderr.contains("stage is 2, expected 1 to 1"),
        "{refused:?}"
    );
    assert_eq!(client.complete(PROMPT, 8), before);

    stage.signal(Signal::SIGTERM);
    assert!(stage.wait().success());
    assert!(!target.wait().success());
    assert!(target.stderr().contains("an earlier stage is gone"));
    router.signal(Signal::SIGTERM);
    assert!(router.wait().success());
    assert!(crate::processes::entries(runtime_dir.path()).is_empty());
}
