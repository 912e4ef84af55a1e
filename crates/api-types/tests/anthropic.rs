//! What bodies of the Messages API become: the one form that all chats have.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

use api_types::{ChatRequest, RequestError, ToolChoice};
use serde_json::{Value, json};

fn parse(body: &Value) -> Result<ChatRequest, RequestError> {
    ChatRequest::from_messages_body(body.to_string().as_bytes())
}

fn chat(body: &Value) -> ChatRequest {
    parse(body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

/// A body with these messages and nothing else.
fn messages(messages: Value) -> Value {
    chat(&json!({ "max_tokens": 5, "messages": messages }))
        .messages
        .into()
}

/// A body that asks "hi" and has `fields` as well.
fn with(fields: Value) -> Value {
    let mut body = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "hi" }] });
    let object = body.as_object_mut().unwrap();
    object.extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn system_texts_stand_first_as_one_message_wherever_they_were() {
    let user = json!({ "role": "user", "content": "hi" });
    let expected = |text: &str| json!([{ "role": "system", "content": text }, user]);
    for (system, text) in [
        (json!("one"), "one"),
        (
            json!([{ "type": "text", "text": "one", "cache_control": { "type": "ephemeral" } }, { "type": "text", "text": "two" }]),
            "one\n\ntwo",
        ),
    ] {
        let request = chat(&with(json!({ "system": system })));
        assert_eq!(Value::from(request.messages), expected(text));
    }
    for later in [json!("two"), json!([{ "type": "text", "text": "two" }])] {
        let body =
            json!({ "system": "one", "messages": [user, { "role": "system", "content": later }] });
        assert_eq!(
            Value::from(chat(&body).messages),
            expected("one\n\ntwo"),
            "as text and as blocks alike"
        );
    }
}

#[test]
fn a_round_of_tools_becomes_the_turns_that_templates_take() {
    let sent = json!([
        { "role": "user", "content": [{ "type": "text", "text": "weather?" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "x" },
            { "type": "redacted_thinking", "data": "x" },
            { "type": "text", "text": "I look." },
            { "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "city": "Ulm" } },
            { "type": "tool_use", "id": "toolu_2", "name": "clock", "input": {} },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "toolu_1", "content": "rain" },
            { "type": "tool_result", "tool_use_id": "toolu_2", "is_error": true, "content": [
                { "type": "text", "text": "no " }, { "type": "text", "text": "clock" },
                { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "x" } },
            ] },
            { "type": "text", "text": "and?" },
        ] },
    ]);
    let call = |id: &str, name: &str, arguments: Value| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let expected = json!([
        { "role": "user", "content": "weather?" },
        { "role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
            call("toolu_1", "weather", json!({ "city": "Ulm" })),
            call("toolu_2", "clock", json!({})),
        ] },
        { "role": "tool", "content": "rain", "tool_call_id": "toolu_1" },
        { "role": "tool", "content": "Error: no clock[a picture, which this model cannot see]", "tool_call_id": "toolu_2" },
        { "role": "user", "content": "and?" },
    ]);
    assert_eq!(messages(sent), expected);
}

#[test]
fn blocks_that_say_nothing_are_dropped() {
    let sent = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "", "signature": "x" },
            { "type": "text", "text": "" },
            { "type": "text", "text": "b" },
            { "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} },
            { "type": "web_search_tool_result", "tool_use_id": "s", "content": [] },
        ] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t" }] },
        { "role": "user", "content": [] },
    ]);
    let expected = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": "b" },
        { "role": "tool", "content": "", "tool_call_id": "t" },
        { "role": "user", "content": "" },
    ]);
    assert_eq!(messages(sent), expected);
}

#[test]
fn documents_of_text_and_search_results_are_read() {
    let sent = json!([{ "role": "user", "content": [
        { "type": "document", "title": "T", "source": { "type": "text", "media_type": "text/plain", "data": "one" } },
        { "type": "document", "source": { "type": "content", "content": [{ "type": "text", "text": ";two" }] } },
        { "type": "search_result", "source": "http://x", "title": "S", "content": [{ "type": "text", "text": "three" }] },
    ] }]);
    let expected = json!([{ "role": "user", "content": "T\none;twoS (http://x)\nthree" }]);
    assert_eq!(messages(sent), expected);
}

#[test]
fn tools_become_the_nested_form_and_those_of_a_server_are_left_out() {
    let schema = json!({ "type": "object", "properties": { "b": {}, "a": {} } });
    let body = with(json!({ "tools": [
        { "name": "f", "description": "does f", "input_schema": schema, "strict": true,
          "cache_control": { "type": "ephemeral" }, "some_new_key": 1 },
        { "type": "web_search_20250305", "name": "web_search", "max_uses": 5 },
        { "type": "custom", "name": "g", "input_schema": {} },
    ] }));
    let request = chat(&body);
    let expected = json!([
        { "type": "function", "function": { "name": "f", "description": "does f", "parameters": schema, "strict": true } },
        { "type": "function", "function": { "name": "g", "parameters": {} } },
    ]);
    assert_eq!(
        Value::from(request.tools).to_string(),
        expected.to_string(),
        "in this order, the keys of schemas as well"
    );
    assert_eq!(request.skipped_tools, ["web_search_20250305"]);
    assert_eq!(request.tool_choice, ToolChoice::Auto);
    assert!(request.parallel_tool_calls);
}

