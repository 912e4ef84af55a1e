//! Tools: what the template gets, and calls in whole and streamed answers.

use generation::Grammar;
use router::RouterConfig;
use serde_json::{Value, json};

use crate::client::Reply;
use crate::script::{Script, answer, parsed};
use crate::server::{Server, TOKENIZER};

const CHAT: &str = "/v1/chat/completions";

/// A template that writes tools and calls as Qwen3.5's does.
const TEMPLATE: &str = include_str!("../../../crates/chat/src/fallback.jinja");

fn config() -> RouterConfig {
    RouterConfig {
        chat_template: Some(TEMPLATE.to_owned()),
        ..RouterConfig::default()
    }
}

fn tool(name: &str, properties: Value) -> Value {
    json!({ "type": "function", "function": {
        "name": name, "description": "d", "parameters": { "type": "object", "properties": properties },
    } })
}

fn tools() -> Value {
    json!([
        tool(
            "get_weather",
            json!({ "city": { "type": "string" }, "days": { "type": "integer" } })
        ),
        tool(
            "write_file",
            json!({ "path": { "type": "string" }, "content": { "type": "string" } })
        ),
        tool("now", json!({})),
    ])
}

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "hello" }], "tools": tools(),
        "chat_template_kwargs": { "enable_thinking": false },
    });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

fn call(name: &str, arguments: &[(&str, &str)]) -> String {
    let arguments = arguments.iter();
    let arguments: String = arguments
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>")
}

/// An answer as it can be compared: reasoning, content, calls with their names and arguments, the reason to end.
type Answer = (String, String, Vec<(String, Value)>, String);

fn whole(reply: &Reply) -> Answer {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let body = reply.json();
    let choice = &body["choices"][0];
    let message = &choice["message"];
    let text = |name: &str| message[name].as_str().unwrap_or("").to_owned();
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    let calls = message["tool_calls"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(
        message["content"].is_null(),
        !calls.is_empty() && text("content").is_empty()
    );
    let mut ids: Vec<&str> = calls
        .iter()
        .map(|call| call["id"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), calls.len());
    let calls = calls.iter().map(|call| {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        arguments(
            &call["function"]["name"],
            call["function"]["arguments"].as_str().unwrap(),
        )
    });
    let reason = choice["finish_reason"].as_str().unwrap().to_owned();
    (
        text("reasoning_content"),
        text("content"),
        calls.collect(),
        reason,
    )
}

fn arguments(name: &Value, json: &str) -> (String, Value) {
    let value = serde_json::from_str(json).unwrap_or_else(|_| json.into());
    (name.as_str().unwrap().to_owned(), value)
}

/// The same of a stream, as strict clients read it.
fn streamed(reply: &Reply) -> Answer {
    let (events, done) = reply.events();
    assert!(done);
    let (mut reasoning, mut content, mut reason) = (String::new(), String::new(), None);
    let mut calls: Vec<(Value, String)> = Vec::new();
    for choice in events.iter().flat_map(|e| e["choices"].as_array().unwrap()) {
        assert!(reason.is_none(), "nothing comes after the end");
        let delta = &choice["delta"];
        assert_eq!(delta["reasoning"], delta["reasoning_content"]);
        reasoning += delta["reasoning_content"].as_str().unwrap_or("");
        content += delta["content"].as_str().unwrap_or("");
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            let function = &call["function"];
            if let Some(id) = call["id"].as_str() {
                assert!(id.starts_with("call_"));
                assert_eq!((index, &call["type"]), (calls.len(), &json!("function")));
                assert_eq!(function["arguments"], "");
                calls.push((function["name"].clone(), String::new()));
            } else {
                assert_eq!(index, calls.len() - 1);
                assert!(call.get("type").is_none() && function.get("name").is_none());
                calls[index].1 += function["arguments"].as_str().unwrap();
            }
        }
        reason = choice["finish_reason"].as_str().map(str::to_owned);
    }
    let calls = calls.iter().map(|(name, json)| arguments(name, json));
    (reasoning, content, calls.collect(), reason.unwrap())
}

/// What comes of an answer, which is the same whole and streamed.
fn read(server: &Server, more: &Value) -> Answer {
    let found = whole(&server.post(CHAT, &ask(more.clone())));
    let mut stream = ask(more.clone());
    stream["stream"] = true.into();
    assert_eq!(streamed(&server.post(CHAT, &stream)), found);
    found
}

fn says(text: &str) -> Script {
    Script::says(&TOKENIZER, text).holding(8192)
}

