//! The tools that may be called.

use serde_json::Value;

/// One tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// What calls name it.
    pub name: String,
    /// JSON schema of its arguments; null: nothing is known of them.
    pub parameters: Value,
    /// Whether arguments have to follow the schema.
    pub strict: bool,
}

impl Tool {
    /// Schema of argument `key`.
    pub(crate) fn property(&self, key: &str) -> Option<&Value> {
        self.parameters.get("properties")?.get(key)
    }

    /// Whether it can be called without arguments.
    pub(crate) fn needs_nothing(&self) -> bool {
        let required = self.parameters.get("required").and_then(Value::as_array);
        required.is_none_or(Vec::is_empty)
    }
}

/// All tools of a conversation. What has another name is no call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    list: Vec<Tool>,
}

impl Tools {
    /// From the nested form of chat completions: `{"type": "function", "function": {"name", "parameters", "strict"}}`. What has
    /// no name is left out.
    #[must_use]
    pub fn from_nested(tools: &[Value]) -> Self {
        let tool = |tool: &Value| {
            let function = tool.get("function")?;
            Some(Tool {
                name: function.get("name")?.as_str()?.to_owned(),
                parameters: function.get("parameters").cloned().unwrap_or_default(),
                strict: function["strict"] == true,
            })
        };
        Self {
            list: tools.iter().filter_map(tool).collect(),
        }
    }

    /// The tool of that name alone, if it is there.
    #[must_use]
    pub fn only(&self, name: &str) -> Self {
        let found = self.list.iter().find(|tool| tool.name == name);
        Self {
            list: found.cloned().into_iter().collect(),
        }
    }

    /// The tools in their order.
    #[must_use]
    pub fn list(&self) -> &[Tool] {
        &self.list
    }

    /// Place of the tool of that name.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|tool| tool.name == name)
    }

    /// The same for a name with a namespace before it: the whole of it, or its last part.
    pub(crate) fn place_of_path(&self, path: &str) -> Option<usize> {
        let last = path.rsplit([':', '.']).next();
        self.place(path)
            .or_else(|| self.place(&path.replace(':', "_")))
            .or_else(|| self.place(&path.replace(':', ".")))
            .or_else(|| self.place(last?))
    }
}
