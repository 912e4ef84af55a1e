//! The tools of the Messages API, brought into the form that all chats have.

use serde_json::{Map, Value};

use crate::error::RequestError;
use crate::fields::Fields;
use crate::tokens::missing;
use crate::tools::{ToolChoice, check_choice};

const CHOICES: &str = "\"auto\", \"any\", \"tool\" or \"none\"";

/// The tools of a request.
pub(super) struct Tools {
    /// In the nested form.
    pub listed: Vec<Value>,
    pub choice: ToolChoice,
    /// Whether several calls may be made in one answer.
    pub parallel: bool,
    /// Types of those that only another server has.
    pub skipped: Vec<String>,
}

impl Tools {
    /// Takes the tools and the choice among them. Tools that are put off are shown once they are `referenced`, behind
    /// the others, so that as much as possible of the prompt stays what it was.
    pub fn take(fields: &mut Fields, referenced: &[String]) -> Result<Self, RequestError> {
        let mut tools = Self {
            listed: Vec::new(),
            choice: ToolChoice::Auto,
            parallel: true,
            skipped: Vec::new(),
        };
        let mut deferred = Vec::new();
        let items = fields.array("tools")?.unwrap_or_default();
        for (index, item) in items.into_iter().enumerate() {
            match tool(&format!("tools[{index}]"), item)? {
                Tool::Server(kind) => tools.skipped.push(kind),
                Tool::Listed(tool) => tools.listed.push(tool),
                Tool::Deferred(name, tool) => deferred.push((name, tool)),
            }
        }
        for name in referenced {
            let found = deferred.iter().position(|(deferred, _)| deferred == name);
            let found = found.map(|at| deferred.swap_remove(at).1);
            tools.listed.extend(found);
        }
        if let Some(choice) = fields.value("tool_choice") {
            tools.take_choice(Fields::at("tool_choice", choice)?)?;
        }
        if tools.choice == ToolChoice::None {
            tools.listed.clear();
        }
        Ok(tools)
    }

    fn take_choice(&mut self, mut fields: Fields) -> Result<(), RequestError> {
        let kind = fields.string("type")?;
        let kind = kind.ok_or_else(|| missing(&fields.path("type")))?;
        self.choice = match kind.as_str() {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            "tool" => {
                let name = fields.string("name")?;
                ToolChoice::Named(name.ok_or_else(|| missing(&fields.path("name")))?)
            }
            other => return Err(fields.wrong("type", &other.into(), CHOICES)),
        };
        let alone = fields.bool("disable_parallel_tool_use")?;
        self.parallel = !alone.unwrap_or(false);
        check_choice(&self.listed, &self.choice)
    }
}

enum Tool {
    Listed(Value),
    /// With its name.
    Deferred(String, Value),
    /// Its type: what runs it is not here.
    Server(String),
}

/// Keys that are not known here are left out: newer clients have more of them.
fn tool(path: &str, item: Value) -> Result<Tool, RequestError> {
    let mut fields = Fields::at(path, item)?;
    if let Some(kind) = fields.string("type")?
        && kind != "custom"
    {
        return Ok(Tool::Server(kind));
    }
    let name = fields.string("name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| missing(&fields.path("name")))?;
    let mut function = Map::new();
    function.insert("name".to_owned(), name.as_str().into());
    if let Some(description) = fields.string("description")? {
        function.insert("description".to_owned(), description.into());
    }
    let schema = fields.object("input_schema")?;
    let schema = schema.ok_or_else(|| missing(&fields.path("input_schema")))?;
    function.insert("parameters".to_owned(), schema.into());
    if let Some(strict) = fields.bool("strict")? {
        function.insert("strict".to_owned(), strict.into());
    }
    let mut tool = Map::new();
    tool.insert("type".to_owned(), "function".into());
    tool.insert("function".to_owned(), function.into());
    let tool = Value::Object(tool);
    Ok(match fields.bool("defer_loading")? {
        Some(true) => Tool::Deferred(name, tool),
        _ => Tool::Listed(tool),
    })
}