#[test]
fn calls_come_out_of_the_text() {
    let weather = |city: &str| ("get_weather".to_owned(), json!({ "city": city }));
    let code = "if (a < b) { say(\"<b>é 🚀</b>\"); }\n</parameter> is no end";
    let paris = call("get_weather", &[("city", "Paris")]);
    for (text, content, calls, reason) in [
        (paris.clone(), "", vec![weather("Paris")], "tool_calls"),
        (
            format!("Let me see.\n\n{paris}\n{}\n", call("get_weather", &[("city", "Rome")])),
            "Let me see.",
            vec![weather("Paris"), weather("Rome")],
            "tool_calls",
        ),
        (
            format!("{paris} and then {}\nDone.", call("now", &[])),
            " and then\nDone.".trim_start(),
            vec![weather("Paris"), ("now".to_owned(), json!({}))],
            "tool_calls",
        ),
        (
            call("write_file", &[("path", "a.c"), ("content", code)]),
            "",
            vec![("write_file".to_owned(), json!({ "path": "a.c", "content": code }))],
            "tool_calls",
        ),
        (
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>".to_owned(),
            "",
            vec![("get_weather".to_owned(), json!({ "city": "Oslo", "days": 2 }))],
            "tool_calls",
        ),
        ("No tool is needed.".to_owned(), "No tool is needed.", vec![], "stop"),
        (call("unknown", &[]), &call("unknown", &[]), vec![], "stop"),
    ] {
        let server = Server::with(config(), says(&text));
        let found = read(&server, &json!({}));
        let expected = (String::new(), content.to_owned(), calls, reason.to_owned());
        assert_eq!(found, expected, "{text:?}");
    }
}

#[test]
fn arguments_stream_while_they_grow() {
    let text = call(
        "write_file",
        &[("path", "a"), ("content", "one two three four five")],
    );
    let server = Server::with(config(), says(&text));
    let (events, _) = server.post(CHAT, &ask(json!({ "stream": true }))).events();
    let fragments = events.iter().filter(|event| {
        let call = &event["choices"][0]["delta"]["tool_calls"][0];
        call.is_object() && call.get("id").is_none()
    });
    assert!(fragments.count() > 4, "{events:?}");
}

#[test]
fn calls_in_thoughts_are_made_only_where_the_thoughts_do_not_end() {
    let thinking = json!({ "chat_template_kwargs": {} });
    let now = call("now", &[]);
    let made = vec![("now".to_owned(), json!({}))];
    for (text, reasoning, content, calls, reason) in [
        (
            format!("I could {now}.\n</think>\n\nHello"),
            format!("I could {now}."),
            "Hello",
            vec![],
            "stop",
        ),
        (
            format!("Plan\n</think>\n\n{now}"),
            "Plan".to_owned(),
            "",
            made.clone(),
            "tool_calls",
        ),
        (
            format!("I will\n{now}"),
            "I will\n".to_owned(),
            "",
            made,
            "tool_calls",
        ),
        (
            "A <tool_call> is\n".to_owned(),
            "A <tool_call> is\n".to_owned(),
            "",
            vec![],
            "stop",
        ),
    ] {
        let server = Server::with(config(), says(&text));
        let expected = (reasoning, content.to_owned(), calls, reason.to_owned());
        assert_eq!(read(&server, &thinking), expected, "{text:?}");
    }
}

