//! Requests that are refused, each with its status, its field and its code.

use std::io::{Read, Write};

use router::RouterConfig;
use serde_json::{Value, json};

use crate::client::connect;
use crate::script::Script;
use crate::server::{Server, TOKENIZER};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A chat or a completion, whole but for `fields`.
fn refused(server: &Server, path: &str, fields: &Value, status: u16, param: &str, code: Value) {
    let mut body = if path == CHAT {
        json!({ "messages": [{ "role": "user", "content": "hello" }] })
    } else {
        json!({ "prompt": "hello" })
    };
    let object = body.as_object_mut().unwrap();
    object.extend(fields.as_object().unwrap().clone());
    let reply = server.post(path, &body);
    assert_eq!(reply.status, status, "{fields}: {}", reply.text());
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "invalid_request_error", "{fields}");
    assert_eq!(error["param"], param, "{fields}: {error}");
    assert_eq!(error["code"], code, "{fields}: {error}");
    assert!(!error["message"].as_str().unwrap().is_empty());
}

#[test]
fn wrong_values_name_their_field() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    for (fields, param) in [
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": -0.1 }), "temperature"),
        (json!({ "temperature": 2.1 }), "temperature"),
        (json!({ "temperature": 1e300 }), "temperature"),
        (json!({ "top_p": 0 }), "top_p"),
        (json!({ "top_p": 1.5 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "top_k": 1.5 }), "top_k"),
        (json!({ "min_p": 2 }), "min_p"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        (json!({ "repeat_penalty": -1 }), "repeat_penalty"),
        (json!({ "presence_penalty": 3 }), "presence_penalty"),
        (json!({ "frequency_penalty": [] }), "frequency_penalty"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": -5 }), "max_tokens"),
        (json!({ "max_tokens": 1.5 }), "max_tokens"),
        (json!({ "max_tokens": "10" }), "max_tokens"),
        (json!({ "min_tokens": -1 }), "min_tokens"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 17 }), "n"),
        (json!({ "n": 1e18 }), "n"),
        (json!({ "seed": 1.5 }), "seed"),
        (json!({ "seed": 1e30 }), "seed"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": true }), "stream_options"),
        (
            json!({ "stream_options": { "include_usage": 1 } }),
            "stream_options.include_usage",
        ),
        (json!({ "stop": 5 }), "stop"),
        (json!({ "stop": ["a", 5] }), "stop[1]"),
        (json!({ "stop": vec!["a"; 17] }), "stop"),
        (json!({ "stop": "a".repeat(2000) }), "stop"),
        (json!({ "logit_bias": [] }), "logit_bias"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias.1"),
        (json!({ "logit_bias": { "8192": 1 } }), "logit_bias"),
        (json!({ "model": 1 }), "model"),
    ] {
        refused(&server, CHAT, &fields, 400, param, Value::Null);
        refused(&server, COMPLETIONS, &fields, 400, param, Value::Null);
    }
}

#[test]
fn wrong_conversations_name_the_message() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let user = json!({ "role": "user", "content": "x" });
    let assistant = json!({ "role": "assistant", "content": "x" });
    for (messages, param, code) in [
        (json!(null), "messages", json!(null)),
        (json!("hi"), "messages", json!(null)),
        (json!([]), "messages", json!(null)),
        (json!([user, 1]), "messages[1]", json!(null)),
        (json!([{ "content": "x" }]), "messages[0].role", json!(null)),
        (
            json!([{ "role": "robot", "content": "x" }]),
            "messages[0].role",
            json!(null),
        ),
        (
            json!([{ "role": "user" }]),
            "messages[0].content",
            json!(null),
        ),
        (
            json!([{ "role": "user", "content": 5 }]),
            "messages[0].content",
            json!(null),
        ),
        (
            json!([{ "role": "assistant" }]),
            "messages[0].content",
            json!(null),
        ),
        (json!([user, assistant, assistant]), "messages", json!(null)),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]),
            "messages[0].content[0]",
            json!("unsupported"),
        ),
        (
            json!([{ "role": "user", "content": [{ "type": "text" }] }]),
            "messages[0].content[0].text",
            json!(null),
        ),
        (
            json!([{ "role": "assistant", "tool_calls": [{ "id": "a" }] }]),
            "messages[0].tool_calls[0].function",
            json!(null),
        ),
    ] {
        refused(
            &server,
            CHAT,
            &json!({ "messages": messages }),
            400,
            param,
            code,
        );
    }
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let unsupported = || json!("unsupported");
    for (fields, param, code) in [
        (
            json!({ "modalities": ["text", "audio"] }),
            "modalities",
            unsupported(),
        ),
        (json!({ "audio": { "voice": "x" } }), "audio", unsupported()),
        (
            json!({ "functions": [{ "name": "f" }] }),
            "functions",
            unsupported(),
        ),
        (json!({ "tool_choice": "required" }), "tools", json!(null)),
        (json!({ "tool_choice": "f" }), "tool_choice", json!(null)),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "f" } } }),
            "tool_choice",
            json!(null),
        ),
        (
            json!({ "tool_choice": { "type": "function" } }),
            "tool_choice.function.name",
            json!(null),
        ),
        (
            json!({ "tools": [{ "type": "custom", "custom": { "name": "f" } }] }),
            "tools[0].type",
            unsupported(),
        ),
        (
            json!({ "tools": [{ "function": { "name": "f", "parameters": [] } }] }),
            "tools[0].function.parameters",
            json!(null),
        ),
        (json!({ "tool_choice": 3 }), "tool_choice", json!(null)),
        (
            json!({ "tools": [{ "type": "function" }] }),
            "tools[0].function.name",
            json!(null),
        ),
        (json!({ "top_logprobs": 3 }), "top_logprobs", json!(null)),
        (
            json!({ "logprobs": true, "top_logprobs": 21 }),
            "top_logprobs",
            json!(null),
        ),
        (
            json!({ "chat_template_kwargs": 1 }),
            "chat_template_kwargs",
            json!(null),
        ),
        (
            json!({ "function_call": "auto" }),
            "function_call",
            unsupported(),
        ),
        (
            json!({ "continue_final_message": true }),
            "continue_final_message",
            json!(null),
        ),
        (
            json!({
                "continue_final_message": true, "add_generation_prompt": true,
                "messages": [{ "role": "assistant", "content": "x" }],
            }),
            "add_generation_prompt",
            json!(null),
        ),
        (
            json!({ "prefill_compression": "sometimes" }),
            "prefill_compression",
            json!(null),
        ),
        (
            json!({ "prefill_compression": { "mode": true } }),
            "prefill_compression.mode",
            json!(null),
        ),
        (
            json!({ "prefill_compression": { "keep_ratio": 0 } }),
            "prefill_compression.keep_ratio",
            json!(null),
        ),
        (
            json!({ "prefill_compression": { "ratio": 1 } }),
            "prefill_compression.ratio",
            json!("unknown_field"),
        ),
    ] {
        refused(&server, CHAT, &fields, 400, param, code);
    }
    for (fields, param, code) in [
        (json!({ "prompt": null }), "prompt", json!(null)),
        (json!({ "prompt": "" }), "prompt", json!(null)),
        (json!({ "prompt": [] }), "prompt", json!(null)),
        (json!({ "prompt": ["a", 1] }), "prompt[1]", json!(null)),
        (json!({ "prompt": [1, "a"] }), "prompt[1]", json!(null)),
        (json!({ "prompt": [1, -1] }), "prompt[1]", json!(null)),
        (json!({ "prompt": [8192] }), "prompt", json!(null)),
        (json!({ "prompt": { "a": 1 } }), "prompt", json!(null)),
        (json!({ "prompt": vec!["a"; 65] }), "prompt", json!(null)),
        (json!({ "suffix": "x" }), "suffix", unsupported()),
        (json!({ "best_of": 3 }), "best_of", unsupported()),
        (json!({ "logprobs": 6 }), "logprobs", json!(null)),
        (
            json!({ "logprobs": 1, "echo": true }),
            "logprobs",
            unsupported(),
        ),
        (json!({ "echo": 1 }), "echo", json!(null)),
        (
            json!({ "messages": [] }),
            "messages",
            json!("unknown_field"),
        ),
    ] {
        refused(&server, COMPLETIONS, &fields, 400, param, code);
    }
    let config = RouterConfig {
        strict_model_names: true,
        ..RouterConfig::default()
    };
    let strict = Server::with(config, Script::says(&TOKENIZER, "x"));
    for path in [CHAT, COMPLETIONS] {
        let fields = json!({ "model": "gpt-9" });
        refused(
            &strict,
            path,
            &fields,
            404,
            "model",
            json!("model_not_found"),
        );
    }
    let long = json!({ "prompt": vec![1; 512] });
    let reply = server.post(COMPLETIONS, &long);
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn bodies_that_are_no_json_objects_say_so() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let deep = "[".repeat(100_000);
    for (body, said) in [
        (&b""[..], "the body is empty"),
        (b"  \n", "the body is empty"),
        (b"{\n\"a\": }", "line 2 column 6"),
        (b"{\"prompt\": \"x\"", "line 1 column 14"),
        (b"{\"prompt\": \"\xff\"}", "not UTF-8: byte 12"),
        (b"{\"temperature\": 1e999}", "number out of range"),
        (deep.as_bytes(), "recursion limit"),
        (b"[1]", "the body is a list"),
        (b"\"x\"", "the body is a string"),
        (b"null", "the body is null"),
    ] {
        for path in [CHAT, COMPLETIONS, "/tokenize", "/detokenize"] {
            let reply = server.post_bytes(path, body);
            assert_eq!(reply.status, 400, "{said}");
            let error = &reply.json()["error"];
            assert_eq!(error["type"], "invalid_request_error");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(said), "{message}: {said}");
        }
    }
    for (path, body, param) in [
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({ "content": 1 }), "content"),
        ("/detokenize", json!({ "tokens": "x" }), "tokens"),
        ("/detokenize", json!({ "tokens": [1, 1.5] }), "tokens[1]"),
        ("/detokenize", json!({ "tokens": [8192] }), "tokens"),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], param);
    }
}

