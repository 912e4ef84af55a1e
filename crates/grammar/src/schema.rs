//! JSON schemas as llguidance reads them.

use generation::JSON_WHITESPACE;
use serde_json::{Map, Value, json};

use crate::error::GrammarError;

/// Where llguidance looks for its options in a schema.
const OPTIONS: &str = "x-guidance";

/// A schema with our options, whatever options it came with.
///
/// # Errors
/// It is no JSON, or no schema.
pub(crate) fn prepare(text: &str) -> Result<Value, GrammarError> {
    let schema: Value =
        serde_json::from_str(text).map_err(|error| GrammarError::NoJson(error.to_string()))?;
    let mut schema = match schema {
        Value::Object(schema) => schema,
        // Anything goes.
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => {
            let words = "the JSON schema is `false`, which nothing fits";
            return Err(GrammarError::Refused(words.to_owned()));
        }
        _ => {
            let words = "the JSON schema is neither an object nor true or false";
            return Err(GrammarError::Refused(words.to_owned()));
        }
    };
    schema.insert(
        OPTIONS.to_owned(),
        json!({ "whitespace_pattern": JSON_WHITESPACE }),
    );
    Ok(Value::Object(schema))
}
