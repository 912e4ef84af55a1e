//! Prompts to measure with.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokenizer::{EncodeOptions, Tokenizer};

/// For the demo model: beginnings of functions and files, and chats.
const DEMO_PROMPTS: &str = include_str!("../../deploy/demo/prompts.jsonl");

/// Token ids of each prompt of `file`: one JSON value per line, one JSON list, or an object with the list `prompts`; in a
/// file that ends in `.txt` every line is a prompt.
pub(super) fn read(file: Option<&Path>, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>> {
    let (name, text) = match file {
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
            (name, text)
        }
        None => ("the demo prompts".to_owned(), DEMO_PROMPTS.to_owned()),
    };
    let is_plain = file.is_some_and(|path| path.extension().is_some_and(|end| end == "txt"));
    let values = if is_plain {
        text.lines().map(Value::from).collect()
    } else {
        json_values(&text).with_context(|| name.clone())?
    };
    let mut prompts = Vec::new();
    for (number, value) in (1..).zip(&values) {
        let prompt = prompt(value, tokenizer);
        prompts.push(prompt.with_context(|| format!("{name}, prompt {number}"))?);
    }
    prompts.retain(|prompt| !prompt.is_empty());
    ensure!(!prompts.is_empty(), "{name}: there are no prompts");
    Ok(prompts)
}

fn json_values(text: &str) -> Result<Vec<Value>> {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Array(list)) => return Ok(list),
        Ok(mut value) if value["prompts"].is_array() => {
            let list = value["prompts"].take();
            return Ok(list.as_array().cloned().unwrap_or_default());
        }
        _ => {}
    }
    let lines = (1..).zip(text.lines());
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| format!("line {number} is not JSON"))
        })
        .collect()
}

/// A text, a list of ids, or an object that holds one of them.
fn prompt(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let inner = ["prompt", "text", "tokens", "prompt_ids"]
        .iter()
        .find_map(|key| value.get(key))
        .unwrap_or(value);
    if let Some(text) = inner.as_str() {
        let options = EncodeOptions {
            add_bos: true,
            parse_special: true,
        };
        return Ok(tokenizer.encode(text, options));
    }
    let Some(ids) = inner.as_array() else {
        bail!("expected a text, a list of token ids, or an object with `prompt` or `tokens`");
    };
    ids.iter()
        .map(|id| {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            id.context("expected token ids")
        })
        .collect()
}
