//! `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::values::{as_float, python_float};

/// The filter, with the parameters in the order of transformers.
pub(crate) fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let given = |value: Option<Value>| value.filter(|v| !v.is_none());
    let ascii = ensure_ascii.or(kwargs.get::<Option<Value>>("ensure_ascii")?);
    let indent = given(indent.or(kwargs.get::<Option<Value>>("indent")?));
    let separators = given(kwargs.get::<Option<Value>>("separators")?);
    let sort_keys = kwargs.get::<Option<Value>>("sort_keys")?;
    kwargs.assert_all_used()?;
    let indent = indent.map(|indent| match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(indent.as_i64().unwrap_or(0).clamp(0, 64) as usize),
    });
    let (item, key) = match separators {
        Some(pair) => (part(&pair, 0)?, part(&pair, 1)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        out: String::new(),
        ascii: ascii.is_some_and(|v| v.is_true()),
        sort_keys: sort_keys.is_some_and(|v| v.is_true()),
        indent,
        item,
        key,
    };
    writer.value(value, 0)?;
    Ok(Value::from_safe_string(writer.out))
}

fn part(separators: &Value, index: usize) -> Result<String, Error> {
    Ok(separators.get_item_by_index(index)?.to_string())
}

struct Writer {
    out: String,
    ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl Writer {
    /// Deeper than any request that `serde_json` reads.
    const MAX_DEPTH: usize = 256;

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > Self::MAX_DEPTH {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                "value is nested too deeply",
            ));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool | ValueKind::Number => self.out.push_str(&scalar(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            other => {
                let detail = format!("{other} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.before_item(empty, depth);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        for (i, key) in keys.iter().enumerate() {
            self.before_item(i == 0, depth);
            match key.as_str() {
                Some(text) => self.string(text),
                None => self.string(&scalar(key)),
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close('}', keys.is_empty(), depth);
        Ok(())
    }

    fn before_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.item);
        }
        self.line(depth + 1);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn scalar(value: &Value) -> String {
    match (value.kind(), as_float(value)) {
        (ValueKind::None, _) => "null".to_owned(),
        (ValueKind::Bool, _) => if value.is_true() { "true" } else { "false" }.to_owned(),
        (_, Some(x)) if x.is_nan() => "NaN".to_owned(),
        (_, Some(x)) if x.is_infinite() => {
            if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        }
        (_, Some(x)) => python_float(x),
        _ => value.to_string(),
    }
}
