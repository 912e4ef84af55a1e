//! Answers that do not come to a good end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use router::RouterConfig;
use serde_json::{Value, json};
use worker_api::WorkerError;

use crate::client::{connect, request};
use crate::script::{Script, Step, opening, parsed, token};
use crate::server::{Server, TOKENIZER};

const CHAT: &str = "/v1/chat/completions";

fn hello(stream: bool) -> Value {
    json!({ "stream": stream, "messages": [{ "role": "user", "content": "hello" }] })
}

/// Some text, then `end`.
fn starts_then(end: fn() -> Step) -> Script {
    Script::new(move |request| {
        let mut steps = opening(request);
        let ids = TOKENIZER.encode("</think>some text", parsed());
        steps.extend(ids.into_iter().map(|id| token(request, id)));
        steps.push(end());
        Ok(steps)
    })
}

/// Sends a request and reads until `text` has come.
fn read_until(server: &Server, body: &Value, text: &str) -> TcpStream {
    let mut stream = connect(server.address);
    let bytes = request("POST", CHAT, "", body.to_string().as_bytes());
    stream.write_all(&bytes).unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(text) {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
    stream
}

#[test]
fn a_client_that_leaves_a_stream_cancels_the_call() {
    let script = starts_then(|| Step::Hang);
    let server = Server::start(script.clone());
    let stream = read_until(&server, &hello(true), "some");
    drop(stream);
    script.wait_for_drops(1);
    server.wait_for_metric("tandem_requests_cancelled_total 1");
    server.wait_for_metric("tandem_answers_in_flight 0");
}

#[test]
fn a_client_that_does_not_wait_for_a_whole_answer_cancels_the_call() {
    let script = starts_then(|| Step::Hang);
    let server = Server::start(script.clone());
    let mut stream = connect(server.address);
    let body = hello(false).to_string();
    stream
        .write_all(&request("POST", CHAT, "", body.as_bytes()))
        .unwrap();
    server.wait_for_metric("tandem_answers_in_flight 1");
    drop(stream);
    script.wait_for_drops(1);
    server.wait_for_metric("tandem_requests_cancelled_total 1");
}

#[test]
fn an_error_in_mid_stream_is_the_last_event_before_the_end() {
    let script = starts_then(|| Step::Fail(WorkerError::Internal("device lost".to_owned())));
    let server = Server::start(script.clone());
    let reply = server.post(CHAT, &hello(true));
    assert_eq!(reply.status, 200);
    let (events, done) = reply.events();
    assert!(done, "clients wait for it");
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["message"], "device lost");
    assert_eq!(error["type"], "server_error");
    assert_eq!(error["code"], "worker_failed");
    server.wait_for_metric("tandem_answers_failed_total 1");
    let reply = server.post(CHAT, &hello(false));
    assert_eq!(reply.status, 500);
    assert_eq!(reply.json()["error"]["code"], "worker_failed");
}

#[test]
fn events_that_just_end_are_an_error() {
    let script = Script::new(|request| Ok(opening(request)));
    let server = Server::start(script);
    assert_eq!(server.post(CHAT, &hello(false)).status, 500);
    let (events, done) = server.post(CHAT, &hello(true)).events();
    assert!(done && events.last().unwrap()["error"].is_object());
}

#[test]
fn more_answers_than_may_be_in_flight_are_refused_at_once() {
    let script = starts_then(|| Step::Hang);
    let config = RouterConfig {
        max_in_flight: 2,
        ..RouterConfig::default()
    };
    let server = Server::with(config, script.clone());
    let streams = [(); 2].map(|()| read_until(&server, &hello(true), "some"));
    let reply = server.post(CHAT, &hello(true));
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("retry-after"), Some("1"));
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["code"], "queue_full");
    server.wait_for_metric("tandem_requests_rejected_total 1");
    assert_eq!(server.get("/health/ready").json()["status"], "busy");
    assert_eq!(server.get("/health/live").status, 200);
    drop(streams);
    script.wait_for_drops(2);
    server.wait_for_metric("tandem_answers_in_flight 0");
    let mut three = hello(false);
    three["n"] = json!(3);
    let reply = server.post(CHAT, &three);
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["param"], "n");
}

#[test]
fn refusals_of_the_worker_have_their_status() {
    for (refusal, status, kind, code) in [
        (
            WorkerError::Invalid("m".into()),
            400,
            "invalid_request_error",
            json!(null),
        ),
        (
            WorkerError::PromptTooLong("m".into()),
            400,
            "invalid_request_error",
            json!("context_length_exceeded"),
        ),
        (
            WorkerError::QueueFull("m".into()),
            429,
            "rate_limit_error",
            json!("queue_full"),
        ),
        (
            WorkerError::Unavailable("m".into()),
            503,
            "server_error",
            json!("worker_unavailable"),
        ),
        (
            WorkerError::Internal("m".into()),
            500,
            "server_error",
            json!("worker_failed"),
        ),
    ] {
        let server = Server::start(Script::new(move |_| Err(refusal.clone())));
        for stream in [false, true] {
            let reply = server.post(CHAT, &hello(stream));
            assert_eq!(reply.status, status);
            assert_eq!(
                reply.header("retry-after").is_some(),
                [429, 503].contains(&status)
            );
            // Where clients look for it, the code stands in the message as well.
            let message = match code == "context_length_exceeded" {
                true => "m (context_length_exceeded)",
                false => "m",
            };
            let expected = json!({ "message": message, "type": kind, "param": null, "code": code });
            assert_eq!(reply.json()["error"], expected);
        }
    }
}

#[test]
fn a_panic_is_an_internal_error_and_the_server_lives_on() {
    let server = Server::start(Script::new(|_| panic!("a bug in the script")));
    let reply = server.post(CHAT, &hello(false));
    assert_eq!(reply.status, 500);
    assert_eq!(reply.json()["error"]["type"], "server_error");
    assert!(!reply.text().contains("script"));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_silent_stream_shows_signs_of_life() {
    let script = Script::new(|_| Ok(vec![Step::Hang]));
    let config = RouterConfig {
        keep_alive: Duration::from_millis(1),
        ..RouterConfig::default()
    };
    let server = Server::with(config, script.clone());
    let stream = read_until(&server, &hello(true), ": keep-alive\n");
    let delta = read_until(&server, &hello(true), "\"delta\":{},");
    drop((stream, delta));
    script.wait_for_drops(2);
}

#[test]
fn a_shutdown_waits_for_answers_and_ends_those_that_last() {
    let script = starts_then(|| Step::Hang);
    let config = RouterConfig {
        drain_timeout: Duration::from_millis(50),
        ..RouterConfig::default()
    };
    let mut server = Server::with(config, script.clone());
    let mut stream = read_until(&server, &hello(true), "some");
    server.shutdown.cancel();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("the server is shutting down"), "{rest}");
    assert!(rest.contains("data: [DONE]\n"), "{rest}");
    server.stop();
    script.wait_for_drops(1);
    assert!(TcpStream::connect(server.address).is_err());
}
