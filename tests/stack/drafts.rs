//! The draft comes, goes and comes back; no answer depends on it.

use std::fs;
use std::thread;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::http::{Client, Event, EventStream, completion};
use crate::processes::{children, entries, is_running, send, wait_until};
use crate::set::Set;

const PROMPTS: [&str; 3] = [
    "def fibonacci(n):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\ndef read_lines(path):\n",
];
/// Long enough to be under way when the harm is done.
const LONG: u32 = 160;

fn long(prompt: &str) -> Value {
    let mut body = completion(prompt, LONG);
    body["ignore_eos"] = true.into();
    body
}

/// What the target says by itself.
fn plain_answers() -> Vec<String> {
    let set = Set::start(&["--speculation", "off"]);
    let client = set.client();
    let ask = |prompt| {
        let answer = client.post("/v1/completions", &long(prompt)).ok();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let answers = PROMPTS.into_iter().map(ask).collect();
    assert!(set.stop().success());
    answers
}

/// A set that drafts in every round.
fn drafting() -> (Set, Client) {
    let set = Set::start(&["--speculation", "tree"]);
    let client = set.client();
    client.wait_until_attached();
    (set, client)
}

/// Does harm while answers are streamed, and holds them against the plain ones.
fn check_streams(client: &Client, plain: &[String], harm: impl FnOnce()) {
    let start = |prompt| client.stream("/v1/completions", &long(prompt));
    let mut streams: Vec<EventStream> = PROMPTS.into_iter().map(start).collect();
    let begun: Vec<String> = streams.iter_mut().map(EventStream::first_text).collect();
    harm();
    for ((stream, begun), plain) in streams.iter_mut().zip(begun).zip(plain) {
        let (rest, last) = stream.rest();
        assert_eq!(last, Event::Done);
        assert_eq!(&(begun + &rest), plain);
    }
}

#[test]
fn whatever_happens_to_the_draft_answers_are_whole_and_the_plain_ones() {
    let plain = plain_answers();
    let (set, client) = drafting();
    let draft = || set.pid("draft-worker");

    check_streams(&client, &plain, || {});
    assert!(client.metric("tandem_speculation_rounds", &[]) > 0.0);
    assert_eq!(client.metric("tandem_drafts_lost", &[]), 0.0);

    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let before = draft();
        check_streams(&client, &plain, || {
            send(before, signal);
            wait_until("the draft to be lost", || client.draft_state() == "waiting");
        });
        client.wait_until_attached();
        assert_ne!(draft(), before);
    }

    let stopped = draft();
    check_streams(&client, &plain, || {
        send(stopped, Signal::SIGSTOP);
        wait_until("the draft to be lost", || client.draft_state() == "waiting");
    });
    send(stopped, Signal::SIGCONT);
    client.wait_until_attached();
    assert_eq!(draft(), stopped);

    let dir = set.runtime_dir.path();
    let dir = dir.join(&entries(dir)[0]);
    check_streams(&client, &plain, || {
        fs::remove_file(dir.join("draft.sock")).unwrap();
    });
    assert_eq!(client.draft_state(), "attached");
    send(stopped, Signal::SIGKILL);
    wait_until("the draft to be lost", || client.draft_state() == "waiting");
    client.wait_until_attached();
    check_streams(&client, &plain, || {});
    assert_eq!(client.metric("tandem_answers_failed_total", &[]), 0.0);
    assert!(set.stop().success());
}

#[test]
fn a_router_or_target_that_comes_back_finds_the_draft_again() {
    let (set, client) = drafting();
    let before = client.complete(PROMPTS[0], 32);
    for role in ["target-worker", "router"] {
        let (killed, draft) = (set.pid(role), set.pid("draft-worker"));
        send(killed, Signal::SIGKILL);
        wait_until("its end", || !is_running(killed));
        client.wait_until_ready();
        client.wait_until_attached();
        assert_eq!(set.pid("draft-worker"), draft, "after the {role}");
        let rounds = client.metric("tandem_speculation_rounds", &[]);
        assert_eq!(client.complete(PROMPTS[0], 32), before, "after the {role}");
        assert!(client.metric("tandem_speculation_rounds", &[]) > rounds);
    }
    assert!(set.stop().success());
}

#[test]
fn a_set_speculates_unless_told_otherwise_and_tells_of_it() {
    let set = Set::start(&[]);
    let client = set.client();
    client.wait_until_attached();
    let body = completion(PROMPTS[0], 48);
    let timings = client.post("/v1/completions", &body).ok()["timings"].take();
    assert!(client.metric("tandem_speculation_rounds", &[]) > 0.0);
    assert_eq!(client.metric("tandem_draft_up", &[]), 1.0);
    assert!(client.metric("tandem_speculation_stage_seconds", &["verify"]) > 0.0);
    assert!(timings["draft_n"].as_u64().unwrap() > 0, "{timings}");
    let length = timings["speculation"]["acceptance_length"].as_f64();
    assert!(length.unwrap() >= 1.0, "{timings}");
    let props = client.get("/props").ok();
    let speculative = &props["speculative"];
    assert_eq!(speculative["mode"], "auto");
    assert_eq!(speculative["draft"]["model"], "demo-draft");
    assert_eq!(speculative["draft"]["transport"], "shm");
    assert_eq!(speculative["draft"]["block_size"], 16);
    assert!(set.stop().success());
}

#[test]
fn with_speculation_off_there_is_no_draft_process() {
    let set = Set::start(&["--speculation", "off"]);
    let client = set.client();
    client.complete(PROMPTS[0], 8);
    let roles: Vec<String> = children(set.supervisor.pid())
        .into_iter()
        .map(|(_, arguments)| arguments)
        .collect();
    assert_eq!(roles.len(), 2, "{roles:?}");
    assert!(!roles.iter().any(|role| role.contains(" draft-worker ")));
    let speculative = client.get("/props").ok()["speculative"].take();
    assert_eq!(speculative["mode"], "off");
    assert_eq!(speculative["draft"], Value::Null);
    assert_eq!(client.metric("tandem_draft_up", &[]), 0.0);
    assert!(set.stop().success());
}

#[test]
fn verify_lossless_checks_every_token_and_finds_none_wrong() {
    let set = Set::start(&["--speculation", "tree", "--verify-lossless"]);
    let client = set.client();
    client.wait_until_attached();
    thread::scope(|scope| {
        for prompt in PROMPTS {
            scope.spawn(|| client.complete(prompt, 64));
        }
    });
    assert!(client.metric("tandem_lossless_checked_tokens", &[]) > 0.0);
    assert_eq!(client.metric("tandem_lossless_mismatches", &[]), 0.0);
    assert!(set.stop().success());
}

#[test]
fn a_draft_that_cannot_start_is_told_of_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tandem.toml");
    // More memory than there is.
    fs::write(&path, "[draft-worker]\nctx-size = 1000000000000\n").unwrap();
    let mut set = Set::start(&["--config", path.to_str().unwrap()]);
    let client = set.client();
    client.complete(PROMPTS[0], 8);
    assert_eq!(client.draft_state(), "waiting");
    let pids = set.pids();
    set.supervisor.signal(Signal::SIGINT);
    assert!(set.supervisor.wait().success());
    let said = set.supervisor.stderr();
    assert!(said.contains("loading the draft demo-draft.gguf"), "{said}");
    assert!(said.contains("requests are answered without it"), "{said}");
    set.assert_nothing_is_left(&pids);
}
