//! Everything beside the answers.

use router::{AnswerDefaults, LengthLimits, RouterConfig};
use serde_json::json;

use crate::client::{exchange, request};
use crate::script::Script;
use crate::server::{Server, TOKENIZER};

#[test]
fn models_are_listed_and_found_by_name() {
    let config = RouterConfig {
        model_name: Some("served/name".to_owned()),
        ..RouterConfig::default()
    };
    let server = Server::with(config, Script::says(&TOKENIZER, "x"));
    let list = server.get("/v1/models").json();
    let entry = &list["data"][0];
    assert_eq!(entry["id"], "served/name");
    assert_eq!(entry["context_length"], 512);
    assert_eq!(entry["max_input_tokens"], 512);
    assert_eq!(list["last_id"], "served/name");
    assert_eq!(&server.get("/v1/models/served/name").json(), entry);
    assert_eq!(&server.get("/v1/models/demo-target").json(), entry);
    let reply = server.get("/v1/models/other");
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
}

#[test]
fn health_follows_the_target_and_life_does_not() {
    let up = Server::start(Script::says(&TOKENIZER, "x"));
    let down = Server::start(Script::says(&TOKENIZER, "x").down());
    for (path, status) in [
        ("/health", 503),
        ("/health/ready", 503),
        ("/readyz", 503),
        ("/health/live", 200),
        ("/livez", 200),
    ] {
        let reply = up.get(path);
        assert_eq!(reply.status, 200, "{path}");
        assert_eq!(reply.json(), json!({ "status": "ok" }));
        let reply = down.get(path);
        assert_eq!(reply.status, status, "{path}");
        if status == 503 {
            assert_eq!(reply.json()["status"], "loading");
            assert_eq!(reply.json()["reason"], "the model is loading");
        }
    }
    assert_eq!(
        down.get("/v1/models").json()["data"][0]["context_length"],
        json!(null)
    );
    assert_eq!(down.get("/props").status, 200);
    assert!(down.get("/metrics").text().contains("tandem_worker_up 0"));
    let body = json!({ "prompt": "x" });
    let reply = down.post("/v1/completions", &body);
    assert_eq!(reply.status, 503);
    assert_eq!(reply.header("retry-after"), Some("2"));
    assert_eq!(reply.json()["error"]["code"], "worker_unavailable");
}

#[test]
fn props_tell_the_defaults_that_hold() {
    let config = RouterConfig {
        defaults: AnswerDefaults {
            temperature: Some(0.5),
            ..AnswerDefaults::default()
        },
        lengths: LengthLimits {
            default_max_tokens: Some(7),
            ..LengthLimits::default()
        },
        ..RouterConfig::default()
    };
    let script = Script::says(&TOKENIZER, "x");
    let server = Server::with(config, script.clone());
    let props = server.get("/props").json();
    assert_eq!(props["default_generation_settings"]["temperature"], 0.5);
    assert_eq!(props["default_generation_settings"]["max_tokens"], 7);
    assert_eq!(props["n_ctx"], 512);
    assert_eq!(props["device"], "script");
    assert_eq!(
        props["speculative"],
        json!({ "mode": "tree", "draft": null })
    );
    assert_eq!(props["eos_token"], "<|im_end|>");
    assert!(
        props["chat_template"]
            .as_str()
            .unwrap()
            .contains("im_start")
    );
    server.post("/v1/completions", &json!({ "prompt": "x" }));
    let asked = &script.asked()[0];
    assert_eq!((asked.max_tokens, asked.sampling.temperature), (7, 0.5));
}

