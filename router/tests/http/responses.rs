//! The Responses API, whole and streamed.

use std::io::{Read, Write};
use std::time::Duration;

use router::RouterConfig;
use serde_json::{Value, json};
use worker_api::WorkerError;

use crate::client::{connect, request};
use crate::follow::follow;
use crate::script::{Script, Step, opening, parsed, token};
use crate::server::{Server, TOKENIZER};

const RESPONSES: &str = "/v1/responses";

/// All keys that an answer has, whatever it is.
const KEYS: [&str; 31] = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
];

fn hello(more: Value) -> Value {
    let mut body = json!({ "input": "hello" });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

/// What both forms of an answer have in common.
fn essence(response: &Value) -> Value {
    let mut output = response["output"].clone();
    for item in output.as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("id");
    }
    json!([
        response["status"],
        response["incomplete_details"],
        response["usage"],
        output
    ])
}

#[test]
fn a_whole_answer_has_all_its_keys() {
    let script = Script::says(&TOKENIZER, "a plan\n</think>\n\nhello é🚀中");
    let server = Server::start(script.clone());
    let tool = json!({ "type": "function", "name": "f", "parameters": { "type": "object" } });
    let body = hello(json!({
        "instructions": "be brief", "metadata": { "k": "v" }, "store": true, "max_output_tokens": 64,
        "prompt_cache_key": "session", "reasoning": { "effort": "low" }, "temperature": 0.5, "tools": [tool],
    }));
    let reply = server.post(RESPONSES, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let response = reply.json();
    let mut keys: Vec<&str> = response
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut expected = KEYS;
    keys.sort_unstable();
    expected.sort_unstable();
    assert_eq!(keys, expected);
    for (key, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("instructions", json!("be brief")),
        ("store", json!(false)),
        ("metadata", json!({ "k": "v" })),
        ("prompt_cache_key", json!("session")),
        ("max_output_tokens", json!(64)),
        ("temperature", json!(0.5)),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("truncation", json!("disabled")),
        ("text", json!({ "format": { "type": "text" } })),
        ("reasoning", json!({ "effort": "low", "summary": null })),
        ("error", json!(null)),
        ("incomplete_details", json!(null)),
    ] {
        assert_eq!(response[key], value, "{key}");
    }
    assert_eq!(response["tools"][0]["strict"], json!(null));
    assert!(response["completed_at"].as_u64() >= response["created_at"].as_u64());
    let [reasoning, message] = response["output"].as_array().unwrap().as_slice() else {
        panic!("{response}");
    };
    assert_eq!(reasoning["type"], "reasoning");
    assert_eq!(
        reasoning["content"],
        json!([{ "type": "reasoning_text", "text": "a plan" }])
    );
    assert_eq!(
        (&reasoning["summary"], &reasoning["encrypted_content"]),
        (&json!([]), &json!(null))
    );
    assert_eq!(message["role"], "assistant");
    assert_eq!(message["status"], "completed");
    let part =
        json!({ "type": "output_text", "text": "hello é🚀中", "annotations": [], "logprobs": [] });
    assert_eq!(message["content"], json!([part]));
    let usage = &response["usage"];
    let asked = &script.asked()[0];
    assert_eq!(usage["input_tokens"], asked.prompt.len());
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 1);
    assert!(usage["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0));
    assert_eq!(asked.max_tokens, 64);
    assert!(TOKENIZER.decode(&asked.prompt, true).contains("be brief"));
}

#[test]
fn a_stream_tells_the_same_as_a_whole_answer() {
    let text = "a plan\n</think>\n\nhello é🚀 中";
    for (said, more) in [
        (text, json!({})),
        (
            text,
            json!({ "reasoning": { "summary": "auto" }, "include": ["reasoning.encrypted_content"] }),
        ),
        (
            text,
            json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 }),
        ),
        (text, json!({ "stop": ["é"] })),
        (text, json!({ "max_output_tokens": 2 })),
        (text, json!({ "max_output_tokens": 8 })),
        ("only thought", json!({})),
        ("</think>", json!({})),
        ("</think>no thought", json!({})),
    ] {
        let server = Server::start(Script::says(&TOKENIZER, said));
        let body = hello(more);
        let whole = server.post(RESPONSES, &body).json();
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let reply = server.post(RESPONSES, &streamed);
        assert_eq!(
            reply.header("content-type"),
            Some("text/event-stream; charset=utf-8")
        );
        let (_, last) = follow(&reply);
        assert_eq!(essence(&last), essence(&whole), "{body}");
    }
}

