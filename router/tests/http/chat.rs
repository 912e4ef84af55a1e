//! Chat completions, whole and streamed.

use serde_json::{Value, json};

use crate::client::Reply;
use crate::script::{Script, answer, parsed};
use crate::server::{Server, TOKENIZER};

const CHAT: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!({ "messages": [{ "role": "user", "content": "hello" }] })
}

fn with(mut body: Value, more: Value) -> Value {
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

/// The joined texts of answer `index`: reasoning, content, reasons to end.
fn joined(reply: &Reply, index: u64) -> (String, String, Vec<String>) {
    let (events, done) = reply.events();
    assert!(done);
    let mut texts = (String::new(), String::new(), Vec::new());
    for choice in events.iter().flat_map(|e| e["choices"].as_array().unwrap()) {
        if choice["index"] != index {
            continue;
        }
        let delta = &choice["delta"];
        texts.0 += delta["reasoning_content"].as_str().unwrap_or("");
        texts.1 += delta["content"].as_str().unwrap_or("");
        texts
            .2
            .extend(choice["finish_reason"].as_str().map(str::to_owned));
    }
    texts
}

#[test]
fn a_whole_answer_has_reasoning_content_usage_and_timings() {
    let script = Script::says(&TOKENIZER, "a plan\n</think>\n\nhello é🚀中");
    let server = Server::start(script.clone());
    let reply = server.post(CHAT, &with(hello(), json!({ "max_tokens": 64 })));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(
        reply
            .header("x-request-id")
            .is_some_and(|id| id.starts_with("req-"))
    );
    let body = reply.json();
    let asked = &script.asked()[0];
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["reasoning_content"], "a plan");
    assert_eq!(choice["message"]["content"], "hello é🚀中");
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["finish_reason"], "stop");
    let ids = TOKENIZER.encode("a plan\n</think>\n\nhello é🚀中", parsed());
    let (prompt, completion) = (asked.prompt.len(), ids.len() + 1);
    let usage = &body["usage"];
    assert_eq!(usage["prompt_tokens"], prompt);
    assert_eq!(usage["completion_tokens"], completion);
    assert_eq!(usage["total_tokens"], prompt + completion);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1);
    assert_eq!(body["timings"]["predicted_n"], completion);
    let timings = &body["timings"];
    assert_eq!(
        (&timings["draft_n"], &timings["draft_n_accepted"]),
        (&json!(20), &json!(6))
    );
    assert_eq!(timings["speculation"]["acceptance_length"], 2.5);
    assert_eq!(timings["speculation"]["verify_ms"], 7.5);
    assert_eq!(
        body["timings"]["prompt_per_second"],
        (prompt - 1) as f64 * 500.0
    );
    assert_eq!(asked.stop_ids, TOKENIZER.stop_ids());
    assert_eq!(asked.max_tokens, 64);
    let text = TOKENIZER.decode(&asked.prompt, true);
    assert!(text.ends_with("<|im_start|>assistant\n<think>\n"), "{text}");
    // What the next turn has of it.
    let (history, opening) = asked.prompt.split_at(asked.history_tokens as usize);
    let text = TOKENIZER.decode(opening, true);
    assert_eq!(text, "<|im_start|>assistant\n<think>\n");
    let next = json!([
        hello()["messages"][0],
        { "role": "assistant", "content": "hello" },
        { "role": "user", "content": "more" },
    ]);
    server.post(CHAT, &with(hello(), json!({ "messages": next })));
    assert!(script.asked()[1].prompt.starts_with(history));
}

#[test]
fn a_stream_tells_the_same_as_a_whole_answer() {
    let server = Server::start(Script::says(
        &TOKENIZER,
        "a\nplan\n</think>\n\nhé\u{301} 🚀 中 done",
    ));
    let body = with(hello(), json!({ "seed": 3 }));
    let whole = server.post(CHAT, &body).json();
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let reply = server.post(CHAT, &with(body, options));
    assert_eq!(
        reply.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let (reasoning, content, reasons) = joined(&reply, 0);
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], reasoning);
    assert_eq!(message["content"], content);
    assert_eq!(reasons, ["stop"]);
    let (events, _) = reply.events();
    let role = json!({ "role": "assistant", "content": "" });
    assert_eq!(events[0]["choices"][0]["delta"], role);
    let (last, parts) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], whole["usage"]);
    assert!(parts.iter().all(|part| part.get("usage").is_none()));
    assert!(parts.last().unwrap()["timings"]["predicted_n"].is_number());
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
    }
}

#[test]
fn without_thinking_everything_is_content() {
    let script = Script::says(&TOKENIZER, "plain");
    let server = Server::start(script.clone());
    for (field, value) in [
        ("chat_template_kwargs", json!({ "enable_thinking": false })),
        ("reasoning_effort", json!("none")),
    ] {
        let body = server
            .post(CHAT, &with(hello(), json!({ field: value })))
            .json();
        let message = &body["choices"][0]["message"];
        assert_eq!(message["content"], "plain");
        assert!(message.get("reasoning_content").is_none());
    }
}

