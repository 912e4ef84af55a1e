//! Argument values that are written as plain text, as JSON of the type that the tool's schema has for them.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::body::json::Relaxed;

/// References followed, and alternatives inside alternatives, at most.
const MAX_DEPTH: usize = 16;

/// What a schema allows, in its order.
#[derive(Debug, Clone, PartialEq)]
enum Type<'s> {
    Text,
    Number,
    Boolean,
    Object,
    Array,
    /// One of these values.
    OneOf(&'s [Value]),
    Const(&'s Value),
    /// Anything.
    Any,
}

/// How the text of a value is to be written.
pub(crate) enum Kind<'s> {
    /// As it is.
    Text,
    /// As one of these: texts as they are, others as JSON.
    Listed(&'s [Value]),
    /// As JSON that fits the schema.
    Json,
}

/// How a value of `schema` is written, whose references are about `root`.
pub(crate) fn kind<'s>(schema: &'s Value, root: &'s Value) -> Kind<'s> {
    let types = types(schema, root);
    match types.as_slice() {
        [Type::OneOf(values)] if !values.is_empty() => Kind::Listed(values),
        [Type::Const(value)] => Kind::Listed(std::slice::from_ref(value)),
        types => {
            let is_json = |kind: &Type<'_>| {
                matches!(
                    kind,
                    Type::Number | Type::Boolean | Type::Object | Type::Array
                )
            };
            match !types.is_empty() && types.iter().all(is_json) {
                true => Kind::Json,
                false => Kind::Text,
            }
        }
    }
}

/// Writes one value. A text is written as it grows; everything else when it is complete.
#[derive(Debug, Clone)]
pub(crate) struct ValueWriter {
    /// The schema, where the value may be no text, and the root that its references are about.
    schema: Option<(Value, Value)>,
    is_nullable: bool,
    is_open: bool,
    /// What is not written yet.
    held: String,
}

impl ValueWriter {
    /// A writer for a value of `schema`; without one the value is a text.
    pub fn new(schema: Option<&Value>, root: &Value) -> Self {
        let types = schema.map(|schema| types(schema, root));
        let is_text = types.is_none_or(|types| {
            let text = |value: &Value| value.is_string() || value.is_null();
            match types.first() {
                Some(Type::Text) => true,
                Some(Type::OneOf(values)) => values.iter().all(text),
                Some(Type::Const(value)) => text(value),
                _ => false,
            }
        });
        Self {
            schema: schema
                .filter(|_| !is_text)
                .map(|schema| (schema.clone(), root.clone())),
            is_nullable: schema.is_some_and(|schema| allows_null(schema, root, 0)),
            is_open: false,
            held: String::new(),
        }
    }

    /// Takes more of the text and gives what is certain of the JSON.
    pub fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.schema.is_some() || (!self.is_open && self.may_be_else()) {
            return String::new();
        }
        let opening = self.open();
        // A line break at the end may be the one that is not part of the value.
        let end = self.held.strip_suffix('\r').unwrap_or(&self.held);
        let end = without_line_break_at_end(end).len();
        let rest = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, rest);
        opening + &escaped(&text)
    }

    /// Ends the value.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        if let Some((schema, root)) = &self.schema {
            return to_json(trimmed(&held), schema, root);
        }
        if !self.is_open && self.is_nullable && trimmed(&held).trim() == "null" {
            return "null".to_owned();
        }
        self.held = held;
        let opening = if self.is_open {
            String::new()
        } else {
            self.open()
        };
        let held = std::mem::take(&mut self.held);
        opening + &escaped(without_line_break_at_end(&held)) + "\""
    }

    /// What there is of a value whose text breaks off.
    pub fn cut(&mut self) -> String {
        if self.schema.is_some() {
            return String::new();
        }
        let opening = if self.is_open {
            String::new()
        } else {
            self.open()
        };
        opening + &escaped(&std::mem::take(&mut self.held))
    }

    /// Whether what is held may still be a leading line break or a null.
    fn may_be_else(&self) -> bool {
        if self.held.is_empty() || self.held == "\r" {
            return true;
        }
        let text = without_line_break_at_start(&self.held).trim_start();
        self.is_nullable && ("null".starts_with(text.trim_end()))
    }

    fn open(&mut self) -> String {
        if self.is_open {
            return String::new();
        }
        self.is_open = true;
        let kept = without_line_break_at_start(&self.held).len();
        self.held.drain(..self.held.len() - kept);
        "\"".to_owned()
    }
}

