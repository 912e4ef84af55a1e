//! Grammars of answers that call, in llguidance's form of Lark.
//!
//! Names and the markup around calls are held to; arguments by their schemas for strict tools, and for the few tools of an answer
//! that has to call. So a grammar stays small however much the schemas of all the other tools say.

use std::fmt::Write as _;

use generation::JSON_WHITESPACE;
use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::tools::{Tool, Tools};
use crate::value::{Kind, kind};

/// Calls in one answer at most, where a grammar has them written.
const MAX_CALLS: usize = 32;
/// Arguments of a tool at most that does not say which it takes.
const MAX_KEYS: usize = 32;
/// Tools up to which a call that is forced has its arguments held to their schemas, strict or not.
const MAX_TOOLS_WITH_SCHEMAS: usize = 16;

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
            let _ = writeln!(lark, "call_{place}: {}", self.call(tool));
        }
        if self.tools.list().iter().any(|tool| !self.is_json(tool)) {
            lark += "any_key: /[^<>\\n]{1,64}/\nvalue[lazy]: TEXT \"\\n</parameter>\\n\"\n";
            lark += "parameter: \"<parameter=\" any_key \">\\n\" value\n";
        }
        let any_object = json(json!({ "type": "object" }), true);
        let _ = writeln!(lark, "any_object: {any_object}");
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
    fn call(&self, tool: &Tool) -> String {
        if !self.is_json(tool) {
            let open = quoted(&format!("<function={}>\n", tool.name));
            return format!("{open} {} \"</function>\"", self.parameters(tool));
        }
        let key = match self.dialect {
            Dialect::Plain => "parameters",
            _ => "arguments",
        };
        let name = Value::from(tool.name.as_str());
        let open = quoted(&format!("{{\"name\": {name}, \"{key}\": "));
        if !self.is_followed(tool) {
            return format!("{open} any_object \"}}\"");
        }
        let schema = match &tool.parameters {
            Value::Object(schema) if !schema.is_empty() => tool.parameters.clone(),
            _ => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        };
        format!("{open} {} \"}}\"", json(schema, !tool.strict))
    }

    /// Strict arguments are JSON in every dialect: that is what a schema speaks of, and models know it.
    fn is_json(&self, tool: &Tool) -> bool {
        self.dialect != Dialect::Elements || tool.strict
    }

    /// Whether the arguments have to fit the tool's schema.
    fn is_followed(&self, tool: &Tool) -> bool {
        let is_known = properties(tool).is_some();
        let is_one_of_few = self.tools.list().len() <= MAX_TOOLS_WITH_SCHEMAS;
        tool.strict || (self.is_forced && is_known && is_one_of_few)
    }

    /// Arguments as elements: in the schema's order, and those that are required at least.
    fn parameters(&self, tool: &Tool) -> String {
        let Some(properties) = properties(tool).filter(|_| self.is_followed(tool)) else {
            return format!("parameter{{0,{MAX_KEYS}}}");
        };
        let required = tool.parameters.get("required").and_then(Value::as_array);
        let is_required = |key: &String| required.is_some_and(|keys| keys.iter().any(|k| k == key));
        let parameters = properties.iter().map(|(key, schema)| {
            let open = quoted(&format!("<parameter={key}>\n"));
            let times = if is_required(key) { "" } else { "?" };
            format!("({open} {}){times}", value(schema, &tool.parameters))
        });
        parameters.collect::<Vec<_>>().join(" ")
    }

    fn marks(&self) -> (String, String) {
        match self.marks_are_control {
            true => (OPEN.to_owned(), CLOSE.to_owned()),
            false => (quoted(OPEN), quoted(CLOSE)),
        }
    }
}

/// The tool's arguments with their schemas, if it says which it takes.
fn properties(tool: &Tool) -> Option<&Map<String, Value>> {
    tool.parameters.get("properties")?.as_object()
}

/// The value of an argument that is an element, up to the end of the element.
fn value(schema: &Value, root: &Value) -> String {
    let close = "\"\\n</parameter>\\n\"";
    match kind(schema, root) {
        Kind::Text => "value".to_owned(),
        Kind::Listed(values) => {
            let written = values.iter().map(|value| match value {
                Value::String(text) => quoted(text),
                other => quoted(&other.to_string()),
            });
            let written = written.collect::<Vec<_>>().join(" | ");
            format!("({written}) {close}")
        }
        Kind::Json => {
            let mut schema = schema.clone();
            // What its references are about.
            for key in ["$defs", "definitions"] {
                if let (Some(schema), Some(defined)) = (schema.as_object_mut(), root.get(key)) {
                    schema.insert(key.to_owned(), defined.clone());
                }
            }
            format!("{} {close}", json(schema, true))
        }
    }
}

/// JSON that fits a schema. `is_lenient`: what the schema says beyond what can be enforced is left out; else the grammar is
/// refused for it.
fn json(mut schema: Value, is_lenient: bool) -> String {
    if let Some(schema) = schema.as_object_mut() {
        let options = json!({ "lenient": is_lenient, "whitespace_pattern": JSON_WHITESPACE });
        schema.insert("x-guidance".to_owned(), options);
    }
    format!("%json {schema}")
}

/// A text as Lark has it: as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
