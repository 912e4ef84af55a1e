//! Whether long prompts are made shorter before they are answered.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::error::RequestError;
use crate::fields::Fields;

const FIELD: &str = "prefill_compression";
const MODES: &str = "\"off\", \"auto\" or \"always\"";

/// When a prompt is made shorter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CompressionMode {
    /// Never.
    #[default]
    Off,
    /// When it is long.
    Auto,
    /// Whatever its length.
    Always,
}

/// What a request says of it; `None` takes the default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CompressionOptions {
    /// When.
    pub mode: Option<CompressionMode>,
    /// Share of what may be cut that is kept, above 0 and up to 1.
    pub keep_ratio: Option<f64>,
    /// The answer's usage is to have the prompt that the model saw.
    pub return_prompt: bool,
}

impl FromStr for CompressionMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            other => Err(format!("\"{other}\" is none of {MODES}")),
        }
    }
}

impl fmt::Display for CompressionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Always => "always",
        })
    }
}

impl CompressionOptions {
    /// A mode, or an object of `mode`, `keep_ratio` and `return_prompt`.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, RequestError> {
        match fields.value(FIELD) {
            None => Ok(Self::default()),
            Some(value @ Value::Object(_)) => {
                let mut options = Fields::at(FIELD, value)?;
                let mode = options.value("mode");
                let mode = mode.map(|mode| mode_of(&options, "mode", &mode));
                let ratio = options.value("keep_ratio");
                let ratio = ratio.map(|ratio| {
                    let fits = ratio.as_f64().filter(|share| *share > 0.0 && *share <= 1.0);
                    let expected = "a number above 0 and up to 1";
                    fits.ok_or_else(|| options.wrong("keep_ratio", &ratio, expected))
                });
                let taken = Self {
                    mode: mode.transpose()?,
                    keep_ratio: ratio.transpose()?,
                    return_prompt: options.bool("return_prompt")?.unwrap_or(false),
                };
                options.finish()?;
                Ok(taken)
            }
            Some(value) => Ok(Self {
                mode: Some(mode_of(fields, FIELD, &value)?),
                ..Self::default()
            }),
        }
    }
}

fn mode_of(fields: &Fields, name: &str, value: &Value) -> Result<CompressionMode, RequestError> {
    let mode = value.as_str().and_then(|text| text.parse().ok());
    mode.ok_or_else(|| fields.wrong(name, value, MODES))
}
