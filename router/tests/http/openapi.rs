//! The OpenAPI document against the routes, the parsers and the answers.

use std::collections::BTreeSet;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::client::{exchange, request};
use crate::script::Script;
use crate::server::{Server, TOKENIZER};

const ROUTES: &str = include_str!("../../src/http.rs");

/// They only say that something is not offered.
const NOT_OFFERED: [&str; 2] = ["/v1/embeddings", "/v1/rerank"];

/// Nobody can wait for the whole of it.
const ENDLESS: &str = "/status/events";

fn start() -> (Server, Value) {
    let server = Server::start(Script::says(&TOKENIZER, "a plan\n</think>\n\nhello"));
    let reply = server.get("/openapi.json");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let document = reply.json();
    (server, document)
}

/// The validator of a schema of the document.
fn validator(document: &Value, schema: &Value) -> Validator {
    // Its definitions stand where it looks for them.
    let mut whole = schema.clone();
    whole["components"] = document["components"].clone();
    jsonschema::draft202012::new(&whole).expect("a schema")
}

fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn answer_schema(document: &Value, path: &str, method: &str, status: u16) -> Value {
    let answers = &document["paths"][path][method]["responses"];
    let answer = answers
        .get(status.to_string())
        .unwrap_or(&answers["default"]);
    answer["content"]["application/json"]["schema"].clone()
}

fn check(document: &Value, schema: &Value, value: &Value) {
    let validator = validator(document, schema);
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}\n{value:#}");
}

#[test]
fn every_route_is_documented_and_nothing_else_is() {
    let (_, document) = start();
    assert_eq!(document["openapi"], "3.1.0");
    let routes = ROUTES.split(".route(").skip(1);
    let routes = routes.map(|rest| rest.split('"').nth(1).expect("a path").replace("{*", "{"));
    let routes = routes.filter(|route| !NOT_OFFERED.contains(&route.as_str()));
    let routes: BTreeSet<String> = routes.collect();
    let documented = document["paths"].as_object().unwrap().keys().cloned();
    assert_eq!(routes, documented.collect());
}

#[test]
fn every_reference_leads_to_a_schema() {
    fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let (_, document) = start();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        let pointer = reference
            .strip_prefix('#')
            .expect("a place in the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn every_operation_answers_as_it_says() {
    let (server, document) = start();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            if path == ENDLESS {
                continue;
            }
            let asked = path
                .replace("{id}", "demo-target")
                .replace("{name}", "chat.js");
            let bytes = request(
                &method.to_uppercase(),
                &asked,
                "accept: application/json\r\n",
                b"{}",
            );
            let reply = exchange(server.address, &bytes);
            assert_ne!(reply.status, 405, "{method} {path}");
            let schema = answer_schema(&document, path, method, reply.status);
            if schema.is_null() {
                assert_eq!(reply.status, 200, "{method} {path}");
                continue;
            }
            let answer = reply.json();
            assert_ne!(answer["error"]["code"], "not_found", "{method} {path}");
            check(&document, &schema, &answer);
        }
    }
}

#[test]
fn answers_and_their_events_are_what_the_document_says() {
    let (server, document) = start();
    let messages = json!([{ "role": "user", "content": "hello" }]);
    for (path, mut body, event) in [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "logprobs": true }),
            "ChatChunk",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "hello", "logprobs": 2 }),
            "Completion",
        ),
        (
            "/v1/responses",
            json!({ "input": "hello", "top_logprobs": 1 }),
            "ResponseEvent",
        ),
        (
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 9 }),
            "AnthropicEvent",
        ),
        (
            "/v1/messages/count_tokens",
            json!({ "messages": messages }),
            "",
        ),
        (
            "/v1/chat/completions/input_tokens",
            json!({ "messages": messages }),
            "",
        ),
        ("/apply-template", json!({ "messages": messages }), ""),
        (
            "/v1/responses/input_tokens",
            json!({ "input": "hello" }),
            "",
        ),
        (
            "/tokenize",
            json!({ "content": "né 中", "with_pieces": true }),
            "",
        ),
        ("/detokenize", json!({ "tokens": [1, 2] }), ""),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        check(
            &document,
            &answer_schema(&document, path, "post", 200),
            &reply.json(),
        );
        if event.is_empty() {
            continue;
        }
        body["stream"] = json!(true);
        let (events, _) = server.post(path, &body).events();
        assert!(events.len() > 2);
        for value in events {
            check(&document, &named(event), &value);
        }
    }
}