#[test]
fn a_body_above_the_limit_is_read_away_and_refused() {
    let config = RouterConfig {
        max_body_bytes: 8 << 20,
        ..RouterConfig::default()
    };
    let server = Server::with(config, Script::says(&TOKENIZER, "x"));
    let body = vec![b' '; 10_000_000];
    for path in [CHAT, COMPLETIONS, "/tokenize"] {
        let reply = server.post_bytes(path, &body);
        assert_eq!(reply.status, 413);
        assert_eq!(reply.json()["error"]["code"], "body_too_large");
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
    let config = RouterConfig {
        max_body_bytes: 14,
        ..RouterConfig::default()
    };
    let server = Server::with(config, Script::says(&TOKENIZER, "x"));
    assert_eq!(
        server.post_bytes(COMPLETIONS, br#"{"prompt":"x"}"#).status,
        200
    );
    assert_eq!(
        server.post_bytes(COMPLETIONS, br#"{"prompt":"xy"}"#).status,
        413
    );
}

#[test]
fn a_client_that_asks_before_it_sends_gets_no_leave_for_too_much() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let mut stream = connect(server.address);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 99999999\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 413");
}

#[test]
fn chunked_bodies_and_odd_content_types_are_taken() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ntransfer-encoding: chunked\r\ncontent-type: text/plain\r\n\r\n";
    let body = "7\r\n{\"promp\r\n7\r\nt\":\"x\"}\r\n0\r\n\r\n";
    let reply = crate::client::exchange(server.address, format!("{head}{body}").as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
}
