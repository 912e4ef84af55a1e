//! The Messages API, whole and streamed.

use std::io::{Read, Write};
use std::time::Duration;

use router::RouterConfig;
use serde_json::{Value, json};
use worker_api::WorkerError;

use crate::client::{Reply, connect, request};
use crate::script::{Script, Step, answer, opening, parsed, token};
use crate::server::{Server, TOKENIZER};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn hello(fields: Value) -> Value {
    let mut body = json!({
        "model": "claude-x", "max_tokens": 100, "messages": [{ "role": "user", "content": "hello" }],
    });
    let object = body.as_object_mut().unwrap();
    object.extend(fields.as_object().unwrap().clone());
    body
}

fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body
}

/// The types of events, those of blocks and deltas with what they are of; pings left out.
fn order(events: &[Value]) -> Vec<String> {
    let kind = |event: &Value| {
        let kind = event["type"].as_str().unwrap();
        let of = [&event["content_block"]["type"], &event["delta"]["type"]];
        match of.into_iter().find_map(Value::as_str) {
            Some(of) => format!("{kind} {} {of}", event["index"]),
            None if event["index"].is_u64() => format!("{kind} {}", event["index"]),
            None => kind.to_owned(),
        }
    };
    let mut order: Vec<String> = events.iter().map(kind).filter(|k| k != "ping").collect();
    order.dedup();
    order
}

/// What a client makes of a stream.
fn message(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut json = String::new();
    for event in events {
        let content = message["content"].as_array_mut().unwrap();
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(index, content.len(), "without gaps");
                content.push(event["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                assert_eq!(index + 1, content.len(), "one block at a time");
                let delta = event["delta"].as_object().unwrap();
                for (key, new) in delta.iter().filter(|(key, _)| *key != "type") {
                    let new = new.as_str().unwrap();
                    match key.as_str() {
                        "partial_json" => json.push_str(new),
                        key => {
                            let old = content[index][key].as_str().unwrap();
                            content[index][key] = format!("{old}{new}").into();
                        }
                    }
                }
            }
            "content_block_stop" if !json.is_empty() => {
                content[index]["input"] = serde_json::from_str(&json).unwrap();
            }
            "message_delta" => {
                let (delta, usage) = (event["delta"].clone(), event["usage"].clone());
                let object = message.as_object_mut().unwrap();
                object.extend(delta.as_object().unwrap().clone());
                object["usage"] = usage;
            }
            _ => {}
        }
    }
    message
}

fn without_id(mut message: Value) -> Value {
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    message["id"] = Value::Null;
    message
}

/// Asks for an answer whole and streamed, which have to be the same; gives the message and the order of events.
fn both(server: &Server, body: &Value) -> (Value, Vec<String>) {
    let whole = server.post(MESSAGES, body);
    assert_eq!(whole.status, 200, "{}", whole.text());
    let whole = without_id(whole.json());
    let events = server.post(MESSAGES, &streamed(body)).named_events();
    assert_eq!(events[1]["type"], "ping");
    assert_eq!(without_id(message(&events)), whole);
    (whole, order(&events))
}

const THINKING: [&str; 4] = [
    "content_block_start 0 thinking",
    "content_block_delta 0 thinking_delta",
    "content_block_delta 0 signature_delta",
    "content_block_stop 0",
];

fn framed<'a>(blocks: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut order = vec!["message_start"];
    order.extend(blocks);
    order.extend(["message_delta", "message_stop"]);
    order
}

#[test]
fn reasoning_and_text_are_blocks_in_order() {
    let server = Server::start(Script::says(&TOKENIZER, "why\n</think>\n\nbecause, é中"));
    let (message, order) = both(&server, &hello(json!({})));
    let text = [
        "content_block_start 1 text",
        "content_block_delta 1 text_delta",
        "content_block_stop 1",
    ];
    assert_eq!(order, framed(THINKING.into_iter().chain(text)));
    let expected = json!([
        { "type": "thinking", "thinking": "why", "signature": "dGFuZGVt" },
        { "type": "text", "text": "because, é中" },
    ]);
    assert_eq!(message["content"], expected);
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(message["stop_sequence"], Value::Null);
    let keys: Vec<&String> = message.as_object().unwrap().keys().collect();
    let expected = [
        "id",
        "type",
        "role",
        "model",
        "content",
        "stop_reason",
        "stop_sequence",
        "usage",
    ];
    assert_eq!(keys, expected, "no foreign fields");
    assert_eq!(
        message["model"],
        server.get("/v1/models").json()["data"][0]["id"]
    );
}

