//! What holds for every path.

use std::io::{Read, Write};

use serde_json::json;

use crate::client::{connect, exchange, request};
use crate::script::{Script, Step};
use crate::server::{Server, TOKENIZER};

#[test]
fn options_has_no_body_wherever_it_is_asked() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    for (path, allow) in [
        ("/v1/chat/completions", Some("POST")),
        ("/v1/messages/", Some("POST")),
        ("/v1/models", Some("GET,HEAD")),
        ("/nowhere", None),
    ] {
        let reply = exchange(server.address, &request("OPTIONS", path, "", b""));
        assert_eq!((reply.status, reply.body.len()), (204, 0), "{path}");
        assert_eq!(reply.header("allow"), allow, "{path}");
        assert!(reply.header("x-request-id").is_some());
    }
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    for (bytes, status) in [(60_000, 200), (70_000, 431)] {
        let header = format!("x-long: {}\r\n", "a".repeat(bytes));
        let reply = exchange(server.address, &request("GET", "/health", &header, b""));
        assert_eq!(reply.status, status);
        if status == 431 {
            assert_eq!(reply.json()["error"]["code"], "headers_too_large");
        }
    }
}

#[test]
fn what_is_not_offered_says_so() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    for path in ["/v1/embeddings", "/v1/rerank"] {
        let reply = server.post(path, &json!({ "input": "x" }));
        assert_eq!(reply.status, 501);
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "unsupported");
        assert!(error["message"].as_str().unwrap().starts_with(path));
    }
}

#[test]
fn clients_of_anthropic_are_answered_in_their_shape_everywhere() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let header = "anthropic-version: 2023-06-01\r\n";
    let reply = exchange(server.address, &request("GET", "/v1/files", header, b""));
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["type"], "not_found_error");
    assert!(
        server.get("/v1/files").json()["error"]
            .get("param")
            .is_some()
    );
}

#[test]
fn codex_finds_its_catalogue_among_the_models() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let list = server.get("/v1/models?client_version=0.169.0").json();
    let entry = &list["models"][0];
    assert_eq!(entry["slug"], list["data"][0]["id"]);
    assert_eq!(entry["context_window"], 512);
    assert_eq!(entry["shell_type"], "shell_command");
    // Without one of these Codex leaves the catalogue aside.
    for field in [
        "display_name",
        "visibility",
        "supported_in_api",
        "priority",
        "support_verbosity",
        "truncation_policy",
        "experimental_supported_tools",
        "base_instructions",
    ] {
        assert!(entry.get(field).is_some(), "{field}");
    }
    assert_eq!(
        entry["supported_reasoning_levels"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
    assert!(
        server
            .get("/v1/models?limit=5")
            .json()
            .get("models")
            .is_none()
    );
}

#[test]
fn slots_show_requests_and_none_of_their_words() {
    let script = Script::new(|_| Ok(vec![Step::Hang]));
    let server = Server::start(script.clone());
    assert_eq!(server.get("/slots").json(), json!([]));
    let mut stream = connect(server.address);
    let body = br#"{"prompt":"a secret"}"#;
    let bytes = request("POST", "/v1/completions", "x-request-id: mine\r\n", body);
    stream.write_all(&bytes).unwrap();
    server.wait_for_metric("tandem_answers_in_flight 1");
    let started = std::time::Instant::now();
    let slots = loop {
        let slots = server.get("/slots");
        if slots.json()[0]["state"] == "queued" {
            break slots;
        }
        assert!(
            started.elapsed() < crate::client::WATCHDOG,
            "{}",
            slots.text()
        );
    };
    assert!(!slots.text().contains("secret"));
    let slot = &slots.json()[0];
    assert_eq!(slot["request_id"], "mine");
    assert_eq!(slot["route"], "/v1/completions");
    assert_eq!(slot["is_processing"], false);
    assert_eq!(slot["n_ctx"], 512);
    assert!(slot["prompt_tokens"].as_u64().unwrap() > 0);
    drop(stream);
    script.wait_for_drops(1);
    server.wait_for_metric("tandem_answers_in_flight 0");
}

#[test]
fn a_client_that_asks_before_it_sends_gets_leave() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let mut stream = connect(server.address);
    let body = br#"{"prompt":"x"}"#;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut leave = [0; 25];
    stream.read_exact(&mut leave).unwrap();
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}