/// The text between the quotes of a JSON string.
pub(crate) fn escaped(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// Of the line breaks around a value, one on each side is markup.
fn trimmed(text: &str) -> &str {
    without_line_break_at_end(without_line_break_at_start(text))
}

fn without_line_break_at_start(text: &str) -> &str {
    let cut = text
        .strip_prefix("\r\n")
        .or_else(|| text.strip_prefix('\n'));
    cut.unwrap_or(text)
}

fn without_line_break_at_end(text: &str) -> &str {
    let cut = text
        .strip_suffix("\r\n")
        .or_else(|| text.strip_suffix('\n'));
    cut.unwrap_or(text)
}

/// The value as JSON of the first type that it fits; what fits none is a string.
fn to_json(text: &str, schema: &Value, root: &Value) -> String {
    let word = text.trim();
    if word == "null" && allows_null(schema, root, 0) {
        return "null".to_owned();
    }
    let found = types(schema, root)
        .into_iter()
        .find_map(|kind| as_type(text, word, &kind));
    found.unwrap_or_else(|| Value::from(text).to_string())
}

fn as_type(text: &str, word: &str, kind: &Type<'_>) -> Option<String> {
    match kind {
        Type::Text => Some(Value::from(text).to_string()),
        Type::Number => is_number(word).then(|| word.to_owned()),
        Type::Boolean => match word.to_ascii_lowercase().as_str() {
            "true" => Some("true".to_owned()),
            "false" => Some("false".to_owned()),
            _ => None,
        },
        Type::Object => compound(word, '{'),
        Type::Array => compound(word, '['),
        Type::OneOf(values) => values.iter().find_map(|value| as_const(text, word, value)),
        Type::Const(value) => as_const(text, word, value),
        Type::Any => {
            let known = is_number(word) || ["true", "false", "null"].contains(&word);
            let known = known.then(|| word.to_owned());
            known
                .or_else(|| compound(word, '{'))
                .or_else(|| compound(word, '['))
        }
    }
}

fn as_const(text: &str, word: &str, value: &Value) -> Option<String> {
    let fits = match value {
        Value::String(expected) => text == expected || word == expected,
        other => serde_json::from_str::<Value>(word).is_ok_and(|found| found == *other),
    };
    fits.then(|| value.to_string())
}

/// The text itself, where it is a JSON number: no digit of it is lost.
pub(crate) fn is_number(word: &str) -> bool {
    let starts = word.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    starts && serde_json::from_str::<IgnoredAny>(word).is_ok()
}

/// The text itself, where it is an object or a list, else what it comes to if it is one in another notation.
fn compound(word: &str, open: char) -> Option<String> {
    if !word.starts_with(open) {
        return None;
    }
    if serde_json::from_str::<IgnoredAny>(word).is_ok() {
        return Some(word.to_owned());
    }
    Relaxed::whole(word)
}

fn types<'s>(schema: &'s Value, root: &'s Value) -> Vec<Type<'s>> {
    let mut found = Vec::new();
    collect(schema, root, 0, &mut found);
    found
}

fn collect<'s>(schema: &'s Value, root: &'s Value, depth: usize, found: &mut Vec<Type<'s>>) {
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(target) = referred(schema, root) {
        return collect(target, root, depth + 1, found);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return found.push(Type::OneOf(values));
    }
    if let Some(value) = schema.get("const") {
        return found.push(Type::Const(value));
    }
    match schema.get("type") {
        Some(Value::String(name)) => return found.extend(named(name)),
        Some(Value::Array(names)) => {
            for name in names.iter().filter_map(Value::as_str) {
                found.extend(named(name));
            }
            return;
        }
        _ => {}
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(ways) = schema.get(key).and_then(Value::as_array) {
            for way in ways {
                collect(way, root, depth + 1, found);
            }
            return;
        }
    }
    if let Some([first, ..]) = schema
        .get("allOf")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
    {
        return collect(first, root, depth + 1, found);
    }
    found.push(if schema.get("properties").is_some() {
        Type::Object
    } else if schema.get("items").is_some() {
        Type::Array
    } else {
        Type::Any
    });
}

/// Null is dealt with before all types.
fn named(name: &str) -> Option<Type<'static>> {
    match name {
        "string" => Some(Type::Text),
        "integer" | "number" => Some(Type::Number),
        "boolean" => Some(Type::Boolean),
        "object" => Some(Type::Object),
        "array" => Some(Type::Array),
        _ => None,
    }
}

fn allows_null(schema: &Value, root: &Value, depth: usize) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    if let Some(target) = referred(schema, root) {
        return allows_null(target, root, depth + 1);
    }
    let is_null = |value: &Value| value.is_null() || value == "null";
    let listed = |key: &str, fits: &dyn Fn(&Value) -> bool| {
        let list = schema.get(key).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(fits))
    };
    schema.get("type").is_some_and(|kind| kind == "null")
        || schema.get("nullable") == Some(&Value::Bool(true))
        || schema.get("const") == Some(&Value::Null)
        || listed("type", &is_null)
        || listed("enum", &Value::is_null)
        || ["anyOf", "oneOf"]
            .iter()
            .any(|key| listed(key, &|way| allows_null(way, root, depth + 1)))
}

/// What `$ref` points at inside the same schema.
fn referred<'s>(schema: &Value, root: &'s Value) -> Option<&'s Value> {
    let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    root.pointer(pointer)
}

#[cfg(test)]
mod tests;
