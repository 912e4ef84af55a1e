//! Prompts to measure with.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokenizer::{EncodeOptions, Tokenizer};

/// For the demo model: beginnings of functions and files, and chats.
const DEMO_PROMPTS: &str = include_str!("../../deploy/demo/prompts.jsonl");

/// Token ids of each prompt of `file`, one JSON object per line.
pub(super) fn read(file: Option<&Path>, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>> {
    let (name, text) = match file {
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
            (name, text)
        }
        None => ("the demo prompts".to_owned(), DEMO_PROMPTS.to_owned()),
    };
    let mut prompts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if !line.trim().is_empty() {
            let prompt = prompt(line, tokenizer);
            prompts.push(prompt.with_context(|| format!("{name}, line {number}"))?);
        }
    }
    ensure!(!prompts.is_empty(), "{name}: there are no prompts");
    Ok(prompts)
}

fn prompt(line: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let value: Value = serde_json::from_str(line)?;
    if let Some(text) = value["prompt"].as_str() {
        let options = EncodeOptions {
            add_bos: true,
            parse_special: true,
        };
        return Ok(tokenizer.encode(text, options));
    }
    let Some(ids) = value["tokens"].as_array() else {
        bail!("expected an object with `prompt`, a text, or `tokens`, a list of ids");
    };
    ids.iter()
        .map(|id| {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            id.context("tokens: expected token ids")
        })
        .collect()
}