#[test]
fn text_alone_and_reasoning_alone_are_one_block() {
    let server = Server::start(Script::says(&TOKENIZER, "</think>text"));
    let (message, order) = both(&server, &hello(json!({})));
    let text = [
        "content_block_start 0 text",
        "content_block_delta 0 text_delta",
        "content_block_stop 0",
    ];
    assert_eq!(order, framed(text));
    assert_eq!(
        message["content"],
        json!([{ "type": "text", "text": "text" }])
    );
    let server = Server::start(Script::says(&TOKENIZER, "on and on"));
    let (message, order) = both(&server, &hello(json!({ "max_tokens": 2 })));
    assert_eq!(order, framed(THINKING));
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["usage"]["output_tokens"], 2);
}

#[test]
fn an_answer_of_nothing_has_no_block() {
    let server = Server::start(Script::says(&TOKENIZER, "</think>"));
    let (message, order) = both(&server, &hello(json!({})));
    assert_eq!(order, framed([]));
    assert_eq!(message["content"], json!([]));
}

#[test]
fn the_text_that_ended_an_answer_is_told() {
    let server = Server::start(Script::says(&TOKENIZER, "</think>one two END three"));
    let body = hello(json!({ "stop_sequences": ["never", "END"] }));
    let (message, _) = both(&server, &body);
    assert_eq!(
        message["content"],
        json!([{ "type": "text", "text": "one two " }])
    );
    assert_eq!(message["stop_reason"], "stop_sequence");
    assert_eq!(message["stop_sequence"], "END");
}

#[test]
fn the_prompt_is_counted_at_the_beginning_and_without_the_target() {
    let script = Script::says(&TOKENIZER, "</think>x");
    let server = Server::start(script.clone());
    let body = hello(json!({ "system": "be brief" }));
    let events = server.post(MESSAGES, &streamed(&body)).named_events();
    let tokens = script.asked()[0].prompt.len() as u64;
    // One token of each prompt was cached, the script says.
    let usage = json!({
        "input_tokens": tokens - 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1, "output_tokens": 0,
        "output_tokens_details": { "thinking_tokens": 0 },
    });
    assert_eq!(events[0]["message"]["usage"], usage);
    let end = events
        .iter()
        .find(|e| e["type"] == "message_delta")
        .unwrap();
    assert_eq!(end["usage"]["input_tokens"], tokens - 1);
    assert_eq!(end["usage"]["output_tokens"], 3);
    let down = Server::start(Script::says(&TOKENIZER, "x").down());
    let reply = down.post(COUNT, &body);
    assert_eq!(reply.json(), json!({ "input_tokens": tokens }));
    let chat = json!({ "messages": [{ "role": "system", "content": "be brief" }, { "role": "user", "content": "hello" }] });
    let reply = down.post("/v1/chat/completions/input_tokens", &chat);
    assert_eq!(reply.json()["input_tokens"], tokens, "both render alike");
}

#[test]
fn the_opening_does_not_wait_for_the_target() {
    let script = Script::new(|_| Ok(vec![Step::Hang]));
    let config = RouterConfig {
        keep_alive: Duration::from_millis(20),
        ..RouterConfig::default()
    };
    let server = Server::with(config, script.clone());
    let mut stream = connect(server.address);
    let body = streamed(&hello(json!({}))).to_string();
    let bytes = request("POST", "/v1/messages?beta=true", "", body.as_bytes());
    stream.write_all(&bytes).unwrap();
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while seen
        .matches("event: ping\ndata: {\"type\":\"ping\"}\n")
        .count()
        < 3
    {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(seen.contains("event: message_start\n"), "{seen}");
    assert!(!seen.contains("content_block"), "{seen}");
    drop(stream);
    script.wait_for_drops(1);
    server.wait_for_metric("tandem_requests_cancelled_total 1");
}

#[test]
fn refusals_have_the_shape_of_this_api() {
    for (refusal, status, kind) in [
        (
            WorkerError::Invalid("m".into()),
            400,
            "invalid_request_error",
        ),
        (WorkerError::QueueFull("m".into()), 429, "rate_limit_error"),
        (
            WorkerError::Unavailable("m".into()),
            503,
            "overloaded_error",
        ),
        (WorkerError::Internal("m".into()), 500, "api_error"),
    ] {
        let server = Server::start(Script::new(move |_| Err(refusal.clone())));
        for body in [hello(json!({})), streamed(&hello(json!({})))] {
            let reply = server.post(MESSAGES, &body);
            assert_refused(&reply, status, kind, "m");
            assert_eq!(
                reply.header("retry-after").is_some(),
                [429, 503].contains(&status)
            );
        }
    }
}

fn assert_refused(reply: &Reply, status: u16, kind: &str, message: &str) {
    assert_eq!(reply.status, status, "{}", reply.text());
    let id = reply.header("request-id").unwrap();
    let expected = json!({
        "type": "error", "error": { "type": kind, "message": message }, "request_id": id,
    });
    assert_eq!(reply.json(), expected);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-request-id"), Some(id));
}

#[test]
fn bad_requests_are_refused_before_a_stream_begins() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let picture = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
    for (body, message) in [
        (json!({ "max_tokens": 5 }), "`messages` is missing"),
        (
            hello(json!({ "messages": picture, "stream": true })),
            "`messages[0].content[0]`: a part of type the string \"image\" is not supported; this model reads text only",
        ),
    ] {
        for path in [MESSAGES, COUNT] {
            assert_refused(
                &server.post(path, &body),
                400,
                "invalid_request_error",
                message,
            );
        }
    }
    let long = "word ".repeat(600);
    let long = streamed(&hello(
        json!({ "messages": [{ "role": "user", "content": long }] }),
    ));
    let tokens = server.post(COUNT, &long).json()["input_tokens"].clone();
    let message = format!("prompt is too long: {tokens} tokens > 512 maximum");
    assert_refused(
        &server.post(MESSAGES, &long),
        400,
        "invalid_request_error",
        &message,
    );
    let reply = server.get("/v1/messages/batches");
    assert_refused(
        &reply,
        404,
        "not_found_error",
        "there is no /v1/messages/batches",
    );
    let reply = server.get(MESSAGES);
    assert_refused(
        &reply,
        405,
        "invalid_request_error",
        "/v1/messages does not take GET",
    );
    assert_eq!(reply.header("allow"), Some("POST"));
}