#[test]
fn a_stop_string_over_several_tokens_ends_the_answer_and_the_call() {
    let script = Script::says(&TOKENIZER, "STOP it\n</think>\nalpha beta STOP it gamma");
    let server = Server::start(script.clone());
    for (round, stream) in [false, true].into_iter().enumerate() {
        let more = json!({ "stop": ["", "STOP it", "nowhere"], "stream": stream });
        let reply = server.post(CHAT, &with(hello(), more));
        script.wait_for_drops(round + 1);
        if stream {
            let texts = joined(&reply, 0);
            assert_eq!(texts.0, "STOP it");
            assert_eq!(texts.1, "alpha beta ");
            assert_eq!(texts.2, ["stop"]);
        } else {
            let choice = &reply.json()["choices"][0];
            assert_eq!(choice["message"]["content"], "alpha beta ");
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
}

#[test]
fn max_tokens_ends_with_length_in_both_shapes() {
    let server = Server::start(Script::says(&TOKENIZER, "</think>one two three four five"));
    let body = with(hello(), json!({ "max_completion_tokens": 3 }));
    let whole = server.post(CHAT, &body).json();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 3);
    let reply = server.post(CHAT, &with(body, json!({ "stream": true })));
    assert_eq!(joined(&reply, 0).2, ["length"]);
}

#[test]
fn n_answers_have_seeds_in_a_row_and_keep_apart() {
    let script = Script::new(|request| {
        let text = format!("</think>answer of seed {}", request.sampling.seed);
        Ok(answer(request, &TOKENIZER.encode(&text, parsed())))
    });
    let server = Server::start(script.clone());
    let body = with(hello(), json!({ "n": 3, "seed": 40 }));
    let whole = server.post(CHAT, &body).json();
    let reply = server.post(CHAT, &with(body, json!({ "stream": true })));
    for index in 0..3 {
        let expected = format!("answer of seed {}", 40 + index);
        let choice = &whole["choices"][index as usize];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], expected);
        assert_eq!(joined(&reply, index).1, expected);
    }
    let prompt = script.asked()[0].prompt.len();
    assert_eq!(whole["usage"]["prompt_tokens"], prompt);
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

#[test]
fn without_a_seed_each_request_has_its_own() {
    let script = Script::says(&TOKENIZER, "x");
    let server = Server::start(script.clone());
    server.post(CHAT, &hello());
    server.post(CHAT, &with(hello(), json!({ "seed": null })));
    let seeds: Vec<u64> = script.asked().iter().map(|r| r.sampling.seed).collect();
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn logprobs_cover_the_content_and_nothing_else() {
    let server = Server::start(Script::says(&TOKENIZER, "hm\n</think>two words"));
    let body = with(hello(), json!({ "logprobs": true, "top_logprobs": 2 }));
    let whole = server.post(CHAT, &body).json();
    let entries = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    let text: String = entries
        .iter()
        .map(|e| e["token"].as_str().unwrap())
        .collect();
    assert_eq!(text, "two words");
    for entry in &entries {
        assert_eq!(entry["logprob"], -0.5);
        assert_eq!(
            entry["bytes"],
            json!(entry["token"].as_str().unwrap().as_bytes())
        );
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert_eq!(top[0]["token"], entry["token"]);
        assert_eq!(top[1]["logprob"], -1.5);
    }
    let reply = server.post(CHAT, &with(body, json!({ "stream": true })));
    let (events, _) = reply.events();
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, entries);
    let without = server.post(CHAT, &hello()).json();
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn options_reach_the_target() {
    let script = Script::says(&TOKENIZER, "x");
    let server = Server::start(script.clone());
    let options = json!({
        "model": "demo-target", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repeat_penalty": 1.5,
        "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": { "17": -100, "5": 2.5 }, "seed": 9,
        "min_tokens": 2, "ignore_eos": true, "user": "someone", "metadata": { "a": 1 }, "store": false,
        "modalities": ["text"], "response_format": { "type": "text" }, "tool_choice": "auto", "tools": [],
    });
    let reply = server.post(CHAT, &with(hello(), options));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let asked = &script.asked()[0];
    let sampling = &asked.sampling;
    assert_eq!(
        (
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.min_p
        ),
        (0.5, 0.9, 40, 0.1)
    );
    assert_eq!(
        (
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty
        ),
        (1.5, 1.0, -1.0)
    );
    assert_eq!(sampling.logit_bias, [(17, -100.0), (5, 2.5)]);
    assert_eq!((sampling.seed, asked.min_tokens), (9, 2));
    assert!(asked.stop_ids.is_empty());
    assert_eq!(asked.max_tokens as usize, 512 - asked.prompt.len());
}

#[test]
fn a_large_conversation_is_worked_on_beside_the_runtime() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let body = json!({ "messages": [{ "role": "user", "content": "word ".repeat(20_000) }] });
    let reply = server.post(CHAT, &body);
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["n_ctx"], 512);
    assert!(error["n_prompt_tokens"].as_u64().unwrap() > 512);
}
