//! What bodies of the Responses API become.

use api_types::{DeclaredTool, REASONING_MARK, RequestError, ResponsesRequest, ToolChoice};
use serde_json::{Value, json};

fn parsed(body: &Value) -> Result<ResponsesRequest, RequestError> {
    ResponsesRequest::from_body(body.to_string().as_bytes())
}

fn request(body: &Value) -> ResponsesRequest {
    match parsed(body) {
        Ok(request) => request,
        Err(error) => panic!("{body}: {error}"),
    }
}

fn messages(input: Value) -> Value {
    request(&json!({ "input": input })).chat.messages.into()
}

fn with(mut body: Value, more: &Value) -> Value {
    let fields = body.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    body
}

#[test]
fn instructions_stand_before_all_that_developers_say() {
    let body = json!({ "instructions": "first", "input": [
        { "role": "developer", "content": "second" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
        { "type": "message", "role": "system", "content": "third" },
    ] });
    let expected = json!([
        { "role": "system", "content": "first\n\nsecond\n\nthird" },
        { "role": "user", "content": "hi" },
    ]);
    assert_eq!(Value::from(request(&body).chat.messages), expected);
    assert_eq!(
        messages(json!("hi")),
        json!([{ "role": "user", "content": "hi" }])
    );
}

#[test]
fn what_the_assistant_did_between_others_is_one_turn() {
    let input = json!([
        { "role": "user", "content": "hi" },
        { "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": format!("{REASONING_MARK}hm") },
        { "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
          "content": [{ "type": "output_text", "text": "I look.", "annotations": [] }] },
        { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": [1]}" },
        { "type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin" },
        { "type": "function_call", "call_id": "c3", "namespace": "mcp__files", "name": "read", "arguments": "no json" },
        { "type": "function_call_output", "call_id": "c1", "output": "one" },
        { "type": "custom_tool_call_output", "call_id": "c2", "output": [
            { "type": "input_text", "text": "two" }, { "type": "input_image", "image_url": "data:x" } ] },
        { "type": "web_search_call", "id": "ws_1", "status": "completed" },
        { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "so" }], "encrypted_content": "from elsewhere" },
        { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "then" }] },
        { "role": "assistant", "content": "Done." },
        { "role": "user", "content": "thanks" },
    ]);
    let call = |id: &str, name: &str, arguments: Value| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let expected = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
            call("c1", "f", json!({ "x": [1] })),
            call("c2", "patch", json!({ "input": "*** Begin" })),
            call("c3", "mcp__files__read", json!("no json")),
        ] },
        { "role": "tool", "content": "one", "tool_call_id": "c1" },
        { "role": "tool", "content": "two[an image that this model cannot see]", "tool_call_id": "c2" },
        { "role": "assistant", "content": "Done.", "reasoning_content": "so\n\nthen" },
        { "role": "user", "content": "thanks" },
    ]);
    assert_eq!(messages(input), expected);
}

#[test]
fn tools_become_functions_and_keep_their_names() {
    let parameters = json!({ "type": "object", "properties": { "z": {}, "a": {} } });
    let body = json!({ "input": "hi", "tools": [
        { "type": "function", "name": "f", "description": "does", "parameters": parameters, "strict": false },
        { "type": "custom", "name": "patch", "description": "edits", "format": { "type": "grammar", "syntax": "lark", "definition": "start: x" } },
        { "type": "namespace", "name": "files", "description": "of files", "tools": [
            { "type": "function", "name": "read", "strict": true },
            { "type": "custom", "name": "write" },
            { "type": "computer" },
        ] },
        { "type": "web_search" },
        { "type": "local_shell" },
    ] });
    let request = request(&body);
    let tools = &request.chat.tools;
    assert_eq!(
        tools[0],
        json!({ "type": "function", "function": { "name": "f", "description": "does", "parameters": parameters } })
    );
    let input = &tools[1]["function"]["parameters"]["properties"]["input"];
    assert_eq!(input["type"], "string");
    assert!(
        input["description"]
            .as_str()
            .unwrap()
            .ends_with("(lark):\nstart: x"),
        "{input}"
    );
    assert_eq!(
        tools[2]["function"],
        json!({ "name": "files__read", "strict": true })
    );
    assert_eq!(tools[3]["function"]["name"], "files__write");
    assert_eq!(tools.len(), 4);
    assert_eq!(
        request.chat.skipped_tools,
        ["computer", "web_search", "local_shell"]
    );
    let declared = |name: &str, namespace: Option<&str>, takes_text| DeclaredTool {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
        takes_text,
    };
    assert_eq!(request.tools["f"], declared("f", None, false));
    assert_eq!(request.tools["patch"], declared("patch", None, true));
    assert_eq!(
        request.tools["files__write"],
        declared("write", Some("files"), true)
    );
    // The answer repeats them as they were sent, functions with all their keys.
    assert_eq!(request.asked.tools.len(), 5);
    assert_eq!(request.asked.tools[0], body["tools"][0]);
    assert_eq!(request.asked.tools[3], json!({ "type": "web_search" }));
}

