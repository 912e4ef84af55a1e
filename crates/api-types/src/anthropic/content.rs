//! Content blocks, brought into the messages that chat templates take.

use serde_json::{Map, Value};

use crate::error::RequestError;
use crate::fields::{Fields, shown};
use crate::tokens::missing;

const ROLES: &str = "\"user\", \"assistant\" or \"system\"";

/// What stands for a picture in what a tool gave back. Pictures of the user's are refused.
const NO_PICTURE: &str = "[a picture, which this model cannot see]";
const NO_DOCUMENT: &str = "[a document that is no text, which this model cannot read]";

/// A conversation that grows.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// System texts, wherever they stood.
    pub system: Vec<String>,
    pub turns: Vec<Map<String, Value>>,
    /// Names of the tools that results of searches for tools refer to, in order and each once.
    pub referenced_tools: Vec<String>,
}

impl Conversation {
    /// Takes the field `system`.
    pub fn add_system(&mut self, path: &str, value: Value) -> Result<(), RequestError> {
        match value {
            Value::String(text) => self.system.push(text),
            Value::Array(blocks) => {
                for (index, block) in blocks.into_iter().enumerate() {
                    let mut block = Block::at(&format!("{path}[{index}]"), block)?;
                    match block.kind.as_str() {
                        "text" => self.system.push(block.text("text")?),
                        _ => return Err(block.refused()),
                    }
                }
            }
            other => return Err(neither_text_nor_blocks(path, &other)),
        }
        Ok(())
    }

    /// Takes one of `messages`.
    pub fn add(&mut self, path: &str, message: Value) -> Result<(), RequestError> {
        let mut fields = Fields::at(path, message)?;
        let role = fields.string("role")?;
        let role = role.ok_or_else(|| missing(&fields.path("role")))?;
        let path = fields.path("content");
        let content = fields.value("content").ok_or_else(|| missing(&path))?;
        match role.as_str() {
            "user" => self.add_user(&path, content),
            "assistant" => self.add_assistant(&path, content),
            "system" => self.add_system(&path, content),
            other => Err(fields.wrong("role", &other.into(), ROLES)),
        }
    }

    /// Results of tools become messages of their own, for templates have another place for them.
    fn add_user(&mut self, path: &str, content: Value) -> Result<(), RequestError> {
        let before = self.turns.len();
        let mut text = String::new();
        for mut block in blocks(path, content)? {
            match block.kind.as_str() {
                "tool_result" => {
                    self.end_user(&mut text);
                    let turn = self.tool_result(&mut block)?;
                    self.turns.push(turn);
                }
                _ => text.push_str(&self.readable(block)?),
            }
        }
        self.end_user(&mut text);
        if self.turns.len() == before {
            self.turns.push(turn("user", String::new()));
        }
        Ok(())
    }

    fn end_user(&mut self, text: &mut String) {
        if !text.is_empty() {
            self.turns.push(turn("user", std::mem::take(text)));
        }
    }

    fn tool_result(&mut self, block: &mut Block) -> Result<Map<String, Value>, RequestError> {
        let id = block.text("tool_use_id")?;
        let failed = block.fields.bool("is_error")?.unwrap_or(false);
        let path = block.fields.path("content");
        let mut text = String::new();
        for part in match block.fields.value("content") {
            Some(content) => blocks(&path, content)?,
            None => Vec::new(),
        } {
            match part.kind.as_str() {
                "image" => text.push_str(NO_PICTURE),
                "document" => text.push_str(&document(part)?.unwrap_or(NO_DOCUMENT.to_owned())),
                _ => text.push_str(&self.readable(part)?),
            }
        }
        if failed {
            text.insert_str(0, "Error: ");
        }
        let mut turn = turn("tool", text);
        turn.insert("tool_call_id".to_owned(), id.into());
        Ok(turn)
    }

    fn add_assistant(&mut self, path: &str, content: Value) -> Result<(), RequestError> {
        let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for mut block in blocks(path, content)? {
            match block.kind.as_str() {
                "text" => text.push_str(&block.text("text")?),
                "thinking" => reasoning.push_str(&block.text("thinking")?),
                "tool_use" => calls.push(tool_call(&mut block)?),
                // What only its maker can read, and what a server's tools did: nothing that a template has a place for.
                "redacted_thinking" | "server_tool_use" | "mcp_tool_use" => {}
                other if other.ends_with("_tool_result") => {}
                _ => return Err(block.refused()),
            }
        }
        let mut turn = turn("assistant", text);
        if !reasoning.is_empty() {
            turn.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            turn.insert("tool_calls".to_owned(), calls.into());
        }
        self.turns.push(turn);
        Ok(())
    }