#[test]
fn one_call_is_all_where_they_are_not_parallel() {
    let text = format!(
        "{}\n{}",
        call("now", &[]),
        call("get_weather", &[("city", "Rome")])
    );
    let script = says(&text);
    let server = Server::with(config(), script.clone());
    let (_, _, calls, reason) = read(&server, &json!({ "parallel_tool_calls": false }));
    assert_eq!(calls, [("now".to_owned(), json!({}))]);
    assert_eq!(reason, "tool_calls");
    // The target is not left to make the rest.
    script.wait_for_drops(2);
    let tokens = server
        .post(CHAT, &ask(json!({ "parallel_tool_calls": false })))
        .json();
    let all = server.post(CHAT, &ask(json!({}))).json();
    let used = |body: &Value| body["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(used(&tokens) < used(&all));
}

#[test]
fn a_cut_call_ends_by_length_and_stop_strings_do_not_look_into_calls() {
    let text = call(
        "write_file",
        &[("path", "a"), ("content", "stop here and go on for long")],
    );
    let server = Server::with(config(), says(&text));
    let (_, content, calls, reason) = read(&server, &json!({ "max_tokens": 40 }));
    assert_eq!((content.as_str(), reason.as_str()), ("", "length"));
    assert_eq!(calls.len(), 1);
    let (_, _, calls, reason) = read(&server, &json!({ "stop": ["here", "<parameter"] }));
    assert_eq!(calls[0].1["content"], "stop here and go on for long");
    assert_eq!(reason, "tool_calls");
    let server = Server::with(config(), says(&format!("say it now {}", call("now", &[]))));
    let (_, content, calls, reason) = read(&server, &json!({ "stop": ["it"] }));
    assert_eq!(
        (content.as_str(), calls.len(), reason.as_str()),
        ("say ", 0, "stop")
    );
}

#[test]
fn without_tools_or_where_none_is_chosen_calls_are_text() {
    let now = call("now", &[]);
    let script = says(&now);
    let server = Server::with(config(), script.clone());
    for more in [
        json!({ "tools": [] }),
        json!({ "tools": null }),
        json!({ "tool_choice": "none" }),
    ] {
        let (_, content, calls, reason) = read(&server, &more);
        assert_eq!(
            (content, calls, reason.as_str()),
            (now.clone(), vec![], "stop")
        );
    }
    let prompt = TOKENIZER.decode(&script.asked()[0].prompt, true);
    assert!(!prompt.contains("<tools>"), "{prompt}");
}

#[test]
fn entries_of_tokens_go_with_calls_as_well() {
    let server = Server::with(config(), says(&call("now", &[])));
    let more = json!({ "logprobs": true, "top_logprobs": 1 });
    let body = server.post(CHAT, &ask(more.clone())).json();
    let entries = body["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    assert!(entries.len() > 3);
    let mut stream = ask(more);
    stream["stream"] = true.into();
    let (events, _) = server.post(CHAT, &stream).events();
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, entries);
}

/// A call, what came of it, and an answer, as clients send them back.
fn rounds() -> Value {
    json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "weather?" },
        { "role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            { "id": "call_1", "type": "function", "function": { "name": "get_weather", "arguments": "{\"city\": \"Paris\"}" } },
            { "id": "call_2", "type": "function", "function": { "name": "now", "arguments": "" } },
        ] },
        { "role": "tool", "tool_call_id": "call_1", "content": [{ "type": "text", "text": "sun" }] },
        { "role": "tool", "tool_call_id": "call_2", "content": "noon" },
        { "role": "assistant", "content": "Odd.", "tool_calls": [
            { "id": "call_3", "type": "function", "function": { "name": "get_weather", "arguments": "not json" } },
        ] },
        { "role": "tool", "tool_call_id": "call_3", "content": null },
    ])
}

#[test]
fn past_calls_are_rendered_from_the_request_alone() {
    let script = says("fine");
    let server = Server::with(config(), script.clone());
    let reply = server.post(CHAT, &ask(json!({ "messages": rounds() })));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = TOKENIZER.decode(&script.asked()[0].prompt, true);
    let expected = format!(
        "{}\n{}<|im_end|>\n<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\nOdd.\n\n<tool_call>\n<function=get_weather>\nnot json\n</function>\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\n\n</tool_response><|im_end|>\n",
        call("get_weather", &[("city", "Paris")]),
        call("now", &[])
    );
    assert!(prompt.contains(&expected), "{prompt}");
}

#[test]
fn a_template_that_knows_of_no_tools_is_told_in_words() {
    // The demo's own template.
    let script = says(&call("now", &[]));
    let server = Server::start(script.clone());
    let more = json!({ "messages": rounds() });
    let (_, _, calls, _) = read(&server, &more);
    assert_eq!(calls, [("now".to_owned(), json!({}))]);
    let prompt = TOKENIZER.decode(&script.asked()[0].prompt, true);
    for expected in [
        "<|im_start|>system\n# Tools\n\nThese functions can be called:\n\n<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"",
        "</tool_call>\n\nBe brief.<|im_end|>\n",
        &call("get_weather", &[("city", "Paris")]),
        "<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>\n",
    ] {
        assert!(prompt.contains(expected), "{expected}: {prompt}");
    }
}

#[test]
fn an_attribution_line_changes_nothing() {
    let body = |line: &str| {
        json!({ "messages": [
            { "role": "system", "content": [
                { "type": "text", "text": format!("x-anthropic-billing-header: {line};") },
                { "type": "text", "text": "Be brief." },
            ] },
            { "role": "user", "content": "hello" },
        ] })
    };
    let script = says("x");
    let server = Server::with(config(), script.clone());
    let plain = json!({ "messages": [
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": "hello" },
    ] });
    for body in [body("cc=1"), body("cc=2"), plain] {
        assert_eq!(server.post(CHAT, &body).status, 200);
    }
    let asked = script.asked();
    assert!(
        asked
            .iter()
            .all(|request| request.prompt == asked[0].prompt)
    );
    let script = says("x");
    let kept = RouterConfig {
        keep_attribution: true,
        ..config()
    };
    let server = Server::with(kept, script.clone());
    server.post(CHAT, &body("cc=1"));
    assert!(
        TOKENIZER
            .decode(&script.asked()[0].prompt, true)
            .contains("cc=1")
    );
}

