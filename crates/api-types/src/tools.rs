//! The tools that a model may call, and whether it has to.

use serde_json::Value;

use crate::error::RequestError;
use crate::fields::{Fields, shown};
use crate::tokens::missing;

const CHOICES: &str = "\"auto\", \"none\", \"required\" or an object that names a tool";

/// Whether the model calls a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// It calls none; no tool is shown to it.
    None,
    /// It calls one at least.
    Required,
    /// It calls the tool of this name.
    Named(String),
}

/// The tools of a chat completion, in the nested form of that API and just as they were sent, and the choice among
/// them. The choice holds for them: who has to call has what to call.
pub(crate) fn take(fields: &mut Fields) -> Result<(Vec<Value>, ToolChoice), RequestError> {
    let mut tools = fields.array("tools")?.unwrap_or_default();
    for (index, tool) in tools.iter().enumerate() {
        check_tool(&format!("tools[{index}]"), tool)?;
    }
    let choice = match fields.value("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            // "any" is what some other servers call it.
            "required" | "any" => ToolChoice::Required,
            _ => return Err(fields.wrong("tool_choice", &choice.into(), CHOICES)),
        },
        Some(choice @ Value::Object(_)) => {
            let choice = Fields::at("tool_choice", choice)?;
            take_choice(choice, &mut tools)?
        }
        Some(other) => return Err(fields.wrong("tool_choice", &other, CHOICES)),
    };
    check_choice(&tools, &choice)?;
    Ok((tools, choice))
}

/// Holds `choice` against the `tools` in their nested form.
///
/// # Errors
/// A call is asked for and there is nothing to call.
pub(crate) fn check_choice(tools: &[Value], choice: &ToolChoice) -> Result<(), RequestError> {
    match choice {
        ToolChoice::Required if tools.is_empty() => Err(missing("tools")),
        ToolChoice::Named(name) if !tools.iter().any(|tool| self::name(tool) == Some(name)) => {
            let found = format!("naming {}", shown(&name.as_str().into()));
            let expected = "the name of one of `tools`";
            Err(RequestError::wrong("tool_choice", found, expected))
        }
        _ => Ok(()),
    }
}

/// Name of a tool in its nested form.
pub(crate) fn name(tool: &Value) -> Option<&str> {
    tool.get("function")?.get("name")?.as_str()
}

fn check_tool(path: &str, tool: &Value) -> Result<(), RequestError> {
    let Some(object) = tool.as_object() else {
        return Err(RequestError::wrong(path, shown(tool), "an object"));
    };
    if let Some(kind) = object.get("type").filter(|kind| *kind != "function") {
        return Err(RequestError::Unsupported {
            field: format!("{path}.type"),
            what: format!("{} is", shown(kind)),
            hint: "; only \"function\" is".to_owned(),
        });
    }
    if name(tool).is_none_or(str::is_empty) {
        return Err(missing(&format!("{path}.function.name")));
    }
    let function = &tool["function"];
    for (field, fits, expected) in [
        (
            "parameters",
            Value::is_object as fn(&Value) -> bool,
            "an object",
        ),
        ("strict", Value::is_boolean, "true or false"),
    ] {
        match &function[field] {
            Value::Null => {}
            value if fits(value) => {}
            other => {
                let field = format!("{path}.function.{field}");
                return Err(RequestError::wrong(field, shown(other), expected));
            }
        }
    }
    Ok(())
}

/// `{"type": "function", "function": {"name": ...}}`, or the tools that are allowed of all.
fn take_choice(mut choice: Fields, tools: &mut Vec<Value>) -> Result<ToolChoice, RequestError> {
    match choice.string("type")?.as_deref() {
        None | Some("function") => {
            let path = choice.path("function.name");
            let function = choice.value("function").unwrap_or_default();
            let name = function["name"].as_str().ok_or_else(|| missing(&path))?;
            Ok(ToolChoice::Named(name.to_owned()))
        }
        Some("allowed_tools") => {
            let path = choice.path("allowed_tools");
            let allowed = choice
                .value("allowed_tools")
                .ok_or_else(|| missing(&path))?;
            let mut allowed = Fields::at(&path, allowed)?;
            let listed = allowed.array("tools")?.unwrap_or_default();
            for tool in &listed {
                let name =
                    name(tool).ok_or_else(|| missing(&allowed.path("tools.function.name")))?;
                check_choice(tools, &ToolChoice::Named(name.to_owned()))?;
            }
            tools.retain(|tool| listed.iter().any(|other| name(other) == name(tool)));
            match allowed.string("mode")?.as_deref() {
                None | Some("auto") => Ok(ToolChoice::Auto),
                Some("required") => Ok(ToolChoice::Required),
                Some(other) => {
                    let expected = "\"auto\" or \"required\"";
                    Err(allowed.wrong("mode", &other.into(), expected))
                }
            }
        }
        Some(other) => {
            Err(choice.wrong("type", &other.into(), "\"function\" or \"allowed_tools\""))
        }
    }
}