#[test]
fn events_of_reasoning_and_text_have_their_order() {
    let server = Server::start(Script::says(&TOKENIZER, "a plan\n</think>\n\nhello"));
    let ask = |more: Value| {
        let mut body = hello(more);
        body["stream"] = json!(true);
        follow(&server.post(RESPONSES, &body))
    };
    let (names, response) = ask(json!({}));
    let opening = ["created", "in_progress", "output_item.added"];
    let message = [
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    let reasoning = [
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
    ];
    assert_eq!(names, [&opening[..], &reasoning, &message].concat());
    assert_eq!(response["output"][0]["type"], "reasoning");
    let summary = [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ];
    let (names, response) = ask(json!({ "reasoning": { "summary": "auto" } }));
    assert_eq!(names, [&opening[..], &summary, &message].concat());
    let part = json!({ "type": "summary_text", "text": "a plan" });
    assert_eq!(response["output"][0]["summary"], json!([part]));
    let (names, _) = ask(json!({ "max_output_tokens": 6 }));
    assert_eq!(names.last().map(String::as_str), Some("incomplete"));
}

#[test]
fn reasoning_that_is_sent_back_is_rendered_as_it_was() {
    let script = Script::says(&TOKENIZER, "a plan\n</think>\n\nhello");
    let server = Server::start(script.clone());
    let user = json!({ "role": "user", "content": "hello" });
    for more in [
        json!({}),
        json!({ "include": ["reasoning.encrypted_content"] }),
        json!({ "reasoning": { "summary": "auto" } }),
    ] {
        let response = server.post(RESPONSES, &hello(more)).json();
        let mut input = vec![user.clone()];
        input.extend(response["output"].as_array().unwrap().clone());
        input.push(json!({ "role": "user", "content": "more" }));
        assert_eq!(
            server.post(RESPONSES, &json!({ "input": input })).status,
            200
        );
    }
    let chat = json!({ "messages": [
        user,
        { "role": "assistant", "content": "hello", "reasoning_content": "a plan" },
        { "role": "user", "content": "more" },
    ] });
    server.post("/v1/chat/completions", &chat);
    let asked = script.asked();
    let same = asked.last().unwrap();
    for turn in [1, 3, 5] {
        assert_eq!(asked[turn].prompt, same.prompt, "turn {turn}");
    }
}

#[test]
fn tokens_are_counted_without_the_target() {
    let script = Script::says(&TOKENIZER, "x");
    let server = Server::start(script.clone());
    let body = hello(json!({ "instructions": "be brief" }));
    let count = server.post("/v1/responses/input_tokens", &body).json();
    assert!(script.asked().is_empty());
    server.post(RESPONSES, &body);
    let tokens = script.asked()[0].prompt.len();
    assert_eq!(
        count,
        json!({ "object": "response.input_tokens", "input_tokens": tokens })
    );
}

#[test]
fn nothing_is_stored() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404);
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "response_not_found");
        assert!(error["message"].as_str().unwrap().contains("`resp_1`"));
    }
    assert_eq!(server.get("/v1/responses/input_tokens").status, 405);
    let reply = server.post(
        RESPONSES,
        &hello(json!({ "previous_response_id": "resp_1" })),
    );
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["param"], "previous_response_id");
}

