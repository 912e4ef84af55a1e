//! How long the parts of a request may take.

use std::io::{Read, Write};
use std::time::Duration;

use router::{RouterConfig, TimeLimits};
use serde_json::{Value, json};

use crate::client::connect;
use crate::script::{Script, Step, opening, parsed, token};
use crate::server::{Server, TOKENIZER};

const CHAT: &str = "/v1/chat/completions";
const SHORT: Duration = Duration::from_millis(200);
const NONE: TimeLimits = TimeLimits {
    header: Duration::ZERO,
    body: Duration::ZERO,
    queue: Duration::ZERO,
    first_token: Duration::ZERO,
    between_tokens: Duration::ZERO,
    request: Duration::ZERO,
};

fn server(times: TimeLimits, script: Script) -> Server {
    let config = RouterConfig {
        times,
        ..RouterConfig::default()
    };
    Server::with(config, script)
}

fn hello(stream: bool) -> Value {
    json!({ "stream": stream, "messages": [{ "role": "user", "content": "hello" }] })
}

/// Hangs in the queue, before its first token, or behind it.
fn hangs_behind(steps: usize) -> Script {
    Script::new(move |request| {
        let id = TOKENIZER.encode("x", parsed())[0];
        let mut all = opening(request);
        all.push(token(request, id));
        all.truncate(steps);
        all.push(Step::Hang);
        Ok(all)
    })
}

#[test]
fn what_takes_too_long_is_ended_and_told() {
    let queue = TimeLimits {
        queue: SHORT,
        ..NONE
    };
    let first_token = TimeLimits {
        first_token: SHORT,
        ..NONE
    };
    let next_token = TimeLimits {
        between_tokens: SHORT,
        ..NONE
    };
    let whole = TimeLimits {
        request: SHORT,
        ..NONE
    };
    for (times, steps, wait) in [
        (queue, 0, "queue"),
        (first_token, 1, "first_token"),
        (next_token, 2, "next_token"),
        (whole, 0, "request"),
        (whole, 2, "request"),
    ] {
        let script = hangs_behind(steps);
        let server = server(times, script.clone());
        let reply = server.post(CHAT, &hello(false));
        assert_eq!(reply.status, 504, "{wait}");
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("server_error"), &json!("timeout"))
        );
        let (events, done) = server.post(CHAT, &hello(true)).events();
        assert!(done);
        assert_eq!(events.last().unwrap()["error"]["code"], "timeout");
        // The target computes for nobody.
        script.wait_for_drops(2);
        server.wait_for_metric(&format!("tandem_timeouts_total{{wait=\"{wait}\"}} 2"));
    }
}

#[test]
fn a_head_that_does_not_come_to_its_end_is_not_waited_for() {
    let times = TimeLimits {
        header: SHORT,
        ..NONE
    };
    let server = server(times, Script::says(&TOKENIZER, "x"));
    let mut stream = connect(server.address);
    stream.write_all(b"GET /health HTTP/1.1\r\nhost:").unwrap();
    let mut rest = Vec::new();
    // The watchdog of `connect` fails the read of a connection that stays.
    stream.read_to_end(&mut rest).unwrap();
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_body_that_does_not_come_to_its_end_is_not_waited_for() {
    let times = TimeLimits {
        body: SHORT,
        ..NONE
    };
    let server = server(times, Script::says(&TOKENIZER, "x"));
    let mut stream = connect(server.address);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 408");
}