#[test]
fn the_choice_of_tools_has_all_its_forms() {
    let tools = json!({ "input": "hi", "tools": [
        { "type": "function", "name": "f" },
        { "type": "custom", "name": "patch" },
        { "type": "namespace", "name": "files", "tools": [{ "type": "function", "name": "read" }] },
    ] });
    let chosen = |choice: Value| {
        let request = request(&with(tools.clone(), &json!({ "tool_choice": choice })));
        (request.chat.tool_choice, request.chat.tools.len())
    };
    let named = |name: &str| ToolChoice::Named(name.to_owned());
    assert_eq!(request(&tools).chat.tool_choice, ToolChoice::Auto);
    assert_eq!(chosen(json!("auto")), (ToolChoice::Auto, 3));
    assert_eq!(chosen(json!("none")), (ToolChoice::None, 0));
    assert_eq!(chosen(json!("required")), (ToolChoice::Required, 3));
    assert_eq!(
        chosen(json!({ "type": "function", "name": "f" })),
        (named("f"), 3)
    );
    assert_eq!(
        chosen(json!({ "type": "custom", "name": "patch" })),
        (named("patch"), 3)
    );
    assert_eq!(
        chosen(json!({ "type": "function", "name": "read" })),
        (named("files__read"), 3)
    );
    let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [
        { "type": "function", "name": "f" }, { "type": "web_search" },
    ] });
    assert_eq!(chosen(allowed), (ToolChoice::Required, 1));
}

#[test]
fn options_have_the_names_of_this_api() {
    let body = json!({
        "input": "hi", "model": "m", "stream": true, "max_output_tokens": 9, "temperature": 0.5,
        "top_p": 0.9, "top_logprobs": 2, "include": ["reasoning.encrypted_content"], "store": true,
        "metadata": { "k": "v" }, "truncation": "auto", "prompt_cache_key": "p", "user": "u",
        "reasoning": { "effort": "none", "summary": "auto" }, "text": { "verbosity": "low" },
        "client_metadata": { "x": 1 }, "never_heard_of": [1], "stream_options": { "include_obfuscation": false },
        "previous_response_id": null, "background": false, "prompt": null,
    });
    let request = request(&body);
    let (chat, asked) = (&request.chat, &request.asked);
    assert_eq!(
        (chat.options.max_tokens, asked.max_output_tokens),
        (Some(9), Some(9))
    );
    assert_eq!(chat.top_logprobs, Some(2));
    assert!(chat.options.stream && request.includes_reasoning);
    assert_eq!(asked.reasoning.summary.as_deref(), Some("auto"));
    assert_eq!(asked.text.format, json!({ "type": "text" }));
    assert_eq!(asked.metadata["k"], "v");
    let logprobs = json!({ "input": "hi", "include": ["message.output_text.logprobs"] });
    assert_eq!(wanted_logprobs(&logprobs), Some(0));
    assert_eq!(
        wanted_logprobs(&json!({ "input": "hi", "top_logprobs": 0 })),
        None
    );
}

fn wanted_logprobs(body: &Value) -> Option<u32> {
    request(body).chat.top_logprobs
}

#[test]
fn what_cannot_be_is_refused_by_its_field() {
    let call = json!({ "type": "function_call", "call_id": "c", "name": "f" });
    let image = json!({ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] });
    for (fields, field) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": ["x"] }), "input[0]"),
        (json!({ "input": [{ "content": "x" }] }), "input[0].role"),
        (
            json!({ "input": [{ "role": "robot", "content": "x" }] }),
            "input[0].role",
        ),
        (json!({ "input": [{ "role": "user" }] }), "input[0].content"),
        (json!({ "input": [image] }), "input[0].content[0]"),
        (
            json!({ "input": [{ "type": "item_reference", "id": "x" }] }),
            "input[0]",
        ),
        (
            json!({ "input": [{ "type": "computer_call" }] }),
            "input[0]",
        ),
        (json!({ "input": [call] }), "input[0].arguments"),
        (
            json!({ "input": [{ "type": "function_call_output", "output": "x" }] }),
            "input[0].call_id",
        ),
        (
            json!({ "input": [{ "type": "function_call_output", "call_id": "c" }] }),
            "input[0].output",
        ),
        (
            json!({ "previous_response_id": "resp_1" }),
            "previous_response_id",
        ),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "prompt": { "id": "p" } }), "prompt"),
        (json!({ "background": true }), "background"),
        (json!({ "instructions": 5 }), "instructions"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "metadata": [] }), "metadata"),
        (json!({ "include": [1] }), "include[0]"),
        (json!({ "reasoning": "high" }), "reasoning"),
        (json!({ "text": { "format": {} } }), "text.format.type"),
        (
            json!({ "text": { "format": { "type": "json_object" } }, "guided_choice": ["a"] }),
            "guided_choice",
        ),
        (
            json!({ "text": { "format": { "type": "xml" } } }),
            "text.format.type",
        ),
        (json!({ "tools": [1] }), "tools[0]"),
        (json!({ "tools": [{ "name": "f" }] }), "tools[0].type"),
        (
            json!({ "tools": [{ "type": "function" }] }),
            "tools[0].name",
        ),
        (
            json!({ "tools": [{ "type": "namespace", "name": "n", "tools": [{ "type": "function" }] }] }),
            "tools[0].tools[0].name",
        ),
        (
            json!({ "tools": [{ "type": "custom", "name": "c", "format": { "type": "x" } }] }),
            "tools[0].format.type",
        ),
        (json!({ "tool_choice": "perhaps" }), "tool_choice"),
        (json!({ "tool_choice": "required" }), "tools"),
        (
            json!({ "tool_choice": { "type": "function", "name": "g" } }),
            "tool_choice.name",
        ),
        (
            json!({ "tool_choice": { "type": "web_search" } }),
            "tool_choice.type",
        ),
        (json!({ "tool_choice": {} }), "tool_choice.type"),
    ] {
        let body = with(json!({ "input": "hi" }), &fields);
        let error = parsed(&body).expect_err(&fields.to_string());
        assert_eq!(error.field(), Some(field), "{fields}: {error}");
    }
}