#[test]
fn an_answer_goes_on_with_the_last_message() {
    let script = Script::new(|request| {
        let ids = TOKENIZER.encode(" and more", parsed());
        Ok(answer(request, &ids))
    });
    let server = Server::with(config(), script.clone());
    let messages = json!([
        { "role": "user", "content": "hello" }, { "role": "assistant", "content": "This is" },
    ]);
    let more = json!({ "messages": messages, "continue_final_message": true, "add_generation_prompt": false });
    let (_, content, _, _) = read(&server, &more);
    assert_eq!(content, " and more");
    let prompt = TOKENIZER.decode(&script.asked()[0].prompt, true);
    assert!(
        prompt.ends_with("<|im_start|>assistant\nThis is"),
        "{prompt}"
    );
    let thinking = json!([
        { "role": "user", "content": "hello" }, { "role": "assistant", "content": "<think>\nLet" },
    ]);
    let more = json!({ "messages": thinking, "continue_final_message": true });
    assert_eq!(read(&server, &more).0, " and more");
}

/// The grammar that the target got.
fn grammar(script: &Script, server: &Server, more: Value) -> Option<String> {
    let reply = server.post(CHAT, &ask(more));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let asked = script.asked();
    asked
        .last()
        .unwrap()
        .grammar
        .as_ref()
        .map(|grammar| match grammar {
            Grammar::Lark(lark) => lark.clone(),
            other => panic!("{other:?}"),
        })
}

#[test]
fn a_forced_call_and_strict_arguments_are_held_to() {
    let script = says(&call("now", &[]));
    let server = Server::with(config(), script.clone());
    assert_eq!(grammar(&script, &server, json!({})), None);
    assert_eq!(
        grammar(&script, &server, json!({ "tool_choice": "none" })),
        None
    );
    let required = grammar(&script, &server, json!({ "tool_choice": "required" })).unwrap();
    for name in ["get_weather", "write_file", "now"] {
        assert!(
            required.contains(&format!("<function={name}>")),
            "{required}"
        );
    }
    let named = json!({ "type": "function", "function": { "name": "now" } });
    let named = grammar(&script, &server, json!({ "tool_choice": named })).unwrap();
    assert!(
        named.contains("<function=now>") && !named.contains("write_file"),
        "{named}"
    );
    // An argument has its type, and may be missing.
    let weather = json!({ "type": "function", "function": { "name": "get_weather" } });
    let weather = grammar(&script, &server, json!({ "tool_choice": weather })).unwrap();
    assert!(
        weather.contains(r#"("<parameter=days>\n" %json {"type":"integer""#),
        "{weather}"
    );
    let mut strict = tools();
    strict[2]["function"]["strict"] = true.into();
    let strict = grammar(&script, &server, json!({ "tools": strict })).unwrap();
    assert!(
        strict.contains("%json {\"type\":\"object\",\"properties\":{}"),
        "{strict}"
    );
    assert!(
        strict.contains("[lazy]"),
        "text may come before the call: {strict}"
    );
}

#[test]
fn hundreds_of_tools_with_long_schemas_work() {
    let text = "a description that is long enough to be one ".repeat(6);
    let many: Vec<Value> = (0..400)
        .map(|n| {
            tool(
                &format!("tool_{n}"),
                json!({ "a": { "type": "string", "description": text } }),
            )
        })
        .collect();
    assert!(json!(many).to_string().len() > 100_000);
    let script = Script::says(&TOKENIZER, &call("tool_399", &[("a", "x")])).holding(1 << 20);
    let server = Server::with(config(), script.clone());
    for choice in ["auto", "required"] {
        let more = json!({ "tools": many, "tool_choice": choice });
        let (_, _, calls, _) = read(&server, &more);
        assert_eq!(calls, [("tool_399".to_owned(), json!({ "a": "x" }))]);
    }
    // The schemas are not in it.
    let more = json!({ "tools": many, "tool_choice": "required" });
    let grammar = grammar(&script, &server, more).unwrap();
    assert!(grammar.len() < 64 << 10, "{}", grammar.len());
}
