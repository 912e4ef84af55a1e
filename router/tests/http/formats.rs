//! What an answer has to match.

use generation::Grammar;
use serde_json::{Value, json};
use worker_api::WorkerError;

use crate::script::Script;
use crate::server::{Server, TOKENIZER};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn schema() -> Value {
    json!({ "type": "object", "properties": { "b": { "type": "null" }, "a": {} } })
}

fn of_schema() -> Grammar {
    Grammar::JsonSchema(schema().to_string())
}

/// A field, and what the target has to hear of it.
fn formats() -> Vec<(Value, Option<Grammar>)> {
    let regex = || Some(Grammar::Regex("a+".to_owned()));
    let lark = || Some(Grammar::Lark("start: \"x\"".to_owned()));
    let choice = || {
        Some(Grammar::Lark(
            r#"start: "yes" | "no, \"never\"""#.to_owned(),
        ))
    };
    let any = || Some(Grammar::JsonSchema(r#"{"type":"object"}"#.to_owned()));
    let choices = json!(["yes", "no, \"never\""]);
    let named = |strict| json!({ "name": "n", "schema": schema(), "strict": strict });
    vec![
        (json!({}), None),
        (json!({ "response_format": null }), None),
        (json!({ "response_format": { "type": "text" } }), None),
        (
            json!({ "response_format": { "type": "json_object" } }),
            any(),
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": schema() } }),
            Some(of_schema()),
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": named(true) } }),
            Some(of_schema()),
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": named(false) } }),
            Some(of_schema()),
        ),
        (json!({ "guided_json": schema() }), Some(of_schema())),
        (
            json!({ "guided_json": schema().to_string() }),
            Some(of_schema()),
        ),
        (json!({ "json_schema": schema() }), Some(of_schema())),
        (json!({ "guided_regex": "a+" }), regex()),
        (json!({ "guided_grammar": "start: \"x\"" }), lark()),
        (json!({ "guided_choice": choices }), choice()),
        (
            json!({ "structured_outputs": { "json": schema() } }),
            Some(of_schema()),
        ),
        (
            json!({ "structured_outputs": { "json_object": true } }),
            any(),
        ),
        (json!({ "structured_outputs": { "regex": "a+" } }), regex()),
        (
            json!({ "structured_outputs": { "grammar": "start: \"x\"" } }),
            lark(),
        ),
        (
            json!({ "structured_outputs": { "choice": choices } }),
            choice(),
        ),
        (json!({ "structured_outputs": {}, "grammar": "" }), None),
    ]
}

fn with(base: &Value, fields: &Value) -> Value {
    let mut body = base.clone();
    let entries = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(entries);
    body
}

fn chat() -> Value {
    json!({ "messages": [{ "role": "user", "content": "x" }] })
}

#[test]
fn the_target_hears_what_an_answer_has_to_match() {
    let script = Script::says(&TOKENIZER, "{}");
    let server = Server::start(script.clone());
    for (path, base) in [(CHAT, chat()), (COMPLETIONS, json!({ "prompt": "x" }))] {
        for (fields, expected) in formats() {
            let reply = server.post(path, &with(&base, &fields));
            assert_eq!(reply.status, 200, "{fields}: {}", reply.json());
            let asked = script.asked().pop().unwrap();
            assert_eq!(asked.grammar, expected, "{fields}");
        }
    }
}

#[test]
fn what_cannot_be_a_format_is_refused_with_its_field() {
    let server = Server::start(Script::says(&TOKENIZER, "{}"));
    for (fields, param) in [
        (
            json!({ "response_format": "json_object" }),
            "response_format",
        ),
        (json!({ "response_format": {} }), "response_format.type"),
        (
            json!({ "response_format": { "type": "xml" } }),
            "response_format.type",
        ),
        (
            json!({ "response_format": { "type": "json_schema" } }),
            "response_format.json_schema",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n" } } }),
            "response_format.json_schema.schema",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": 3 } } }),
            "response_format.json_schema.schema",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": {}, "strict": 1 } } }),
            "response_format.json_schema.strict",
        ),
        (json!({ "guided_json": "{" }), "guided_json"),
        (json!({ "guided_json": [] }), "guided_json"),
        (json!({ "guided_regex": 1 }), "guided_regex"),
        (json!({ "guided_regex": "" }), "guided_regex"),
        (json!({ "guided_choice": [] }), "guided_choice"),
        (json!({ "guided_choice": ["a", ""] }), "guided_choice[1]"),
        (json!({ "guided_choice": ["a", 3] }), "guided_choice[1]"),
        (
            json!({ "structured_outputs": { "regex": [] } }),
            "structured_outputs.regex",
        ),
        (
            json!({ "structured_outputs": { "structural_tag": "x" } }),
            "structured_outputs.structural_tag",
        ),
        (json!({ "grammar": "root ::= \"x\"" }), "grammar"),
        (
            json!({ "guided_regex": "a", "guided_json": {} }),
            "guided_regex",
        ),
        (
            json!({ "response_format": { "type": "json_object" }, "guided_regex": "a" }),
            "guided_regex",
        ),
    ] {
        let reply = server.post(CHAT, &with(&chat(), &fields));
        assert_eq!(reply.status, 400, "{fields}");
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param, "{error}");
    }
    let gbnf = server.post(
        CHAT,
        &with(&chat(), &json!({ "grammar": "root ::= \"x\"" })),
    );
    let message = gbnf.json()["error"]["message"].to_string();
    assert!(
        message.contains("GBNF") && message.contains("guided_grammar"),
        "{message}"
    );
}

#[test]
fn what_the_target_does_not_follow_is_blamed_on_its_field() {
    let script = Script::new(|_| Err(WorkerError::Grammar("Unimplemented keys: [\"not\"]".into())));
    let server = Server::start(script);
    for (fields, param) in [
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "not": {} } } } }),
            "response_format.json_schema.schema",
        ),
        (
            json!({ "guided_json": { "not": {} }, "stream": true }),
            "guided_json",
        ),
        (
            json!({ "structured_outputs": { "json": { "not": {} } } }),
            "structured_outputs.json",
        ),
    ] {
        let reply = server.post(CHAT, &with(&chat(), &fields));
        assert_eq!(reply.status, 400);
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param);
        assert_eq!(error["type"], "invalid_request_error");
        assert!(
            error["message"].as_str().unwrap().contains("not"),
            "{error}"
        );
    }
    let long = json!({ "guided_regex": "a".repeat(600_000) });
    let reply = server.post(CHAT, &with(&chat(), &long));
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (400, &json!("guided_regex"))
    );
}

#[test]
fn text_that_has_to_match_is_no_reasoning() {
    let text = "{\"a\": \"<think>x</think>\"}";
    let server = Server::start(Script::says(&TOKENIZER, text));
    let body = with(
        &chat(),
        &json!({ "response_format": { "type": "json_object" }, "enable_thinking": false }),
    );
    let message = server.post(CHAT, &body).json()["choices"][0]["message"].take();
    assert_eq!(message["content"], text, "{message}");
}
