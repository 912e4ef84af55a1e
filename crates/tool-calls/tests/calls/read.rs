//! What an answer says and calls, read in one piece and in many.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use tool_calls::{CallEvent, CallParser, Ending, Tools};

/// Tools with arguments of all kinds.
pub static TOOLS: LazyLock<Arc<Tools>> = LazyLock::new(|| {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({ "type": "function", "function": { "name": name, "parameters": {
            "type": "object", "properties": properties, "required": required,
        } } })
    };
    Arc::new(Tools::from_nested(&[
        tool(
            "get_weather",
            json!({
                "city": { "type": "string" }, "days": { "type": "integer" },
                "unit": { "enum": ["celsius", "fahrenheit"] },
            }),
            json!(["city"]),
        ),
        tool(
            "write_file",
            json!({ "path": { "type": "string" }, "content": { "type": "string" } }),
            json!(["path", "content"]),
        ),
        tool("now", json!({}), json!([])),
        tool(
            "plan",
            json!({ "steps": { "type": "array" }, "options": { "type": "object" } }),
            json!([]),
        ),
        tool(
            "mcp__files__read-file",
            json!({ "path": { "type": "string" } }),
            json!([]),
        ),
    ]))
});

/// Only `get_weather`.
pub static ONE_TOOL: LazyLock<Arc<Tools>> = LazyLock::new(|| {
    Arc::new(Tools::from_nested(&[json!({ "function": {
        "name": "get_weather",
        "parameters": {
            "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
            "required": ["city"],
        },
    } })]))
});

/// What an answer comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    pub text: String,
    /// Names, and arguments as they were written.
    pub calls: Vec<(String, String)>,
}

/// Reads `chunks`; `Cut`: the answer breaks off.
pub fn read(tools: &Arc<Tools>, chunks: &[&str], ending: Ending) -> Found {
    let mut parser = CallParser::new(Arc::clone(tools), true, false);
    let mut events: Vec<CallEvent> = chunks.iter().flat_map(|c| parser.push(c)).collect();
    events.extend(parser.finish(ending));
    let mut found = Found::default();
    for event in events {
        match event {
            CallEvent::Text(text) => found.text += &text,
            CallEvent::Start(name) => found.calls.push((name, String::new())),
            CallEvent::Arguments(json) => found.calls.last_mut().unwrap().1 += &json,
        }
    }
    found
}

/// The same in one piece, character by character, and cut in two anywhere.
pub fn read_all_ways(tools: &Arc<Tools>, text: &str, ending: Ending) -> Found {
    let whole = read(tools, &[text], ending);
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let ends = places.iter().skip(1).copied().chain([text.len()]);
    let characters: Vec<&str> = places.iter().zip(ends).map(|(&a, b)| &text[a..b]).collect();
    assert_eq!(read(tools, &characters, ending), whole, "{text:?}");
    for at in places {
        let chunks = [&text[..at], &text[at..]];
        assert_eq!(read(tools, &chunks, ending), whole, "{chunks:?}");
    }
    whole
}
