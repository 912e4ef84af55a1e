//! What bodies become: the shape that templates and the target take.

use api_types::{
    ChatRequest, CompletionRequest, CompressionMode, CompressionOptions, DetokenizeRequest, Effort,
    Prompt, TokenizeRequest, ToolChoice,
};
use serde_json::{Value, json};

fn chat(body: &Value) -> ChatRequest {
    match ChatRequest::from_body(body.to_string().as_bytes()) {
        Ok(request) => request,
        Err(error) => panic!("{body}: {error}"),
    }
}

fn messages(messages: &Value) -> Value {
    chat(&json!({ "messages": messages })).messages.into()
}

#[test]
fn system_texts_stand_first_as_one_message() {
    let sent = json!([
        { "role": "developer", "content": "one" },
        { "role": "user", "content": "hi" },
        { "role": "system", "content": [{ "type": "text", "text": "two" }] },
        { "role": "assistant", "content": "yes" },
    ]);
    let expected = json!([
        { "role": "system", "content": "one\n\ntwo" },
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": "yes" },
    ]);
    assert_eq!(messages(&sent), expected);
}

#[test]
fn parts_are_joined_and_null_is_nothing() {
    let sent = json!([
        { "role": "user", "name": null, "content": [
            { "type": "text", "text": "a" },
            { "type": "input_text", "text": "b", "cache_control": { "type": "ephemeral" } },
        ] },
        { "role": "assistant", "content": null, "refusal": null, "reasoning": "hm", "tool_calls": [
            { "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": [1]}" } },
            { "id": "c2", "type": "function", "function": { "name": "g", "arguments": "not json" } },
            { "id": "c3", "type": "function", "function": { "name": "h" } },
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": [{ "type": "text", "text": "done" }] },
    ]);
    let call = |id: &str, name: &str, arguments: Value| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let expected = json!([
        { "role": "user", "content": "ab" },
        { "role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
            call("c1", "f", json!({ "x": [1] })),
            call("c2", "g", json!("not json")),
            call("c3", "h", json!({})),
        ] },
        { "role": "tool", "content": "done", "tool_call_id": "c1" },
    ]);
    assert_eq!(messages(&sent), expected);
}

#[test]
fn variables_of_the_template_are_those_of_the_request() {
    let message = json!([{ "role": "user", "content": "x" }]);
    let body = json!({ "messages": message, "reasoning_effort": "low", "chat_template_kwargs": { "enable_thinking": false, "x": 1 } });
    let request = chat(&body);
    assert_eq!(
        Value::Object(request.template_kwargs),
        json!({ "enable_thinking": false, "x": 1 })
    );
    assert_eq!(request.thinking.effort, Some(Effort::Low));
}

#[test]
fn tools_are_given_on_unless_none_is_chosen() {
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": {} }, "odd": 1 });
    let (f, g) = (tool("f"), tool("g"));
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let allowed = |mode: &str| json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": [named("g")] } });
    let both = vec![f.clone(), g.clone()];
    for (choice, tools, expected) in [
        (json!(null), both.clone(), ToolChoice::Auto),
        (json!("auto"), both.clone(), ToolChoice::Auto),
        (json!("none"), Vec::new(), ToolChoice::None),
        (json!("required"), both.clone(), ToolChoice::Required),
        (json!("any"), both.clone(), ToolChoice::Required),
        (named("g"), both, ToolChoice::Named("g".to_owned())),
        (allowed("auto"), vec![g.clone()], ToolChoice::Auto),
        (allowed("required"), vec![g.clone()], ToolChoice::Required),
    ] {
        let body = json!({
            "messages": [{ "role": "user", "content": "x" }], "tools": [f, g], "tool_choice": choice,
            "parallel_tool_calls": false,
        });
        let request = chat(&body);
        assert_eq!((request.tools, request.tool_choice), (tools, expected));
        assert!(!request.parallel_tool_calls);
    }
}

#[test]
fn numbers_of_other_servers_mean_the_same_here() {
    let body = json!({
        "messages": [{ "role": "user", "content": "x" }], "top_k": -1, "seed": -1, "max_tokens": 1e3 as u64,
        "max_completion_tokens": 5, "rep_pen": 1.1, "repeat_last_n": 99_999_999_999_u64, "min_p": null, "model": "",
    });
    let options = chat(&body).options;
    assert_eq!(options.sampling.top_k, Some(0));
    assert_eq!(options.seed, None);
    assert_eq!(options.max_tokens, Some(1000));
    assert_eq!(options.sampling.repetition_penalty, Some(1.1));
    assert_eq!(options.sampling.repetition_window, Some(u32::MAX));
    assert_eq!(
        (options.sampling.min_p, options.model, options.n),
        (None, None, 1)
    );
    let body =
        br#"{"prompt": [1, 2], "seed": -2, "best_of": 2, "n": 2, "stop": "x", "suffix": ""}"#;
    let request = CompletionRequest::from_body(body).unwrap();
    assert_eq!(request.prompts, [Prompt::Tokens(vec![1, 2])]);
    assert_eq!(request.options.seed, Some(u64::MAX - 1));
    assert_eq!(request.options.stop, ["x"]);
}

#[test]
fn compression_is_a_mode_or_an_object() {
    let taken = |value: Value| {
        let messages = json!([{ "role": "user", "content": "hi" }]);
        chat(&json!({ "messages": messages, "prefill_compression": value })).compression
    };
    let options = |mode, keep_ratio| CompressionOptions {
        mode,
        keep_ratio,
        return_prompt: false,
    };
    assert_eq!(taken(Value::Null), options(None, None));
    assert_eq!(
        taken(json!("auto")),
        options(Some(CompressionMode::Auto), None)
    );
    assert_eq!(
        taken(json!({ "mode": "always", "keep_ratio": 0.25 })),
        options(Some(CompressionMode::Always), Some(0.25))
    );
    assert_eq!(taken(json!({ "keep_ratio": 1 })), options(None, Some(1.0)));
    assert!(taken(json!({ "return_prompt": true })).return_prompt);
}

#[test]
fn tokenizer_requests_have_the_defaults_of_llama_cpp() {
    let request = TokenizeRequest::from_body(br#"{"content": "x"}"#).unwrap();
    assert!(!request.add_special && request.parse_special && !request.with_pieces);
    let request = DetokenizeRequest::from_body(br#"{"tokens": []}"#).unwrap();
    assert!(request.tokens.is_empty());
}

#[test]
fn messages_of_errors_show_no_more_than_a_glimpse() {
    let body = json!({ "messages": [], "x": 1, "model": 5, "temperature": "9".repeat(5000) });
    let error = CompletionRequest::from_body(body.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "`prompt` is missing");
    let body = json!({ "prompt": "x", "temperature": "9".repeat(5000) });
    let error = CompletionRequest::from_body(body.to_string().as_bytes()).unwrap_err();
    let expected = format!(
        "`temperature` is the string \"{}...\"; expected a number from 0 to 2",
        "9".repeat(40)
    );
    assert_eq!(error.to_string(), expected);
}
