//! The messages of a conversation, brought into the shape that chat templates take.

use serde_json::{Map, Value};

use crate::error::RequestError;
use crate::fields::{Fields, shown};
use crate::tokens::missing;

const ROLES: &str = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";

/// Checks the messages. System and developer messages go to the front as one, wherever they stood: templates take no
/// other place for them.
pub(crate) fn check(items: Vec<Value>) -> Result<Vec<Value>, RequestError> {
    if items.is_empty() {
        return Err(empty());
    }
    let mut system: Vec<String> = Vec::new();
    let mut turns = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match message(&format!("messages[{index}]"), item)? {
            Message::System(text) => system.push(text),
            Message::Turn(turn) => turns.push(turn),
        }
    }
    assemble(system, turns)
}

/// There is nothing to answer.
pub(crate) fn empty() -> RequestError {
    RequestError::wrong("messages", "an empty list", "one message at least")
}

/// A conversation of turns, with all system texts in front.
pub(crate) fn assemble(
    system: Vec<String>,
    turns: Vec<Map<String, Value>>,
) -> Result<Vec<Value>, RequestError> {
    let messages: Vec<Value> = turns.into_iter().map(Value::Object).collect();
    if let [.., before, last] = messages.as_slice()
        && before["role"] == "assistant"
        && last["role"] == "assistant"
    {
        let found = "ending with two assistant messages";
        let expected = "one of them at the end";
        return Err(RequestError::wrong("messages", found, expected));
    }
    Ok(in_order(system, messages))
}

/// The turns behind what systems and developers say, which is one message.
pub(crate) fn in_order(system: Vec<String>, mut turns: Vec<Value>) -> Vec<Value> {
    if !system.is_empty() {
        let mut first = Map::new();
        first.insert("role".to_owned(), "system".into());
        first.insert("content".to_owned(), system.join("\n\n").into());
        turns.insert(0, Value::Object(first));
    }
    turns
}

/// Whether the last message is what an answer can go on with.
pub(crate) fn is_begun(messages: &[Value]) -> bool {
    messages
        .last()
        .is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none())
}

enum Message {
    System(String),
    Turn(Map<String, Value>),
}

fn message(path: &str, item: Value) -> Result<Message, RequestError> {
    let mut fields = Fields::at(path, item)?;
    let role = fields.string("role")?;
    let role = role.ok_or_else(|| missing(&fields.path("role")))?;
    // Parts of a system text are texts of their own; those of others go on from each other.
    let between = match role.as_str() {
        "system" | "developer" => "\n\n",
        _ => "",
    };
    let content = content(&fields.path("content"), fields.value("content"), between)?;
    let mut turn = Map::new();
    turn.insert("role".to_owned(), role.as_str().into());
    match role.as_str() {
        "system" | "developer" => {
            return content
                .map(Message::System)
                .ok_or_else(|| missing(&fields.path("content")));
        }
        "user" | "tool" => {
            // A tool may have nothing to say.
            let content = content.or_else(|| (role == "tool").then(String::new));
            let content = content.ok_or_else(|| missing(&fields.path("content")))?;
            turn.insert("content".to_owned(), content.into());
        }
        "assistant" => {
            let calls = tool_calls(&mut fields)?;
            if content.is_none() && calls.is_empty() {
                return Err(missing(&fields.path("content")));
            }
            turn.insert("content".to_owned(), content.unwrap_or_default().into());
            if let Some((_, reasoning)) = fields.aliased(&["reasoning_content", "reasoning"]) {
                turn.insert("reasoning_content".to_owned(), reasoning);
            }
            if !calls.is_empty() {
                turn.insert("tool_calls".to_owned(), calls.into());
            }
        }
        other => return Err(fields.wrong("role", &other.into(), ROLES)),
    }
    for name in ["name", "tool_call_id"] {
        if let Some(value) = fields.string(name)? {
            turn.insert(name.to_owned(), value.into());
        }
    }
    // What else clients send back of an answer (refusal, annotations, audio) says nothing to a template.
    Ok(Message::Turn(turn))
}

/// A string, or parts that are joined to one.
pub(crate) fn content(
    path: &str,
    value: Option<Value>,
    between: &str,
) -> Result<Option<String>, RequestError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate();
            let texts = parts.map(|(index, part)| part_text(&format!("{path}[{index}]"), part));
            let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
            Ok(Some(texts.join(between)))
        }
        Some(other) => Err(RequestError::wrong(
            path,
            shown(&other),
            "a string or a list of parts",
        )),
    }
}

/// The text of a part.
pub(crate) fn part_text(path: &str, part: Value) -> Result<String, RequestError> {
    let mut fields = Fields::at(path, part)?;
    let kind = fields.string("type")?;
    let kind = kind.ok_or_else(|| missing(&fields.path("type")))?;
    let name = match kind.as_str() {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        other => {
            let what = format!("a part of type {} is", shown(&other.into()));
            return Err(RequestError::Unsupported {
                field: path.to_owned(),
                what,
                hint: "; this model reads text only".to_owned(),
            });
        }
    };
    fields
        .string(name)?
        .ok_or_else(|| missing(&fields.path(name)))
}

/// Past tool calls; arguments in a JSON string become the object they spell, since templates walk through them.
fn tool_calls(fields: &mut Fields) -> Result<Vec<Value>, RequestError> {
    let path = fields.path("tool_calls");
    let mut calls = fields.array("tool_calls")?.unwrap_or_default();
    for (index, call) in calls.iter_mut().enumerate() {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
            return Err(missing(&format!("{path}[{index}].function")));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(missing(&format!("{path}[{index}].function.name")));
        }
        let Some(arguments) = function.get_mut("arguments") else {
            function.insert("arguments".to_owned(), Value::Object(Map::new()));
            continue;
        };
        *arguments = self::arguments(arguments.take());
    }
    Ok(calls)
}

/// The object that the arguments of a call spell, or they themselves.
pub(crate) fn arguments(sent: Value) -> Value {
    let parsed = match &sent {
        Value::Null => Some(Value::Object(Map::new())),
        // What calls without arguments are often given as.
        Value::String(text) if text.trim().is_empty() => Some(Value::Object(Map::new())),
        Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object),
        _ => None,
    };
    parsed.unwrap_or(sent)
}
