//! Completions of plain text.

use serde_json::{Value, json};

use crate::script::{Script, answer, parsed};
use crate::server::{Server, TOKENIZER};

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn every_shape_of_prompt_is_continued() {
    let script = Script::says(&TOKENIZER, " world");
    let server = Server::start(script.clone());
    let ids = TOKENIZER.encode("hello", parsed());
    for (prompt, texts) in [
        (json!("hello"), vec!["hello world"]),
        (json!(["hello", "two"]), vec!["hello world", "two world"]),
        (json!(ids), vec!["hello world"]),
        (json!([ids, ids]), vec!["hello world", "hello world"]),
    ] {
        for echo in [true, false] {
            let body = json!({ "prompt": prompt, "echo": echo });
            let body = server.post(COMPLETIONS, &body).json();
            assert_eq!(body["object"], "text_completion");
            assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
            for (index, text) in texts.iter().enumerate() {
                let choice = &body["choices"][index];
                assert_eq!(choice["text"], if echo { text } else { " world" });
                assert_eq!(choice["index"], index);
                assert_eq!(choice["finish_reason"], "stop");
            }
        }
    }
    assert_eq!(script.asked()[0].prompt, ids);
}

#[test]
fn a_stream_tells_the_same() {
    let server = Server::start(Script::says(&TOKENIZER, " brave <think> new world"));
    let body = json!({
        "prompt": ["a", "b"], "n": 2, "stream": true, "echo": true, "stop": "world",
        "stream_options": { "include_usage": true },
    });
    let reply = server.post(COMPLETIONS, &body);
    let (events, done) = reply.events();
    assert!(done);
    let mut texts = vec![String::new(); 4];
    for choice in events.iter().flat_map(|e| e["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index] += choice["text"].as_str().unwrap();
    }
    let expected = ["a", "a", "b", "b"].map(|echo| format!("{echo} brave <think> new "));
    assert_eq!(texts, expected);
    assert!(events.last().unwrap()["usage"]["completion_tokens"].is_number());
}

#[test]
fn logprobs_come_in_lists_with_offsets() {
    let text = "né 中 é";
    let server = Server::start(Script::says(&TOKENIZER, text));
    let body = json!({ "prompt": "p", "logprobs": 2 });
    let body = server.post(COMPLETIONS, &body).json();
    let logprobs = &body["choices"][0]["logprobs"];
    let ids = TOKENIZER.encode(text, parsed());
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            logprobs[list].as_array().unwrap().len(),
            ids.len(),
            "{list}"
        );
    }
    // Worked out from the token boundaries: characters complete before each token.
    let mut detokenizer = tokenizer::Detokenizer::new(TOKENIZER.clone(), false);
    let mut offsets = Vec::new();
    let mut chars = 0;
    for id in ids {
        offsets.push(Value::from(chars));
        chars += detokenizer.push(id).chars().count();
    }
    assert_eq!(logprobs["text_offset"], json!(offsets));
    assert_eq!(logprobs["token_logprobs"][0], -0.5);
}

#[test]
fn a_seed_decides_without_regard_to_the_prompt_before() {
    let script = Script::new(|request| Ok(answer(request, &[1])));
    let server = Server::start(script.clone());
    let body = json!({ "prompt": ["a", "b"], "n": 2, "seed": u64::MAX });
    server.post(COMPLETIONS, &body);
    let asked = script.asked();
    let seeds: Vec<u64> = asked.iter().map(|r| r.sampling.seed).collect();
    assert_eq!(seeds, [u64::MAX, 0, u64::MAX, 0]);
    assert!(asked[3].request_id.ends_with("-3"));
}

#[test]
fn control_tokens_are_no_text_and_count_as_tokens() {
    let script = Script::says(&TOKENIZER, "a<|im_start|>b");
    let server = Server::start(script);
    let body = server.post(COMPLETIONS, &json!({ "prompt": "p" })).json();
    assert_eq!(body["choices"][0]["text"], "ab");
    assert_eq!(body["usage"]["completion_tokens"], 4);
    let body = json!({ "prompt": "p", "ignore_eos": true, "max_tokens": 2 });
    let body = server.post(COMPLETIONS, &body).json();
    assert_eq!(body["choices"][0]["text"], "a");
}
