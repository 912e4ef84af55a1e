//! Grammars of answers that call, in llguidance's form of Lark.
//!
//! Names and the markup around calls are held to; arguments only for strict tools, by their schemas. So a grammar stays small
//! however much the schemas of the other tools say.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::dialect::Dialect;
use crate::tools::{Tool, Tools};

/// Calls in one answer at most, where a grammar has them written.
const MAX_CALLS: usize = 32;
/// Arguments of a tool at most that does not say which it takes.
const MAX_KEYS: usize = 32;
/// Tools up to which the keys of arguments are held to as well.
const MAX_TOOLS_WITH_KEYS: usize = 16;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What an answer has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallGrammar<'g> {
    /// The tools that may be called.
    pub tools: &'g Tools,
    /// How calls are written.
    pub dialect: Dialect,
    /// Whether the answer calls; otherwise it may say something.
    pub is_forced: bool,
    /// Whether it may call more than once.
    pub is_parallel: bool,
    /// JSON schema of what it may say instead; `None` is any text.
    pub said: Option<&'g Value>,
    /// Whether the marks around calls are control tokens of the vocabulary.
    pub marks_are_control: bool,
}

impl CallGrammar<'_> {
    /// The grammar, if there is anything to hold to: an answer that may say what it likes and call tools that are not strict
    /// needs none.
    #[must_use]
    pub fn lark(&self) -> Option<String> {
        let is_strict = self.tools.list().iter().any(|tool| tool.strict);
        if self.tools.list().is_empty() || !(self.is_forced || is_strict || self.said.is_some()) {
            return None;
        }
        let mut lark = self.start();
        lark += "TEXT: /(.|\\n)*/\n";
        let names = (0..self.tools.list().len()).map(|place| format!("call_{place}"));
        let _ = writeln!(lark, "body: {}", names.collect::<Vec<_>>().join(" | "));
        for (place, tool) in self.tools.list().iter().enumerate() {
            let _ = writeln!(lark, "call_{place}: {}", self.call(place, tool));
        }
        if self.tools.list().iter().any(|tool| !self.is_json(tool)) {
            lark += "any_key: /[^<>\\n]{1,64}/\nvalue[lazy]: TEXT \"\\n</parameter>\\n\"\n";
            for (place, tool) in self.tools.list().iter().enumerate() {
                lark += &self.parameter(place, tool);
            }
        }
        lark += "any_object: %json {\"type\": \"object\"}\n";
        Some(lark)
    }

    /// What the whole answer is.
    fn start(&self) -> String {
        let (open, close) = self.marks();
        let call = match self.dialect {
            Dialect::Plain => "call: body\n".to_owned(),
            _ => format!("call: {open} \"\\n\" body \"\\n\" {close}\n"),
        };
        // Where the template has the answer begin behind its reasoning, models put an empty line before it.
        let calls = match (self.dialect, self.is_parallel) {
            (Dialect::Plain, _) | (_, false) => "calls: (\"\\n\" \"\\n\"?)? call\n".to_owned(),
            _ => format!(
                "calls: (\"\\n\" \"\\n\"?)? call (\"\\n\" call){{0,{}}}\n",
                MAX_CALLS - 1
            ),
        };
        if self.is_forced {
            return format!("start: calls\n{calls}{call}");
        }
        if let Some(schema) = self.said {
            return format!("start: calls | said\nsaid: %json {schema}\n{calls}{call}");
        }
        let times = if self.is_parallel { "*" } else { "?" };
        match self.dialect {
            Dialect::Plain => format!("start: OTHER | call\nOTHER: /([^{{](.|\\n)*)?/\n{call}"),
            _ if self.marks_are_control => format!(
                "start: (TEXT {open} opened){times} TEXT\nopened: \"\\n\" body \"\\n\" {close}\n"
            ),
            _ => format!(
                "start: (opening opened){times} TEXT\nopening[lazy]: TEXT {open}\nopened: \"\\n\" body \"\\n\" {close}\n"
            ),
        }
    }

    /// One call, without the marks around it.
    fn call(&self, place: usize, tool: &Tool) -> String {
        if !self.is_json(tool) {
            let open = quoted(&format!("<function={}>\n", tool.name));
            return match properties(tool).map(|keys| keys.len()) {
                Some(0) => format!("{open} \"</function>\""),
                found => {
                    let most = found.unwrap_or(MAX_KEYS);
                    format!("{open} parameter_{place}{{0,{most}}} \"</function>\"")
                }
            };
        }
        let key = match self.dialect {
            Dialect::Plain => "parameters",
            _ => "arguments",
        };
        let name = Value::from(tool.name.as_str());
        let open = quoted(&format!("{{\"name\": {name}, \"{key}\": "));
        if !tool.strict {
            return format!("{open} any_object \"}}\"");
        }
        let schema = match &tool.parameters {
            Value::Object(schema) if !schema.is_empty() => tool.parameters.clone(),
            _ => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        };
        format!("{open} %json {schema} \"}}\"")
    }

    /// Strict arguments are JSON in every dialect: that is what a schema speaks of, and models know it.
    fn is_json(&self, tool: &Tool) -> bool {
        self.dialect != Dialect::Elements || tool.strict
    }

    fn parameter(&self, place: usize, tool: &Tool) -> String {
        let named = properties(tool);
        if self.is_json(tool) || named.as_ref().is_some_and(Vec::is_empty) {
            return String::new();
        }
        let keys = named.filter(|_| self.tools.list().len() <= MAX_TOOLS_WITH_KEYS);
        let key = keys.map_or("any_key".to_owned(), |keys| {
            let keys = keys.iter().map(|key| quoted(key));
            format!("({})", keys.collect::<Vec<_>>().join(" | "))
        });
        format!("parameter_{place}: \"<parameter=\" {key} \">\\n\" value\n")
    }

    fn marks(&self) -> (String, String) {
        match self.marks_are_control {
            true => (OPEN.to_owned(), CLOSE.to_owned()),
            false => (quoted(OPEN), quoted(CLOSE)),
        }
    }
}

/// Names of the tool's arguments, if that is known.
fn properties(tool: &Tool) -> Option<Vec<&String>> {
    let properties = tool.parameters.get("properties")?.as_object()?;
    Some(properties.keys().collect())
}

/// A text as Lark has it: as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
