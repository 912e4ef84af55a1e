//! How a model writes calls, as far as its chat template tells, and how they are written for one that was told by us.

use std::fmt::Write as _;

use serde_json::Value;

/// How a model writes its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `<tool_call>` around `<function=NAME>` with `<parameter=KEY>` elements: Qwen3-Coder, Qwen3.5 and later.
    Elements,
    /// `<tool_call>` around `{"name": NAME, "arguments": {...}}`: Hermes, Qwen2.5, Qwen3.
    Tagged,
    /// `{"name": NAME, "parameters": {...}}` and nothing around it: Llama 3.
    Plain,
}

impl Dialect {
    /// The dialect that a chat template shows; nothing where it does not know of tools.
    #[must_use]
    pub fn of_template(source: &str) -> Option<Self> {
        if !source.contains("tools") {
            return None;
        }
        Some(if source.contains("<function=") {
            Self::Elements
        } else if source.contains("<tool_call>") || !source.contains("\"parameters\":") {
            Self::Tagged
        } else {
            Self::Plain
        })
    }

    /// A past call as the model would have written it. Arguments that are no object stand there as they are.
    #[must_use]
    pub fn call_text(self, name: &str, arguments: &Value) -> String {
        match self {
            Self::Elements => elements(name, arguments),
            Self::Tagged => format!(
                "<tool_call>\n{}\n</tool_call>",
                object(name, "arguments", arguments)
            ),
            Self::Plain => object(name, "parameters", arguments),
        }
    }
}

/// What a model is told whose template knows of no tools, in front of everything else that it is told. It is to call as
/// [`Dialect::Elements`] has it.
#[must_use]
pub fn instructions(tools: &[Value]) -> String {
    let mut text = "# Tools\n\nThese functions can be called:\n\n<tools>".to_owned();
    for tool in tools {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{tool}");
    }
    text + "\n</tools>\n\nA call is written as:\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
}

/// What a tool has answered, for such a model.
#[must_use]
pub fn response_text(content: &str) -> String {
    format!("<tool_response>\n{content}\n</tool_response>")
}

fn elements(name: &str, arguments: &Value) -> String {
    let mut text = format!("<tool_call>\n<function={name}>\n");
    match arguments {
        Value::Object(members) => {
            for (key, value) in members {
                let value = text_of(value);
                let _ = write!(text, "<parameter={key}>\n{value}\n</parameter>\n");
            }
        }
        other => {
            let _ = writeln!(text, "{}", text_of(other));
        }
    }
    text + "</function>\n</tool_call>"
}

fn object(name: &str, key: &str, arguments: &Value) -> String {
    let name = Value::from(name);
    format!("{{\"name\": {name}, \"{key}\": {}}}", text_of(arguments))
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