#[test]
fn a_thread_is_refused_as_clients_understand_it() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let body = hello(json!({ "thread": { "type": "create" } }));
    let reply = server.post("/v1/messages?beta=true", &body);
    assert_eq!(reply.status, 400);
    let details = json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] });
    assert_eq!(reply.json()["error"]["details"], details);
    let body = hello(json!({ "thread": null, "thinking": { "type": "between_tools" } }));
    assert_eq!(server.post(MESSAGES, &body).status, 200);
}

#[test]
fn an_unknown_model_is_refused_where_names_count() {
    let config = RouterConfig {
        strict_model_names: true,
        ..RouterConfig::default()
    };
    let server = Server::with(config, Script::says(&TOKENIZER, "x"));
    let reply = server.post(MESSAGES, &hello(json!({})));
    assert_eq!(
        (reply.status, reply.json()["error"]["type"].as_str()),
        (404, Some("not_found_error"))
    );
}

#[test]
fn an_error_in_mid_stream_is_the_last_event() {
    let script = Script::new(|request| {
        let mut steps = opening(request);
        let ids = TOKENIZER.encode("</think>some text", parsed());
        steps.extend(ids.into_iter().map(|id| token(request, id)));
        steps.push(Step::Fail(WorkerError::Internal("device lost".to_owned())));
        Ok(steps)
    });
    let server = Server::start(script);
    let reply = server.post(MESSAGES, &streamed(&hello(json!({}))));
    assert_eq!(reply.status, 200);
    let events = reply.named_events();
    let error = events.last().unwrap();
    assert_eq!(
        error["error"],
        json!({ "type": "api_error", "message": "device lost" })
    );
    assert_eq!(error["request_id"].as_str(), reply.header("request-id"));
    let ended = |e: &Value| e["type"] == "message_stop" || e["type"] == "message_delta";
    assert!(!events.iter().any(ended));
    assert!(!reply.text().contains("[DONE]"));
}

#[test]
fn a_worker_that_fails_at_once_is_no_stream() {
    let fail = || Step::Fail(WorkerError::Internal("device lost".to_owned()));
    let server = Server::start(Script::new(move |_| Ok(vec![fail()])));
    let reply = server.post(MESSAGES, &streamed(&hello(json!({}))));
    assert_refused(&reply, 500, "api_error", "device lost");
}

#[test]
fn history_reaches_the_prompt() {
    let script = Script::new(|request| Ok(answer(request, &[])));
    let server = Server::start(script.clone());
    let tools = json!([{ "name": "weather", "description": "tells", "input_schema": { "type": "object" } }]);
    let body = hello(json!({ "tools": tools, "messages": [
        { "role": "user", "content": "rain in Ulm?" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "city": "Ulm" } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "toolu_1", "content": "it rains" }] },
    ] }));
    assert_eq!(server.post(MESSAGES, &body).status, 200);
    let chat = json!({
        "tools": [{ "type": "function", "function": { "name": "weather", "description": "tells", "parameters": { "type": "object" } } }],
        "messages": [
            { "role": "user", "content": "rain in Ulm?" },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "call_1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Ulm\"}" } },
            ] },
            { "role": "tool", "tool_call_id": "call_1", "content": "it rains" },
        ],
    });
    assert_eq!(server.post("/v1/chat/completions", &chat).status, 200);
    let asked = script.asked();
    assert_eq!(asked[0].prompt, asked[1].prompt, "both APIs render alike");
    let prompt = TOKENIZER.decode(&asked[0].prompt, true);
    assert!(prompt.contains("it rains"), "{prompt}");
}