#[test]
fn an_error_before_the_first_byte_is_a_status_and_one_after_it_an_event() {
    let refusing = Server::start(Script::new(|_| Err(WorkerError::QueueFull("full".into()))));
    for stream in [false, true] {
        let reply = refusing.post(RESPONSES, &hello(json!({ "stream": stream })));
        assert_eq!(reply.status, 429);
        assert_eq!(reply.json()["error"]["code"], "queue_full");
    }
    let failing = Server::start(Script::new(|request| {
        let mut steps = opening(request);
        let ids = TOKENIZER.encode("</think>some text", parsed());
        steps.extend(ids.into_iter().map(|id| token(request, id)));
        steps.push(Step::Fail(WorkerError::Internal("device lost".to_owned())));
        Ok(steps)
    }));
    let (names, response) = follow(&failing.post(RESPONSES, &hello(json!({ "stream": true }))));
    // The message is not called done: it is not.
    let last: Vec<&str> = names.iter().rev().take(2).map(String::as_str).collect();
    assert_eq!(last, ["failed", "output_text.delta"]);
    assert_eq!(response["status"], "failed");
    assert_eq!(response["output"], json!([]));
    let error = json!({ "code": "server_error", "message": "device lost" });
    assert_eq!(response["error"], error);
    let reply = failing.post(RESPONSES, &hello(json!({})));
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (500, &json!("worker_failed"))
    );
}

#[test]
fn a_silent_stream_says_again_that_it_is_in_progress() {
    let script = Script::new(|_| Ok(vec![Step::Hang]));
    let config = RouterConfig {
        keep_alive: Duration::from_millis(1),
        ..RouterConfig::default()
    };
    let server = Server::with(config, script.clone());
    let mut stream = connect(server.address);
    let body = hello(json!({ "stream": true })).to_string();
    let bytes = request("POST", RESPONSES, "", body.as_bytes());
    stream.write_all(&bytes).unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains("\"sequence_number\":3}") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
    let text = String::from_utf8_lossy(&seen);
    assert_eq!(text.matches("event: response.created").count(), 1);
    assert!(text.matches("event: response.in_progress").count() >= 3);
    drop(stream);
    script.wait_for_drops(1);
    server.wait_for_metric("tandem_requests_cancelled_total 1");
}

#[test]
fn tools_are_called_by_the_names_that_the_client_gave_them() {
    let template = include_str!("../../../crates/chat/src/fallback.jinja");
    let config = RouterConfig {
        chat_template: Some(template.to_owned()),
        ..RouterConfig::default()
    };
    let said = "I look.\n<tool_call>\n<function=files__read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>\n\
        <tool_call>\n<function=note>\n<parameter=input>\none \"two\"\n</parameter>\n</function>\n</tool_call>";
    let server = Server::with(config, Script::says(&TOKENIZER, said));
    let path = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    let body = hello(json!({
        "chat_template_kwargs": { "enable_thinking": false },
        "tools": [
            { "type": "custom", "name": "note" },
            { "type": "namespace", "name": "files", "tools": [{ "type": "function", "name": "read", "parameters": path }] },
            { "type": "web_search" },
        ],
    }));
    let whole = server.post(RESPONSES, &body).json();
    let [message, read, note] = whole["output"].as_array().unwrap().as_slice() else {
        panic!("{whole:#}");
    };
    assert!(
        message["content"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("I look.")
    );
    assert_eq!(
        (&read["name"], &read["namespace"]),
        (&json!("read"), &json!("files"))
    );
    let arguments: Value = serde_json::from_str(read["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({ "path": "a.txt" }));
    assert_eq!(
        (&note["type"], &note["input"]),
        (&json!("custom_tool_call"), &json!("one \"two\""))
    );
    assert_eq!(whole["status"], "completed");
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (names, last) = follow(&server.post(RESPONSES, &streamed));
    for name in [
        "function_call_arguments.done",
        "custom_tool_call_input.done",
    ] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
    let without_ids = |response: &Value| {
        let mut response = essence(response);
        for item in response[3].as_array_mut().unwrap() {
            item.as_object_mut().unwrap().remove("call_id");
        }
        response
    };
    assert_eq!(without_ids(&last), without_ids(&whole));
}
