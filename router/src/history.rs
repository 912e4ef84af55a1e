//! Messages as the template can take them.

use std::borrow::Cow;

use chat::RenderInput;
use serde_json::{Map, Value};
use tool_calls::{Dialect, instructions, response_text};

/// Claude Code begins its system text with a line that differs from run to run, which no kept prefix would survive.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// Takes lines of attribution out of the system text, which stands first where there is one.
pub(crate) fn drop_attribution(messages: &mut Vec<Value>) {
    let Some(first) = messages
        .first_mut()
        .filter(|first| first["role"] == "system")
    else {
        return;
    };
    let text = first["content"].as_str().unwrap_or_default();
    let is_attribution = |line: &str| line.trim_start().starts_with(ATTRIBUTION);
    if !text.split('\n').any(is_attribution) {
        return;
    }
    let kept = text.split('\n').filter(|line| !is_attribution(line));
    let kept = kept.collect::<Vec<_>>().join("\n");
    let kept = kept.trim_start_matches('\n').to_owned();
    if kept.is_empty() {
        messages.remove(0);
    } else {
        first["content"] = kept.into();
    }
}

/// The same conversation for a template of that dialect, or for one that knows of no tools.
pub(crate) fn for_template(input: &RenderInput, dialect: Option<Dialect>) -> Cow<'_, RenderInput> {
    let messages = &input.messages;
    let needs_words = match dialect {
        // Templates walk through the arguments of calls.
        Some(_) => messages.iter().any(has_odd_call),
        None => {
            let is_of_tools = |m: &Value| m["role"] == "tool" || !calls(m).is_empty();
            input.tools.is_some() || messages.iter().any(is_of_tools)
        }
    };
    if !needs_words {
        return Cow::Borrowed(input);
    }
    let mut input = input.clone();
    match dialect {
        Some(dialect) => {
            let odd = input.messages.iter_mut().filter(|m| has_odd_call(m));
            odd.for_each(|message| spell_calls(message, dialect));
        }
        None => {
            let tools = input.tools.take().unwrap_or_default();
            input.messages = without_tools(input.messages, &tools);
        }
    }
    Cow::Owned(input)
}

/// Tools are part of the system text, calls are text, and what they gave is said by the user, in one turn for each round.
fn without_tools(messages: Vec<Value>, tools: &[Value]) -> Vec<Value> {
    let mut shown: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    let mut is_round = false;
    for mut message in messages {
        let is_response = message["role"] == "tool";
        if is_response {
            let text = response_text(message["content"].as_str().unwrap_or_default());
            match shown.last_mut().filter(|_| is_round) {
                Some(last) => {
                    let before = last["content"].as_str().unwrap_or_default();
                    last["content"] = format!("{before}\n{text}").into();
                }
                None => shown.push(turn("user", text)),
            }
        } else {
            spell_calls(&mut message, Dialect::Elements);
            shown.push(message);
        }
        is_round = is_response;
    }
    if !tools.is_empty() {
        let mut system = instructions(tools);
        if shown.first().is_some_and(|first| first["role"] == "system") {
            let own = shown.remove(0);
            system = system + "\n\n" + own["content"].as_str().unwrap_or_default();
        }
        shown.insert(0, turn("system", system));
    }
    shown
}

fn calls(message: &Value) -> &[Value] {
    message["tool_calls"].as_array().map_or(&[], Vec::as_slice)
}

fn has_odd_call(message: &Value) -> bool {
    let is_odd = |call: &Value| !call["function"]["arguments"].is_object();
    calls(message).iter().any(is_odd)
}

/// Makes calls part of what the message says.
fn spell_calls(message: &mut Value, dialect: Dialect) {
    let spell = |call: &Value| {
        let name = call["function"]["name"].as_str().unwrap_or_default();
        dialect.call_text(name, &call["function"]["arguments"])
    };
    let texts: Vec<String> = calls(message).iter().map(spell).collect();
    let Some(fields) = message.as_object_mut().filter(|_| !texts.is_empty()) else {
        return;
    };
    let said = fields.get("content").and_then(Value::as_str);
    let said = said.filter(|said| !said.is_empty());
    let said = said.map_or(String::new(), |said| format!("{said}\n\n"));
    fields.insert("content".to_owned(), (said + &texts.join("\n")).into());
    fields.shift_remove("tool_calls");
}

fn turn(role: &str, content: String) -> Value {
    let mut fields = Map::new();
    fields.insert("role".to_owned(), role.into());
    fields.insert("content".to_owned(), content.into());
    Value::Object(fields)
}
