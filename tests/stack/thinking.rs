//! Budgets for reasoning, and keys, from the command line to the model.

use std::fs;

use serde_json::{Value, json};

use crate::processes::{run, tandem};
use crate::set::Set;

const CHAT: &str = "/v1/chat/completions";

/// A request whose model would rather not close its reasoning.
fn thoughtful(close: u64, temperature: f64) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Write a function that reverses a string."}],
        "thinking": {"type": "enabled", "budget_tokens": 12},
        "max_tokens": 60,
        "temperature": temperature,
        "seed": 7,
        "logit_bias": { close.to_string(): -100 },
        "ignore_eos": true,
    })
}

#[test]
fn a_budget_closes_the_reasoning_with_drafts_as_without() {
    let drafting = Set::start(&["--verify-lossless"]);
    let plain = Set::start(&["--speculation", "off"]);
    let (client, alone) = (drafting.client(), plain.client());
    client.wait_until_attached();
    let ids = client
        .post("/tokenize", &json!({"content": "</think>"}))
        .ok();
    let close = ids["tokens"][0].as_u64().unwrap();
    let forced = client.get("/props").ok()["reasoning"]["terminator_tokens"].take();
    let forced = forced.as_u64().unwrap();
    for temperature in [0.0, 0.8] {
        let body = thoughtful(close, temperature);
        let answer = client.post(CHAT, &body).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_details"]["close_kind"], "hard");
        assert_eq!(choice["finish_details"]["thinking_tokens"], 12 + forced);
        assert_eq!(choice["finish_details"]["total_tokens"], 60 + forced);
        assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
        let expected = alone.post(CHAT, &body).ok();
        assert_eq!(*choice, expected["choices"][0], "temperature {temperature}");
    }
    assert!(client.metric("tandem_speculation_rounds", &[]) > 0.0);
    assert!(client.metric("tandem_lossless_checked_tokens", &[]) > 0.0);
    assert_eq!(client.metric("tandem_lossless_mismatches", &[]), 0.0);
    // A request that says nothing of reasoning gets none.
    let quiet = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8});
    let answer = client.post(CHAT, &quiet).ok();
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 0);
    assert!(drafting.stop().success());
    assert!(plain.stop().success());
}

#[test]
fn a_set_with_keys_lets_its_own_tools_in_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    fs::write(&file, "# ours\nsk-stack\n").unwrap();
    let file = file.to_str().unwrap();
    // It asks itself for its model's name before it says that it is ready.
    let set = Set::start(&["--api-key-file", file]);
    assert_eq!(set.client().get("/health").status, 200);
    assert_eq!(set.client().get("/v1/models").status, 401);
    let url = format!("http://{}", set.address);
    let ask = [
        "chat",
        "--url",
        &url,
        "--api-key-file",
        file,
        "-p",
        "hello",
        "-n",
        "4",
    ];
    let answer = run(tandem(dir.path(), &ask));
    assert!(answer.status.success(), "{}", answer.stderr);
    assert!(set.stop().success());
}