#[test]
fn metrics_count_requests_and_tokens() {
    let server = Server::start(Script::says(&TOKENIZER, "hello"));
    let body = server
        .post("/v1/completions", &json!({ "prompt": "some prompt" }))
        .json();
    server.post("/v1/completions", &json!({}));
    server.get("/nowhere");
    let usage = &body["usage"];
    server.wait_for_metric(&format!(
        "tandem_prompt_tokens_total {}",
        usage["prompt_tokens"]
    ));
    server.wait_for_metric(&format!(
        "tandem_generated_tokens_total {}",
        usage["completion_tokens"]
    ));
    for line in [
        "tandem_requests_total{route=\"/v1/completions\",status=\"200\"} 1",
        "tandem_requests_total{route=\"/v1/completions\",status=\"400\"} 1",
        "tandem_requests_total{route=\"other\",status=\"404\"} 1",
        "tandem_time_to_first_token_seconds_count 1",
        "tandem_answers_in_flight 0",
        "tandem_worker_steps 7",
        "tandem_worker_up 1",
        "tandem_draft_up 1",
        "tandem_speculation_rounds 11",
        "tandem_speculation_accepted_at_position{position=\"1\"} 6",
        "tandem_speculation_accepted_at_position{position=\"3\"} 4",
        "tandem_speculation_stage_seconds{stage=\"verify\"} 1.5",
        "tandem_lossless_mismatches 0",
    ] {
        server.wait_for_metric(line);
    }
}

#[test]
fn the_tokenizer_goes_both_ways() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let text = "<|im_start|>né 中<think>";
    let reply = server.post(
        "/tokenize",
        &json!({ "content": text, "with_pieces": true }),
    );
    let pieces = reply.json()["tokens"].as_array().unwrap().clone();
    let mut bytes = Vec::new();
    for piece in &pieces {
        match &piece["piece"] {
            serde_json::Value::String(text) => bytes.extend_from_slice(text.as_bytes()),
            list => bytes.extend(
                list.as_array()
                    .unwrap()
                    .iter()
                    .map(|b| b.as_u64().unwrap() as u8),
            ),
        }
    }
    assert_eq!(bytes, text.as_bytes());
    let ids = server.post("/tokenize", &json!({ "content": text })).json()["tokens"].clone();
    assert_eq!(
        ids,
        json!(pieces.iter().map(|p| p["id"].clone()).collect::<Vec<_>>())
    );
    let back = server.post("/detokenize", &json!({ "tokens": ids })).json();
    assert_eq!(back, json!({ "content": text }));
    let plain = json!({ "content": "<|im_end|>", "parse_special": false });
    let plain = server.post("/tokenize", &plain).json();
    assert!(plain["tokens"].as_array().unwrap().len() > 1);
}

#[test]
fn the_template_can_be_looked_at() {
    let server = Server::start(Script::says(&TOKENIZER, "x").down());
    let body =
        json!({ "messages": [{ "role": "user", "content": "hello" }], "enable_thinking": false });
    let prompt = server.post("/apply-template", &body).json()["prompt"].clone();
    let prompt = prompt.as_str().unwrap();
    assert!(
        prompt.starts_with("<|im_start|>user\nhello<|im_end|>"),
        "{prompt}"
    );
    let tokens = TOKENIZER.encode(prompt, crate::script::parsed()).len();
    let counted = server
        .post("/v1/chat/completions/input_tokens", &body)
        .json();
    assert_eq!(counted["input_tokens"], tokens);
}

#[test]
fn unknown_routes_and_methods_are_named() {
    let server = Server::start(Script::says(&TOKENIZER, "x"));
    let reply = server.get("/v1/files");
    assert_eq!(reply.status, 404);
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["message"], "there is no /v1/files");
    let reply = server.get("/v1/chat/completions");
    assert_eq!(reply.status, 405);
    assert_eq!(reply.header("allow"), Some("POST"));
    assert_eq!(reply.json()["error"]["code"], "method_not_allowed");
    for path in [
        "/health/",
        "/v1/models//",
        "/v1/models/?client_version=1",
        "/?x=/",
    ] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let reply = exchange(server.address, &request("HEAD", "/health", "", b""));
    assert_eq!((reply.status, reply.body.len()), (200, 0));
}

#[test]
fn a_given_request_id_is_kept_and_an_odd_one_is_not() {
    let script = Script::says(&TOKENIZER, "x");
    let server = Server::start(script.clone());
    let body = br#"{"prompt":"x"}"#;
    let ask = |header: &str| {
        let bytes = request("POST", "/v1/completions", header, body);
        let reply = exchange(server.address, &bytes);
        reply.header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(ask("x-request-id: mine-1\r\n"), "mine-1");
    assert_eq!(script.asked()[0].request_id, "mine-1");
    assert!(ask("x-request-id: with space\r\n").starts_with("req-"));
}
