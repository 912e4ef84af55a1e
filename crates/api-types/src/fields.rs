//! A JSON object whose fields are taken out one by one, so that every complaint names its field and what is left over
//! is unknown. A null field is an absent one.

use std::ops::RangeInclusive;

use serde_json::{Map, Number, Value};

use crate::error::RequestError;

/// Longest piece of a value that is shown in a message, in characters.
const SHOWN_CHARS: usize = 40;

pub(crate) struct Fields {
    /// Where the object stands in the body: empty, or a path ending in a dot.
    prefix: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The object that is the body.
    pub fn of_body(body: &[u8]) -> Result<Self, RequestError> {
        let text = std::str::from_utf8(body).map_err(|error| RequestError::NotUtf8 {
            offset: error.valid_up_to(),
        })?;
        if text.trim().is_empty() {
            return Err(RequestError::EmptyBody);
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Self {
                prefix: String::new(),
                map,
            }),
            Ok(other) => Err(RequestError::NotAnObject {
                found: kind(&other),
            }),
            Err(error) => Err(RequestError::NotJson {
                message: error.to_string(),
            }),
        }
    }

    /// The object at `path`.
    pub fn at(path: &str, value: Value) -> Result<Self, RequestError> {
        match value {
            Value::Object(map) => Ok(Self {
                prefix: format!("{path}."),
                map,
            }),
            other => Err(RequestError::wrong(path, shown(&other), "an object")),
        }
    }

    /// The full path of field `name`.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Takes a field of any type.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        // The order of what remains is nobody's business.
        self.map.swap_remove(name).filter(|value| !value.is_null())
    }

    /// Takes the first of several names for one field.
    pub fn aliased<'n>(&mut self, names: &[&'n str]) -> Option<(&'n str, Value)> {
        let mut found = None;
        for &name in names {
            let value = self.value(name).map(|value| (name, value));
            found = found.or(value);
        }
        found
    }

    pub fn bool(&mut self, name: &str) -> Result<Option<bool>, RequestError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, &other, "true or false")),
        }
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, RequestError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, &other, "a string")),
        }
    }

    pub fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, RequestError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong(name, &other, "a list")),
        }
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, RequestError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.wrong(name, &other, "an object")),
        }
    }

    /// Takes a whole number under any of `names`, of which the first counts and each has to be right; those above the range
    /// count as its end when `above` says so.
    pub fn integer(
        &mut self,
        names: &[&str],
        range: RangeInclusive<u32>,
        above: Above,
    ) -> Result<Option<u32>, RequestError> {
        let number = |value: &Value| {
            value
                .as_number()
                .and_then(Number::as_u64)
                .map(|number| match above {
                    Above::Clamped => number.min(u64::from(*range.end())),
                    Above::Refused => number,
                })
                .and_then(|number| u32::try_from(number).ok())
                .filter(|number| range.contains(number))
        };
        let expected = match above {
            Above::Clamped => format!("a whole number from {}", range.start()),
            Above::Refused => format!("a whole number from {} to {}", range.start(), range.end()),
        };
        self.first(names, number, &expected)
    }

    /// Takes a number under any of `names` for which `fits` holds; the first counts, and each has to be right.
    pub fn float(
        &mut self,
        names: &[&str],
        fits: impl Fn(f32) -> bool,
        expected: &str,
    ) -> Result<Option<f32>, RequestError> {
        let number = |value: &Value| as_f32(value).filter(|&number| fits(number));
        self.first(names, number, expected)
    }

    fn first<T>(
        &mut self,
        names: &[&str],
        read: impl Fn(&Value) -> Option<T>,
        expected: &str,
    ) -> Result<Option<T>, RequestError> {
        let mut first = None;
        for name in names {
            let Some(value) = self.value(name) else {
                continue;
            };
            let read = read(&value).ok_or_else(|| self.wrong(name, &value, expected))?;
            first = first.or(Some(read));
        }
        Ok(first)
    }

    /// Drops fields that ask for nothing.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.swap_remove(*name);
        }
    }

    /// Refuses fields that ask for what is not there, unless they are empty.
    pub fn refuse(&mut self, names: &[&str]) -> Result<(), RequestError> {
        for name in names {
            if let Some(value) = self.value(name)
                && !is_empty(&value)
            {
                return Err(RequestError::unsupported(self.path(name), "this is"));
            }
        }
        Ok(())
    }

    /// Refuses what nobody took.
    pub fn finish(self) -> Result<(), RequestError> {
        match self.map.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => Err(RequestError::UnknownField {
                field: shorten(&format!("{}{name}", self.prefix)),
            }),
        }
    }

    pub fn wrong(&self, name: &str, found: &Value, expected: &str) -> RequestError {
        RequestError::wrong(self.path(name), shown(found), expected)
    }
}

/// What becomes of a whole number above its range.
#[derive(Clone, Copy)]
pub(crate) enum Above {
    /// It counts as the end of the range.
    Clamped,
    /// It is an error.
    Refused,
}

/// The number, if it is one that fits.
pub(crate) fn as_f32(value: &Value) -> Option<f32> {
    let number = value.as_f64()? as f32;
    number.is_finite().then_some(number)
}

/// A token id.
pub(crate) fn as_token(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A value in a message: its type, and itself where it is short and says more.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => shorten(&number.to_string()),
        Value::Bool(value) => value.to_string(),
        Value::String(text) => format!("the string \"{}\"", shorten(text)),
        other => kind(other).to_owned(),
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
