//! Processes end, as asked or by force.

use nix::sys::signal::Signal;

use crate::http::{Client, Event, completion, endless};
use crate::processes::{Process, entries, is_running, send, tandem, wait_until};
use crate::set::Set;

const PROMPT: &str = "def quicksort(items):\n";
const MAX_TOKENS: u32 = 32;
/// Long enough to be under way when the signal comes.
const LONG: u32 = 400;

#[test]
fn at_ctrl_c_running_answers_come_to_their_end_and_nothing_is_left() {
    let mut set = Set::start(&[]);
    let pids = set.pids();
    let client = set.client();
    let mut body = completion(PROMPT, LONG);
    body["ignore_eos"] = true.into();
    body["stream_options"] = serde_json::json!({"include_usage": true});
    let mut stream = client.stream("/v1/completions", &body);
    stream.first_text();
    set.supervisor.signal(Signal::SIGINT);
    wait_until("the router to take no more", || {
        let answer = client.try_get("/health");
        answer.is_err() || answer.is_ok_and(|reply| reply.status == 503)
    });
    let mut generated = 0;
    let last = loop {
        match stream.next() {
            Event::Part(part) => {
                generated = part["usage"]["completion_tokens"]
                    .as_u64()
                    .unwrap_or(generated);
            }
            last => break last,
        }
    };
    assert_eq!((last, generated), (Event::Done, LONG.into()));
    assert!(set.supervisor.wait().success());
    set.assert_nothing_is_left(&pids);
}

#[test]
fn a_second_ctrl_c_ends_the_set_at_once() {
    let mut set = Set::start(&["--drain-seconds", "600"]);
    let pids = set.pids();
    let client = set.client();
    let mut stream = client.stream("/v1/completions", &endless(PROMPT));
    stream.first_text();
    set.supervisor.signal(Signal::SIGINT);
    wait_until("the router to take no more", || {
        let answer = client.try_get("/health");
        answer.is_err() || answer.is_ok_and(|reply| reply.status == 503)
    });
    set.supervisor.signal(Signal::SIGINT);
    assert!(set.supervisor.wait().success());
    let (_, last) = stream.rest();
    assert_eq!(last, Event::End, "not [DONE]: the answer is not whole");
    set.assert_nothing_is_left(&pids);
}

#[test]
fn when_the_supervisor_is_killed_its_processes_end_and_the_next_start_cleans_up() {
    let mut set = Set::start(&[]);
    set.client().wait_until_attached();
    let pids = set.pids();
    send(set.supervisor.pid(), Signal::SIGKILL);
    assert!(!set.supervisor.wait().success());
    wait_until("the processes to end", || {
        !pids.iter().any(|&pid| is_running(pid))
    });
    let left = entries(set.runtime_dir.path());
    assert_eq!(left.len(), 1, "{left:?}");
    let next = Set::start_in(set.runtime_dir, &[]);
    let found = entries(next.runtime_dir.path());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_ne!(found, left);
    assert!(next.stop().success());
}

#[test]
fn a_killed_worker_fails_its_streams_clearly_and_comes_back() {
    let set = Set::start(&[]);
    let client = set.client();
    let before = client.complete(PROMPT, MAX_TOKENS);
    let mut stream = client.stream("/v1/completions", &endless(PROMPT));
    stream.first_text();
    let worker = set.pid("target-worker");
    send(worker, Signal::SIGKILL);
    let (_, last) = stream.rest();
    let Event::Part(part) = last else {
        panic!("an error, not {last:?}");
    };
    assert_unavailable(&part);
    assert_eq!(stream.next(), Event::Done, "clients wait for it");

    let failed = client.metric("tandem_answers_failed_total", &[]);
    assert_eq!(failed, 1.0);
    client.wait_until_ready();
    assert_ne!(set.pid("target-worker"), worker);
    assert_eq!(client.complete(PROMPT, MAX_TOKENS), before);
    assert!(set.stop().success());
}

#[test]
fn without_a_worker_requests_are_refused_with_503() {
    let runtime_dir = tempfile::tempdir().unwrap();
    let (_router, client) = lone_router(runtime_dir.path());
    let reply = client.post("/v1/completions", &completion(PROMPT, MAX_TOKENS));
    assert_eq!(reply.status, 503);
    assert!(reply.headers.contains_key("retry-after"));
    assert_unavailable(&reply.json());
    assert_eq!(client.get("/health").status, 503);
    assert_eq!(client.get("/health/live").status, 200);
}

#[test]
fn a_killed_router_comes_back_at_its_address() {
    let set = Set::start(&[]);
    let client = set.client();
    let before = client.complete(PROMPT, MAX_TOKENS);
    let router = set.pid("router");
    send(router, Signal::SIGKILL);
    wait_until("the router to end", || !is_running(router));
    client.wait_until_ready();
    assert_ne!(set.pid("router"), router);
    assert_eq!(client.complete(PROMPT, MAX_TOKENS), before);
    assert!(set.stop().success());
}

/// A router whose worker never comes.
fn lone_router(runtime_dir: &std::path::Path) -> (Process, Client) {
    let address = crate::starting::free_address();
    let listen = address.to_string();
    let target = format!("unix:{}", runtime_dir.join("nobody.sock").display());
    let args = ["router", "--listen", &listen, "--target", &target];
    let router = Process::start(tandem(runtime_dir, &args));
    let client = Client::new(address);
    wait_until("the router to listen", || {
        client.try_get("/health/live").is_ok()
    });
    (router, client)
}

fn assert_unavailable(body: &serde_json::Value) {
    let error = &body["error"];
    assert_eq!(error["type"], "server_error", "{body}");
    assert_eq!(error["code"], "worker_unavailable", "{body}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("the target worker is not available"),
        "{message}"
    );
}
