//! The tools of the Responses API, brought into the form that chat completions have.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::error::RequestError;
use crate::fields::Fields;
use crate::tokens::missing;

/// The one argument of a tool that takes text.
pub(super) const INPUT: &str = "input";

/// What stands between the name of a group and that of a tool in it, as the model sees them.
const JOINT: &str = "__";

/// A tool as the client declared it, found by the name under which the model knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredTool {
    /// Its name.
    pub name: String,
    /// The group that it was declared in.
    pub namespace: Option<String>,
    /// It takes text; the model sees a function with one argument, `input`.
    pub takes_text: bool,
}

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tools {
    /// In the form that chat completions have.
    pub functions: Vec<Value>,
    pub declared: HashMap<String, DeclaredTool>,
    /// Types of tools that are not there.
    pub skipped: Vec<String>,
    /// As they were sent.
    pub sent: Vec<Value>,
}

/// The name of a tool as the model sees it.
pub(super) fn model_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        Some(namespace) if namespace.ends_with(JOINT) => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}{JOINT}{name}"),
    }
}

impl Tools {
    pub fn take(fields: &mut Fields) -> Result<Self, RequestError> {
        let mut tools = Self::default();
        for (index, tool) in fields
            .array("tools")?
            .unwrap_or_default()
            .into_iter()
            .enumerate()
        {
            tools.sent.push(echoed(&tool));
            tools.add(&format!("tools[{index}]"), None, tool)?;
        }
        Ok(tools)
    }

    fn add(
        &mut self,
        path: &str,
        namespace: Option<&str>,
        tool: Value,
    ) -> Result<(), RequestError> {
        let mut fields = Fields::at(path, tool)?;
        let kind = fields.string("type")?;
        let kind = kind.ok_or_else(|| missing(&fields.path("type")))?;
        match kind.as_str() {
            "function" => {
                let name = name(&mut fields)?;
                let mut function = self.declare(namespace, name, false);
                if let Some(description) = fields.string("description")? {
                    function.insert("description".to_owned(), description.into());
                }
                if let Some(parameters) = fields.object("parameters")? {
                    function.insert("parameters".to_owned(), parameters.into());
                }
                // What is off as a rule is not worth a difference between the prompts of two APIs.
                if fields.bool("strict")? == Some(true) {
                    function.insert("strict".to_owned(), true.into());
                }
                self.push(function);
            }
            "custom" => {
                let name = name(&mut fields)?;
                let mut function = self.declare(namespace, name, true);
                if let Some(description) = fields.string("description")? {
                    function.insert("description".to_owned(), description.into());
                }
                function.insert("parameters".to_owned(), text_parameter(&mut fields)?);
                self.push(function);
            }
            "namespace" if namespace.is_none() => {
                let group = name(&mut fields)?;
                let path = fields.path("tools");
                for (index, tool) in fields
                    .array("tools")?
                    .unwrap_or_default()
                    .into_iter()
                    .enumerate()
                {
                    self.add(&format!("{path}[{index}]"), Some(&group), tool)?;
                }
            }
            other => self.skipped.push(other.to_owned()),
        }
        Ok(())
    }

    /// Begins a function by its name.
    fn declare(
        &mut self,
        namespace: Option<&str>,
        name: String,
        takes_text: bool,
    ) -> Map<String, Value> {
        let seen = model_name(namespace, &name);
        let mut function = Map::new();
        function.insert("name".to_owned(), seen.as_str().into());
        let declared = DeclaredTool {
            name,
            namespace: namespace.map(str::to_owned),
            takes_text,
        };
        self.declared.insert(seen, declared);
        function
    }

    fn push(&mut self, function: Map<String, Value>) {
        self.functions
            .push(json!({ "type": "function", "function": function }));
    }

    /// The name by which the model knows a tool that the client names.
    pub fn find(&self, path: &str, tool: Value) -> Result<String, RequestError> {
        let mut fields = Fields::at(path, tool)?;
        let name = name(&mut fields)?;
        let namespace = fields.string("namespace")?;
        let seen = model_name(namespace.as_deref(), &name);
        if self.declared.contains_key(&seen) {
            return Ok(seen);
        }
        // One of a group may be named without it.
        let mut grouped = self.declared.iter().filter(|(_, tool)| tool.name == name);
        match grouped.next() {
            Some((seen, _)) if namespace.is_none() => Ok(seen.clone()),
            _ => Err(fields.wrong("name", &name.into(), "the name of a tool in `tools`")),
        }
    }

    /// Keeps the tools that `names` has.
    pub fn keep(&mut self, names: &[String]) {
        self.functions.retain(|tool| {
            names
                .iter()
                .any(|name| tool["function"]["name"] == name.as_str())
        });
    }
}

fn name(fields: &mut Fields) -> Result<String, RequestError> {
    let name = fields.string("name")?.filter(|name| !name.is_empty());
    name.ok_or_else(|| missing(&fields.path("name")))
}

/// The parameters of a function that stands for a tool that takes text. A grammar is told in words: whoever wrote the tool wants
/// input in it.
fn text_parameter(fields: &mut Fields) -> Result<Value, RequestError> {
    let mut description = "The whole input of the tool, as it is.".to_owned();
    if let Some(format) = fields.object("format")? {
        let mut format = Fields::at(&fields.path("format"), format.into())?;
        let kind = format.string("type")?;
        if kind.as_deref() == Some("grammar") {
            let syntax = format.string("syntax")?.unwrap_or_default();
            let definition = format.string("definition")?.unwrap_or_default();
            description =
                format!("{description} It follows this grammar ({syntax}):\n{definition}");
        } else if let Some(kind) = kind.filter(|kind| kind != "text") {
            return Err(format.wrong("type", &kind.into(), "\"text\" or \"grammar\""));
        }
    }
    Ok(json!({
        "type": "object",
        "properties": { INPUT: { "type": "string", "description": description } },
        "required": [INPUT],
        "additionalProperties": false,
    }))
}

/// A tool as the answer repeats it: functions have all their keys.
fn echoed(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(map) = tool.as_object_mut()
        && map.get("type").is_some_and(|kind| kind == "function")
    {
        for key in ["description", "parameters", "strict"] {
            map.entry(key).or_insert(Value::Null);
        }
    }
    tool
}
