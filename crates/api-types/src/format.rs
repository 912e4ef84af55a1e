//! What an answer has to match: a JSON schema, a regular expression, a grammar or one of several texts.

use serde_json::Value;

use crate::error::RequestError;
use crate::fields::{Fields, shown};
use crate::tokens::missing;

/// Kinds of formats.
const KINDS: &str = "\"text\", \"json_object\" or \"json_schema\"";
/// Texts to choose from at most.
const MAX_CHOICES: usize = 10_000;

/// What an answer has to match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseFormat {
    /// The field of the request that says so.
    pub field: String,
    /// What it says.
    pub grammar: FormatGrammar,
}

/// How it is said what an answer has to match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatGrammar {
    /// A JSON schema, as JSON.
    JsonSchema(String),
    /// A regular expression for the whole answer.
    Regex(String),
    /// A grammar in llguidance's form of Lark.
    Lark(String),
}

impl ResponseFormat {
    /// Takes every field that says what an answer has to match; one of them at most may, `own` among them: what the API's own
    /// field says.
    pub(crate) fn take(
        fields: &mut Fields,
        own: Option<Self>,
    ) -> Result<Option<Self>, RequestError> {
        refuse_gbnf(fields)?;
        let mut formats = Vec::from_iter(own);
        if let Some(value) = fields.value("response_format") {
            formats.extend(take_response_format(value)?);
        }
        if let Some(value) = fields.value("structured_outputs") {
            let mut outputs = Fields::at("structured_outputs", value)?;
            for (name, read) in [
                ("json", schema as Read),
                ("regex", regex as Read),
                ("grammar", lark as Read),
                ("choice", choice as Read),
            ] {
                formats.extend(take_one(&mut outputs, name, read)?);
            }
            if outputs.bool("json_object")?.unwrap_or(false) {
                formats.push(any_object(outputs.path("json_object")));
            }
            outputs.refuse(&["structural_tag"])?;
        }
        for (name, read) in [
            ("guided_json", schema as Read),
            ("guided_regex", regex as Read),
            ("guided_grammar", lark as Read),
            ("guided_choice", choice as Read),
            ("json_schema", schema as Read),
        ] {
            formats.extend(take_one(fields, name, read)?);
        }
        if let [first, second, ..] = formats.as_slice() {
            return Err(RequestError::wrong(
                second.field.clone(),
                format!("beside `{}`", first.field),
                "one thing that the answer has to match",
            ));
        }
        Ok(formats.pop())
    }

    /// A format whose schema stands in it, at `path`.
    pub(crate) fn of_flat(path: &str, value: Value) -> Result<Option<Self>, RequestError> {
        let mut format = Fields::at(path, value)?;
        match format.string("type")?.as_deref() {
            None => Err(missing(&format.path("type"))),
            Some("text") => Ok(None),
            Some("json_object") => Ok(Some(any_object(path.to_owned()))),
            Some("json_schema") => {
                let field = format.path("schema");
                let value = format.value("schema").ok_or_else(|| missing(&field))?;
                Self::of_schema(field, &value).map(Some)
            }
            Some(other) => Err(format.wrong("type", &other.into(), KINDS)),
        }
    }

    /// A JSON schema that `field` has asked for.
    pub(crate) fn of_schema(field: String, value: &Value) -> Result<Self, RequestError> {
        let grammar = schema(&field, value)?;
        Ok(Self { field, grammar })
    }
}

type Read = fn(&str, &Value) -> Result<FormatGrammar, RequestError>;

fn take_one(
    fields: &mut Fields,
    name: &str,
    read: Read,
) -> Result<Option<ResponseFormat>, RequestError> {
    let Some(value) = fields.value(name) else {
        return Ok(None);
    };
    let field = fields.path(name);
    let grammar = read(&field, &value)?;
    Ok(Some(ResponseFormat { field, grammar }))
}

fn take_response_format(value: Value) -> Result<Option<ResponseFormat>, RequestError> {
    let mut format = Fields::at("response_format", value)?;
    match format.string("type")?.as_deref() {
        None => Err(missing("response_format.type")),
        Some("text") => Ok(None),
        // Some servers take a schema beside this type.
        Some("json_object") => match format.value("schema") {
            Some(value) => ResponseFormat::of_schema(format.path("schema"), &value).map(Some),
            None => Ok(Some(any_object("response_format".to_owned()))),
        },
        Some("json_schema") => {
            let path = format.path("json_schema");
            let named = format.value("json_schema").ok_or_else(|| missing(&path))?;
            let mut named = Fields::at(&path, named)?;
            // It is enforced either way.
            named.bool("strict")?;
            let path = named.path("schema");
            let value = named.value("schema").ok_or_else(|| missing(&path))?;
            ResponseFormat::of_schema(path, &value).map(Some)
        }
        Some(other) => Err(format.wrong("type", &other.into(), KINDS)),
    }
}

fn any_object(field: String) -> ResponseFormat {
    let grammar = FormatGrammar::JsonSchema(r#"{"type":"object"}"#.to_owned());
    ResponseFormat { field, grammar }
}

/// A schema, or a text that is one.
fn schema(field: &str, value: &Value) -> Result<FormatGrammar, RequestError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(FormatGrammar::JsonSchema(value.to_string())),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(value @ (Value::Object(_) | Value::Bool(_))) => schema(field, &value),
            _ => Err(RequestError::wrong(field, shown(value), "a JSON schema")),
        },
        other => Err(RequestError::wrong(field, shown(other), "a JSON schema")),
    }
}

fn text(field: &str, value: &Value, expected: &str) -> Result<String, RequestError> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| RequestError::wrong(field, shown(value), expected))
}

fn regex(field: &str, value: &Value) -> Result<FormatGrammar, RequestError> {
    text(field, value, "a regular expression").map(FormatGrammar::Regex)
}

fn lark(field: &str, value: &Value) -> Result<FormatGrammar, RequestError> {
    text(field, value, "a Lark grammar").map(FormatGrammar::Lark)
}

/// One of several texts, as a grammar.
fn choice(field: &str, value: &Value) -> Result<FormatGrammar, RequestError> {
    let expected = format!("a list of 1 to {MAX_CHOICES} texts");
    let choices = value.as_array().map_or(&[][..], Vec::as_slice);
    if !(1..=MAX_CHOICES).contains(&choices.len()) {
        return Err(RequestError::wrong(field, shown(value), expected));
    }
    let mut quoted = Vec::with_capacity(choices.len());
    for (index, choice) in choices.iter().enumerate() {
        let text = text(
            &format!("{field}[{index}]"),
            choice,
            "a text that is not empty",
        )?;
        // Lark writes texts as JSON does.
        quoted.push(Value::from(text).to_string());
    }
    Ok(FormatGrammar::Lark(format!(
        "start: {}",
        quoted.join(" | ")
    )))
}

/// llama-server's grammars are of another form.
fn refuse_gbnf(fields: &mut Fields) -> Result<(), RequestError> {
    match fields.value("grammar") {
        Some(value) if value.as_str() != Some("") => Err(RequestError::Unsupported {
            field: "grammar".to_owned(),
            what: "GBNF is".to_owned(),
            hint: "; use `guided_grammar` with a Lark grammar, `guided_regex` or `response_format`"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}
