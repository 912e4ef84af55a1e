//! What stands around calls.

/// How a call is written inside an envelope, or without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `{"name": NAME, "arguments": {...}}` and its kin.
    Json,
    /// `<function=NAME>` and its kin, with parameter elements or one JSON object inside.
    Function,
    /// `<invoke name="NAME">` with parameter elements.
    Invoke,
    /// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`
    ArgKeys,
    /// `NAME(key="value", ...)`
    Signature,
    /// `call:NAMESPACE:NAME{key: value}`
    Verb,
}

/// An element around calls.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub open: &'static str,
    pub close: &'static str,
    pub forms: &'static [Form],
}

/// The special bar of DeepSeek's markup.
pub(crate) const DSML: &str = "｜DSML｜";

/// Marks inside of calls that vocabularies have as tokens.
const INNER_MARKS: [&str; 5] = [
    "<|\"|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

pub(crate) static ENVELOPES: [Envelope; 8] = [
    Envelope {
        open: "<tool_call>",
        close: "</tool_call>",
        forms: &[
            Form::Json,
            Form::Function,
            Form::Invoke,
            Form::ArgKeys,
            Form::Signature,
        ],
    },
    Envelope {
        open: "<function_calls>",
        close: "</function_calls>",
        forms: &[Form::Invoke, Form::Json, Form::Function],
    },
    Envelope {
        open: "<｜DSML｜function_calls>",
        close: "</｜DSML｜function_calls>",
        forms: &[Form::Invoke],
    },
    Envelope {
        open: "<function_call>",
        close: "</function_call>",
        forms: &[Form::Json, Form::Invoke, Form::Function],
    },
    Envelope {
        open: "<tool_code>",
        close: "</tool_code>",
        forms: &[Form::Json, Form::Signature],
    },
    Envelope {
        open: "<function>",
        close: "</function>",
        forms: &[Form::Json],
    },
    Envelope {
        open: "<|python_tag|>",
        close: "<|eom_id|>",
        forms: &[Form::Json],
    },
    Envelope {
        open: "<|tool_call>",
        close: "<tool_call|>",
        forms: &[Form::Verb],
    },
];

/// Whether `text`, that of a control token perhaps, is a mark in or around calls.
#[must_use]
pub fn is_mark(text: &str) -> bool {
    let around = ENVELOPES
        .iter()
        .any(|envelope| envelope.open == text || envelope.close == text);
    around || INNER_MARKS.contains(&text) || text == DSML
}
