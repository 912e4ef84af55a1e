//! Answers that have to match, from the model through all processes.

use serde_json::{Value, json};

use crate::http::Event;
use crate::set::Set;

const CHAT: &str = "/v1/chat/completions";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 16 },
            "arguments": { "type": "array", "items": { "enum": ["a", "b", 1] }, "minItems": 1, "maxItems": 3 },
            "pure": { "type": "boolean" },
        },
        "required": ["name", "arguments", "pure"],
        "additionalProperties": false,
    })
}

fn chat(fields: &Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Write a function that reverses a string." }],
        "max_tokens": 300,
        "temperature": 0,
    });
    let entries = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(entries);
    body
}

fn fits(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let object = value.as_object().unwrap();
    let names: Vec<&str> = object.keys().map(String::as_str).collect();
    assert_eq!(names, ["name", "arguments", "pure"], "{text}");
    assert!(value["name"].as_str().unwrap().chars().count() <= 16);
    assert!((1..=3).contains(&value["arguments"].as_array().unwrap().len()));
    assert!(value["pure"].is_boolean());
}

#[test]
fn answers_fit_their_schema_and_bad_schemas_are_refused() {
    let set = Set::start(&[]);
    let client = set.client();
    let named = json!({ "name": "function", "strict": true, "schema": schema() });
    let format = json!({ "type": "json_schema", "json_schema": named });
    for thinks in [false, true] {
        let fields = json!({ "response_format": format, "enable_thinking": thinks });
        let whole = client.post(CHAT, &chat(&fields)).ok();
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{whole}");
        let message = &choice["message"];
        let content = message["content"].as_str().unwrap();
        fits(content);
        let reasoning = message["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(!reasoning.is_empty(), thinks, "{whole}");
        let mut stream = client.stream(CHAT, &chat(&fields));
        assert_eq!(
            stream.rest(),
            (format!("{reasoning}{content}"), Event::Done)
        );
    }
    let prompt = json!({ "prompt": "def f(x):\n", "guided_regex": "    return [a-z]{1,10}\n", "max_tokens": 50 });
    let text = client.post("/v1/completions", &prompt).ok()["choices"][0]["text"].take();
    let text = text.as_str().unwrap();
    assert!(
        text.starts_with("    return ") && text.ends_with('\n'),
        "{text}"
    );

    let bad = json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "not": {} } } } });
    let refused = client.post(CHAT, &chat(&bad));
    assert_eq!(refused.status, 400);
    let error = &refused.json()["error"];
    assert_eq!(error["param"], "response_format.json_schema.schema");
    assert!(
        error["message"].as_str().unwrap().contains("not"),
        "{error}"
    );
    assert!(set.stop().success());
}