#[test]
fn tools_that_are_put_off_are_shown_when_they_have_been_found() {
    let tools = json!([
        { "name": "late", "input_schema": {}, "defer_loading": true },
        { "name": "later", "input_schema": {}, "defer_loading": true },
        { "name": "soon", "input_schema": {} },
    ]);
    let names = |body: &Value| -> Vec<String> {
        let tools = chat(body).tools;
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
        tools.iter().map(name).collect()
    };
    assert_eq!(names(&with(json!({ "tools": tools }))), ["soon"]);
    let found = json!({ "type": "tool_reference", "tool_name": "late" });
    let body = json!({ "tools": tools, "messages": [
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": [found, found] }] },
    ] });
    assert_eq!(names(&body), ["soon", "late"]);
}

#[test]
fn the_choice_of_tools_has_other_names_here() {
    for (choice, expected, parallel) in [
        (json!({ "type": "auto" }), ToolChoice::Auto, true),
        (
            json!({ "type": "any", "disable_parallel_tool_use": true }),
            ToolChoice::Required,
            false,
        ),
        (
            json!({ "type": "tool", "name": "f" }),
            ToolChoice::Named("f".to_owned()),
            true,
        ),
        (json!({ "type": "none" }), ToolChoice::None, true),
    ] {
        let tools = json!([{ "name": "f", "input_schema": {} }]);
        let request = chat(&with(json!({ "tools": tools, "tool_choice": choice })));
        assert_eq!(request.tools.is_empty(), expected == ToolChoice::None);
        assert_eq!(request.tool_choice, expected);
        assert_eq!(request.parallel_tool_calls, parallel);
    }
}

#[test]
fn what_agents_send_as_a_matter_of_course_is_taken() {
    let request = chat(&with(json!({
        "model": "claude-x", "stream": true, "stop_sequences": ["END"], "top_k": 5, "top_p": 0.5, "temperature": 1,
        "metadata": { "user_id": "u" }, "service_tier": "auto", "container": null,
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "thinking": { "type": "adaptive", "display": "omitted" }, "output_config": { "effort": "high" },
    })));
    let options = request.options;
    assert_eq!(options.model.as_deref(), Some("claude-x"));
    assert!(options.stream);
    assert_eq!(
        (options.stop, options.max_tokens),
        (vec!["END".to_owned()], Some(5))
    );
    assert_eq!(options.sampling.top_k, Some(5));
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let assistant =
        |content: Value| json!({ "messages": [{ "role": "assistant", "content": content }] });
    for (body, field) in [
        (json!({}), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "hi" }), "messages"),
        (json!({ "messages": [1] }), "messages[0]"),
        (
            json!({ "messages": [{ "content": "x" }] }),
            "messages[0].role",
        ),
        (
            json!({ "messages": [{ "role": "tool", "content": "x" }] }),
            "messages[0].role",
        ),
        (
            json!({ "messages": [{ "role": "user" }] }),
            "messages[0].content",
        ),
        (user(json!(5)), "messages[0].content"),
        (user(json!(["x"])), "messages[0].content[0]"),
        (
            user(json!([{ "text": "x" }])),
            "messages[0].content[0].type",
        ),
        (
            user(json!([{ "type": "text" }])),
            "messages[0].content[0].text",
        ),
        (
            user(json!([{ "type": "image", "source": {} }])),
            "messages[0].content[0]",
        ),
        (
            user(json!([{ "type": "document", "source": { "type": "base64", "data": "x" } }])),
            "messages[0].content[0]",
        ),
        (
            user(json!([{ "type": "tool_use", "id": "x" }])),
            "messages[0].content[0]",
        ),
        (
            user(json!([{ "type": "tool_result", "content": "x" }])),
            "messages[0].content[0].tool_use_id",
        ),
        (
            assistant(json!([{ "type": "image" }])),
            "messages[0].content[0]",
        ),
        (
            assistant(json!([{ "type": "tool_use", "id": "x", "name": "f", "input": "{}" }])),
            "messages[0].content[0].input",
        ),
        (with(json!({ "system": 5 })), "system"),
        (
            with(json!({ "system": [{ "type": "image" }] })),
            "system[0]",
        ),
        (
            with(json!({ "tools": [{ "input_schema": {} }] })),
            "tools[0].name",
        ),
        (
            with(json!({ "tools": [{ "name": "f" }] })),
            "tools[0].input_schema",
        ),
        (with(json!({ "tool_choice": "auto" })), "tool_choice"),
        (
            with(json!({ "tool_choice": { "type": "must" } })),
            "tool_choice.type",
        ),
        (
            with(json!({ "tool_choice": { "type": "tool" } })),
            "tool_choice.name",
        ),
        (
            with(json!({ "tool_choice": { "type": "tool", "name": "f" } })),
            "tool_choice",
        ),
        (with(json!({ "tool_choice": { "type": "any" } })), "tools"),
        (
            with(json!({ "thinking": { "type": "much" } })),
            "thinking.type",
        ),
        (with(json!({ "thinking": {} })), "thinking.type"),
        (
            with(json!({ "stop_sequences": ["a", 1] })),
            "stop_sequences[1]",
        ),
        (with(json!({ "max_tokens": 0 })), "max_tokens"),
        (with(json!({ "temperature": 3 })), "temperature"),
        (with(json!({ "n": 2 })), "n"),
    ] {
        match parse(&body) {
            Ok(_) => panic!("{body} is taken"),
            Err(error) => assert_eq!(error.field(), Some(field), "{body}: {error}"),
        }
    }
}