    /// The text of a block that has one.
    fn readable(&mut self, mut block: Block) -> Result<String, RequestError> {
        match block.kind.as_str() {
            "text" => block.text("text"),
            "tool_reference" => {
                let name = block.text("tool_name")?;
                if !self.referenced_tools.contains(&name) {
                    self.referenced_tools.push(name.clone());
                }
                Ok(name)
            }
            "search_result" => search_result(&mut block),
            "document" => {
                let refused = block.refused();
                document(block)?.ok_or(refused)
            }
            _ => Err(block.refused()),
        }
    }
}

/// A content block and its type.
struct Block {
    path: String,
    kind: String,
    fields: Fields,
}

impl Block {
    fn at(path: &str, value: Value) -> Result<Self, RequestError> {
        let mut fields = Fields::at(path, value)?;
        let kind = fields.string("type")?;
        Ok(Self {
            kind: kind.ok_or_else(|| missing(&fields.path("type")))?,
            path: path.to_owned(),
            fields,
        })
    }

    /// A string that has to be there.
    fn text(&mut self, name: &str) -> Result<String, RequestError> {
        let text = self.fields.string(name)?;
        text.ok_or_else(|| missing(&self.fields.path(name)))
    }

    fn refused(&self) -> RequestError {
        let kind = shown(&self.kind.as_str().into());
        RequestError::Unsupported {
            field: self.path.clone(),
            what: format!("a part of type {kind} is"),
            hint: "; this model reads text only".to_owned(),
        }
    }
}

/// A string is a block of text.
fn blocks(path: &str, content: Value) -> Result<Vec<Block>, RequestError> {
    match content {
        Value::String(text) => {
            let mut map = Map::new();
            map.insert("text".to_owned(), text.into());
            Ok(vec![Block {
                path: path.to_owned(),
                kind: "text".to_owned(),
                fields: Fields::at(path, Value::Object(map))?,
            }])
        }
        Value::Array(items) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| Block::at(&format!("{path}[{index}]"), item))
            .collect(),
        other => Err(neither_text_nor_blocks(path, &other)),
    }
}

fn neither_text_nor_blocks(path: &str, value: &Value) -> RequestError {
    RequestError::wrong(path, shown(value), "a string or a list of content blocks")
}

fn turn(role: &str, content: String) -> Map<String, Value> {
    let mut turn = Map::new();
    turn.insert("role".to_owned(), role.into());
    turn.insert("content".to_owned(), content.into());
    turn
}

fn tool_call(block: &mut Block) -> Result<Value, RequestError> {
    let (id, name) = (block.text("id")?, block.text("name")?);
    let arguments = block.fields.object("input")?.unwrap_or_default();
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    function.insert("arguments".to_owned(), arguments.into());
    let mut call = Map::new();
    call.insert("id".to_owned(), id.into());
    call.insert("type".to_owned(), "function".into());
    call.insert("function".to_owned(), function.into());
    Ok(Value::Object(call))
}

/// The text of a document; none, where it is no text.
fn document(mut block: Block) -> Result<Option<String>, RequestError> {
    let path = block.fields.path("source");
    let source = block.fields.value("source");
    let mut source = Block::at(&path, source.ok_or_else(|| missing(&path))?)?;
    let text = match source.kind.as_str() {
        "text" => source.text("data")?,
        "content" => {
            let path = source.fields.path("content");
            let content = source.fields.value("content");
            texts(&path, content.ok_or_else(|| missing(&path))?)?
        }
        _ => return Ok(None),
    };
    Ok(Some(match block.fields.string("title")? {
        Some(title) => format!("{title}\n{text}"),
        None => text,
    }))
}

fn search_result(block: &mut Block) -> Result<String, RequestError> {
    let (source, title) = (block.text("source")?, block.text("title")?);
    let path = block.fields.path("content");
    let content = block.fields.value("content");
    let text = texts(&path, content.ok_or_else(|| missing(&path))?)?;
    Ok(format!("{title} ({source})\n{text}"))
}

/// Blocks that can be nothing but text.
fn texts(path: &str, content: Value) -> Result<String, RequestError> {
    let mut text = String::new();
    for mut block in blocks(path, content)? {
        match block.kind.as_str() {
            "text" => text.push_str(&block.text("text")?),
            _ => return Err(block.refused()),
        }
    }
    Ok(text)
}
