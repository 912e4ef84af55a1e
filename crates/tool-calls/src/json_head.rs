//! The beginning of a call that is one JSON object: `{"name": NAME, "arguments": {...}}` and its kin.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::body::json::Relaxed;
use crate::cursor::{Cursor, Read, Stop};
use crate::envelope::Envelope;
use crate::head::{Body, Start, Tail};
use crate::tools::{Tool, Tools};

/// Objects around the one that names the tool at most.
const MAX_WRAPPERS: usize = 2;

/// An object inside an envelope, or a list of such.
pub(crate) fn enveloped(
    tools: &Tools,
    envelope: &'static Envelope,
    cursor: &mut Cursor<'_>,
) -> Read<Start> {
    let in_list = cursor.peek()? == '[';
    if in_list {
        cursor.skip(1);
        cursor.white_space();
    }
    let tail = Tail {
        envelope: Some(envelope),
        in_list,
        ..Tail::default()
    };
    object(tools, tail, cursor)
}

/// Whether an object begins as one of arguments does.
pub(crate) fn begins_object(cursor: &mut Cursor<'_>) -> Read<()> {
    cursor.literal("{")?;
    cursor.white_space();
    match cursor.peek()? {
        '"' | '\'' | '}' | '<' | '_' => Ok(()),
        c if c.is_alphabetic() => Ok(()),
        _ => Err(Stop::No),
    }
}

/// Whether an object begins as arguments of `tool` do.
pub(crate) fn begins_arguments(tool: &Tool, cursor: &mut Cursor<'_>) -> Read<()> {
    cursor.literal("{")?;
    cursor.white_space();
    let key: String = value(cursor)?;
    cursor.white_space();
    cursor.literal(":")?;
    tool.property(&key).map(|_| ()).ok_or(Stop::No)
}

/// The text of arguments of `tool` that are the whole of an answer, if they are that.
pub(crate) fn whole_arguments(tool: &Tool, text: &str) -> Option<String> {
    let text = text.trim();
    let Ok(Value::Object(members)) = serde_json::from_str(text) else {
        return None;
    };
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let mut required = required.into_iter().flatten().filter_map(Value::as_str);
    let fits = required.all(|key| members.contains_key(key))
        && members.iter().all(|(key, value)| {
            tool.property(key)
                .is_some_and(|schema| has_type(value, schema))
        });
    fits.then(|| text.to_owned())
}

/// Only types that are one word are looked at; everything else may be meant.
fn has_type(value: &Value, schema: &Value) -> bool {
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => value.is_string(),
        Some("integer" | "number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        _ => true,
    }
}

/// An object that is a call, inside the envelope of its `tail` or without one. Without, it has to have arguments, and
/// nothing that a call has not.
pub(crate) fn object(tools: &Tools, mut tail: Tail, cursor: &mut Cursor<'_>) -> Read<Start> {
    let is_bare = tail.envelope.is_none();
    cursor.literal("{")?;
    tail.braces += 1;
    let (mut tool, mut given) = (None, None);
    loop {
        cursor.white_space();
        match cursor.peek()? {
            ',' => {
                cursor.skip(1);
                continue;
            }
            '}' => {
                cursor.skip(1);
                tail.braces -= 1;
                let tool: usize = tool.ok_or(Stop::No)?;
                let nothing = !is_bare && tools.list()[tool].needs_nothing();
                let arguments = given.or_else(|| nothing.then(|| "{}".to_owned()));
                return Ok(Start {
                    tool,
                    body: Body::Given(arguments.ok_or(Stop::No)?),
                    tail,
                });
            }
            _ => {}
        }
        let key: String = value(cursor)?;
        cursor.white_space();
        cursor.literal(":")?;
        cursor.white_space();
        match (key.as_str(), cursor.peek()?) {
            ("function", '{') if tail.braces < MAX_WRAPPERS => return object(tools, tail, cursor),
            ("name" | "function" | "tool" | "tool_name", _) => {
                let name: String = value(cursor)?;
                tool = Some(tools.place(&name).ok_or(Stop::No)?);
            }
            ("arguments" | "parameters" | "args", '{') if tool.is_some() => {
                let mut ahead = *cursor;
                begins_object(&mut ahead)?;
                return Ok(Start {
                    tool: tool.ok_or(Stop::No)?,
                    body: Body::Json(Relaxed::object()),
                    tail,
                });
            }
            ("arguments" | "parameters" | "args", _) => given = Some(arguments(cursor)?),
            ("type" | "id" | "call_id" | "index", _) => skip(cursor)?,
            _ if is_bare => return Err(Stop::No),
            _ => skip(cursor)?,
        }
    }
}

/// Arguments as an object, as a string that spells one, or none.
fn arguments(cursor: &mut Cursor<'_>) -> Read<String> {
    let from = cursor.rest();
    let at = cursor.at();
    let found: Value = value(cursor)?;
    match found {
        Value::Null => Ok("{}".to_owned()),
        // As it is written: no digit of it is lost.
        Value::Object(_) => Ok(from[..cursor.at() - at].to_owned()),
        Value::String(text) if text.trim().is_empty() => Ok("{}".to_owned()),
        Value::String(text) if serde_json::from_str::<IgnoredAny>(&text).is_ok() => {
            let text = text.trim();
            text.starts_with('{')
                .then(|| text.to_owned())
                .ok_or(Stop::No)
        }
        Value::String(text) if text.trim().starts_with('{') => {
            Relaxed::whole(text.trim()).ok_or(Stop::No)
        }
        _ => Err(Stop::No),
    }
}

fn skip(cursor: &mut Cursor<'_>) -> Read<()> {
    value::<IgnoredAny>(cursor).map(|_| ())
}

/// A member behind the arguments: `, "key": value`.
pub(crate) fn member(cursor: &mut Cursor<'_>) -> Read<()> {
    cursor.literal(",")?;
    cursor.white_space();
    let _: String = value(cursor)?;
    cursor.white_space();
    cursor.literal(":")?;
    cursor.white_space();
    skip(cursor)
}

/// A complete JSON value.
fn value<T: DeserializeOwned>(cursor: &mut Cursor<'_>) -> Read<T> {
    let rest = cursor.rest();
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<T>();
    match values.next() {
        None => Err(cursor.short()),
        Some(Err(error)) if error.is_eof() => Err(cursor.short()),
        Some(Err(_)) => Err(Stop::No),
        Some(Ok(value)) => {
            let len = values.byte_offset();
            // More digits may follow a number.
            if len == rest.len() && !rest.ends_with(['"', '}', ']']) {
                return Err(cursor.short());
            }
            cursor.skip(len);
            Ok(value)
        }
    }
}