#[test]
fn a_body_is_taken_just_if_its_schema_allows_it() {
    let (server, document) = start();
    let chat = json!({ "messages": [{ "role": "user", "content": "hello" }] });
    let completion = json!({ "prompt": "hello" });
    let responses = json!({ "input": "hello" });
    let all = [
        ("/v1/chat/completions", "ChatBody", &chat),
        ("/v1/completions", "CompletionBody", &completion),
        ("/v1/responses", "ResponsesBody", &responses),
        ("/v1/messages", "MessagesBody", &chat),
    ];
    let options = json!([
        {}, { "temperature": 0 }, { "temperature": 2.5 }, { "temperature": "hot" }, { "top_p": 0 },
        { "top_p": 1 }, { "top_k": -1 }, { "top_k": -2 }, { "min_p": 0.5 }, { "min_p": 2 },
        { "seed": -5 }, { "seed": "x" }, { "stream": null }, { "stream": "yes" }, { "stop": "x" },
        { "stop": ["x", "y"] }, { "stop": [1] }, { "stop": vec!["x"; 17] }, { "logit_bias": { "5": 1 } },
        { "logit_bias": { "x": 1 } }, { "logit_bias": { "5": 101 } }, { "presence_penalty": 3 },
        { "frequency_penalty": -2 }, { "repetition_penalty": 0 }, { "model": 5 }, { "model": null },
        { "stream_options": { "include_usage": 1 } }, { "stream_options": {} }, { "min_tokens": -1 },
        { "ignore_eos": false }, { "include_stop_str_in_output": true },
    ]);
    let of_chats = json!([
        { "messages": [] }, { "messages": null }, { "messages": "hi" }, { "messages": [{ "role": "robot", "content": "x" }] },
        { "messages": [{ "role": "user" }] }, { "messages": [{ "role": "user", "content": [{ "type": "text", "text": "x" }] }] },
        { "messages": [{ "role": "user", "content": [{ "type": "text" }] }] },
        { "max_tokens": 0 }, { "max_tokens": 5 }, { "max_completion_tokens": -1 }, { "n": 0 }, { "n": 2 },
        { "tools": [{ "type": "function", "function": { "name": "f" } }] }, { "tools": [{ "type": "function" }] },
        { "tool_choice": "none" }, { "tool_choice": "perhaps" }, { "tool_choice": 5 },
        { "parallel_tool_calls": false }, { "parallel_tool_calls": "no" }, { "logprobs": true }, { "logprobs": 1 },
        { "response_format": { "type": "text" } }, { "response_format": "text" }, { "chat_template_kwargs": {} },
        { "chat_template_kwargs": [] }, { "reasoning_effort": "low" }, { "reasoning_effort": 1 },
        { "prefill_compression": "off" }, { "prefill_compression": "often" }, { "prefill_compression": { "keep_ratio": 2 } },
    ]);
    let of_completions = json!([
        { "prompt": null }, { "prompt": 5 }, { "prompt": [] }, { "prompt": ["x", "y"] }, { "prompt": [1, 2] },
        { "prompt": [[1], [2]] }, { "prompt": [[1], "x"] }, { "prompt": [1, "x"] }, { "prompt": [-1] }, { "echo": true }, { "echo": 1 },
        { "logprobs": 6 }, { "logprobs": 2 }, { "max_tokens": 0 }, { "n": 17 },
    ]);
    let of_responses = json!([
        { "input": null }, { "input": [] }, { "input": 5 }, { "input": [{ "type": "message", "role": "user", "content": "x" }] },
        { "input": [{ "type": "message", "role": "robot", "content": "x" }] },
        { "input": [{ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "x" }] }] },
        { "input": [{ "type": "message", "role": "user", "content": [{ "type": "input_text" }] }] },
        { "input": [{ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" }, { "type": "function_call_output", "call_id": "c", "output": "x" }] },
        { "input": [{ "type": "function_call", "name": "f", "arguments": "{}" }] },
        { "input": [{ "type": "item_reference", "id": "x" }] },
        { "tools": [{ "type": "function", "name": "f" }] }, { "tools": [{ "type": "function" }] },
        { "tools": [{ "type": "custom", "name": "c", "format": { "type": "text" } }] },
        { "tools": [{ "type": "custom", "name": "c", "format": { "type": "x" } }] },
        { "tools": [{ "type": "namespace", "name": "n", "tools": [{ "type": "function", "name": "f" }] }] },
        { "tool_choice": "perhaps" }, { "tool_choice": "auto" }, { "max_output_tokens": 0 }, { "max_output_tokens": 3 },
        { "text": { "format": { "type": "text" } } }, { "text": { "format": { "type": "xml" } } }, { "text": "text" },
        { "reasoning": { "effort": "low" } }, { "reasoning": "low" }, { "metadata": {} }, { "metadata": [] },
        { "include": ["x"] }, { "include": [1] }, { "top_logprobs": 20 }, { "top_logprobs": 21 },
    ]);
    let of_messages = json!([
        { "messages": [] }, { "messages": "hi" }, { "messages": [{ "role": "robot", "content": "x" }] },
        { "messages": [{ "role": "user" }] }, { "messages": [{ "role": "user", "content": [{ "type": "text", "text": "x" }] }] },
        { "messages": [{ "role": "user", "content": [{ "type": "image" }] }] },
        { "messages": [{ "role": "user", "content": [{ "type": "text" }] }] },
        { "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "x" }] }] },
        { "system": "x" }, { "system": [{ "type": "text", "text": "x" }] }, { "system": 5 }, { "max_tokens": 0 },
        { "max_tokens": 5 }, { "stop_sequences": ["x"] }, { "stop_sequences": [1] },
        { "tools": [{ "name": "f", "input_schema": { "type": "object" } }] }, { "tools": [{ "input_schema": {} }] },
        { "tool_choice": { "type": "auto" } }, { "tool_choice": { "type": "perhaps" } }, { "tool_choice": "auto" },
        { "thinking": { "type": "enabled", "budget_tokens": 5 } }, { "thinking": { "type": "x" } }, { "thinking": { "type": "disabled" } },
    ]);
    let mut wrong = Vec::new();
    for (path, name, base) in all {
        let validator = validator(&document, &named(name));
        let own = match path {
            "/v1/chat/completions" => &of_chats,
            "/v1/completions" => &of_completions,
            "/v1/messages" => &of_messages,
            _ => &of_responses,
        };
        let lists = [&options, own]
            .into_iter()
            .flat_map(|list| list.as_array().unwrap());
        for fields in lists {
            let mut body = base.clone();
            body.as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            let reply = server.post(path, &body);
            let is_taken = reply.status == 200;
            assert!(
                is_taken || reply.status == 400,
                "{path} {body}: {}",
                reply.text()
            );
            if validator.is_valid(&body) != is_taken {
                wrong.push(format!("{path} {fields}: {}", reply.status));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
