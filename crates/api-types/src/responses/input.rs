//! The items of a conversation, brought into messages.

use serde_json::{Map, Value, json};

use crate::error::RequestError;
use crate::fields::{Fields, shown};
use crate::messages;
use crate::responses::tools::{INPUT, model_name};
use crate::tokens::missing;

/// What stands before the reasoning in what is called its encrypted content: text from anywhere else cannot be read.
pub const REASONING_MARK: &str = "tandem:";

/// What a tool's result says in place of a picture.
const PICTURE: &str = "[an image that this model cannot see]";

/// Of tools that other servers run themselves. What they found stands in the message that follows.
const FOREIGN: [&str; 5] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
];

const ROLES: &str = "\"user\", \"assistant\", \"system\" or \"developer\"";

/// The messages that `instructions` and `input` come to.
pub(super) fn messages(
    instructions: Option<&str>,
    input: Option<Value>,
) -> Result<Vec<Value>, RequestError> {
    let mut conversation = Conversation::default();
    conversation.system.extend(instructions.map(str::to_owned));
    match input {
        None => return Err(missing("input")),
        Some(Value::String(text)) => conversation.turn("user", text),
        Some(Value::Array(items)) if items.is_empty() => {
            return Err(RequestError::wrong(
                "input",
                "an empty list",
                "one item at least",
            ));
        }
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                conversation.add(&format!("input[{index}]"), item)?;
            }
        }
        Some(other) => {
            let expected = "a string or a list of items";
            return Err(RequestError::wrong("input", shown(&other), expected));
        }
    }
    conversation.close();
    Ok(messages::in_order(conversation.system, conversation.turns))
}

#[derive(Default)]
struct Conversation {
    system: Vec<String>,
    turns: Vec<Value>,
    /// The turn of the assistant that items still go into.
    assistant: Assistant,
}

/// What the assistant thinks, says and calls is one turn, until someone else speaks.
#[derive(Default)]
struct Assistant {
    reasoning: Vec<String>,
    texts: Vec<String>,
    calls: Vec<Value>,
}

impl Conversation {
    fn add(&mut self, path: &str, item: Value) -> Result<(), RequestError> {
        let mut fields = Fields::at(path, item)?;
        let kind = fields.string("type")?;
        // A message needs no type.
        match kind.as_deref().unwrap_or("message") {
            "message" => self.message(&mut fields)?,
            "reasoning" => self.assistant.reasoning.extend(reasoning(&mut fields)?),
            "function_call" => {
                let arguments = required(&mut fields, "arguments")?;
                self.call(&mut fields, messages::arguments(arguments.into()))?;
            }
            "custom_tool_call" => {
                let input = required(&mut fields, "input")?;
                self.call(&mut fields, json!({ INPUT: input }))?;
            }
            "function_call_output" | "custom_tool_call_output" => self.result(&mut fields)?,
            "item_reference" => {
                return Err(RequestError::Unsupported {
                    field: path.to_owned(),
                    what: "a reference to an item is".to_owned(),
                    hint: ", since nothing is stored; send the item itself".to_owned(),
                });
            }
            kind if FOREIGN.contains(&kind) => {}
            other => {
                let what = format!("an item of type {} is", shown(&other.into()));
                return Err(RequestError::unsupported(path, what));
            }
        }
        Ok(())
    }

    fn message(&mut self, fields: &mut Fields) -> Result<(), RequestError> {
        let role = required(fields, "role")?;
        // As in chat completions.
        let between = match role.as_str() {
            "system" | "developer" => "\n\n",
            _ => "",
        };
        let path = fields.path("content");
        let text = messages::content(&path, fields.value("content"), between)?;
        let text = text.ok_or_else(|| missing(&fields.path("content")))?;
        match role.as_str() {
            "system" | "developer" => self.system.push(text),
            "user" => self.turn("user", text),
            "assistant" => self.assistant.texts.push(text),
            other => return Err(fields.wrong("role", &other.into(), ROLES)),
        }
        Ok(())
    }

    fn call(&mut self, fields: &mut Fields, arguments: Value) -> Result<(), RequestError> {
        let (id, name) = (required(fields, "call_id")?, required(fields, "name")?);
        let namespace = fields.string("namespace")?;
        let name = model_name(namespace.as_deref(), &name);
        self.assistant.calls.push(json!({
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        }));
        Ok(())
    }

    fn result(&mut self, fields: &mut Fields) -> Result<(), RequestError> {
        let id = required(fields, "call_id")?;
        let path = fields.path("output");
        let text = match fields.value("output") {
            Some(Value::Array(parts)) => result_text(&path, parts)?,
            output => messages::content(&path, output, "")?.ok_or_else(|| missing(&path))?,
        };
        self.close();
        self.turns
            .push(json!({ "role": "tool", "content": text, "tool_call_id": id }));
        Ok(())
    }

    fn turn(&mut self, role: &str, text: String) {
        self.close();
        self.turns.push(json!({ "role": role, "content": text }));
    }

    /// Ends the assistant's turn. One that only thought left nothing to answer.
    fn close(&mut self) {
        let Assistant {
            reasoning,
            texts,
            calls,
        } = std::mem::take(&mut self.assistant);
        if texts.is_empty() && calls.is_empty() {
            return;
        }
        let mut turn = Map::new();
        turn.insert("role".to_owned(), "assistant".into());
        turn.insert("content".to_owned(), texts.join("\n\n").into());
        if !reasoning.is_empty() {
            turn.insert(
                "reasoning_content".to_owned(),
                reasoning.join("\n\n").into(),
            );
        }
        if !calls.is_empty() {
            turn.insert("tool_calls".to_owned(), calls.into());
        }
        self.turns.push(turn.into());
    }
}

/// What an item of reasoning says, from where it is sure to be whole: clients send back one of the three.
fn reasoning(fields: &mut Fields) -> Result<Option<String>, RequestError> {
    let sealed = fields.string("encrypted_content")?;
    let own = sealed
        .as_deref()
        .and_then(|text| text.strip_prefix(REASONING_MARK));
    if let Some(own) = own {
        return Ok(Some(own.to_owned()));
    }
    for name in ["content", "summary"] {
        let mut text = String::new();
        for (index, part) in fields
            .array(name)?
            .unwrap_or_default()
            .into_iter()
            .enumerate()
        {
            let mut part = Fields::at(&format!("{}[{index}]", fields.path(name)), part)?;
            text.push_str(&required(&mut part, "text")?);
        }
        if !text.is_empty() {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

fn result_text(path: &str, parts: Vec<Value>) -> Result<String, RequestError> {
    let mut text = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let is_picture = part["type"] == "input_image";
        if is_picture {
            text.push_str(PICTURE);
            continue;
        }
        text.push_str(&messages::part_text(&format!("{path}[{index}]"), part)?);
    }
    Ok(text)
}

fn required(fields: &mut Fields, name: &str) -> Result<String, RequestError> {
    fields
        .string(name)?
        .ok_or_else(|| missing(&fields.path(name)))
}
