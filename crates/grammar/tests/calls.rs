//! Grammars of calls, followed by choosing at random among what is allowed: what comes out is read as calls whose arguments fit
//! the tools' schemas.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use generation::Grammar;
use gguf::GgufFile;
use grammar::Grammars;
use serde_json::{Value, json};
use tool_calls::{CallEvent, CallGrammar, CallParser, Dialect, Ending, Tools};
use vocabulary::Vocabulary;

/// Tokens of a call at most.
const MOST: usize = 1000;

fn tool(name: &str, parameters: Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        (
            "search",
            json!({
                "type": "object", "required": ["limit", "kind", "exact"], "additionalProperties": false,
                "properties": {
                    "limit": { "type": "integer", "minimum": 1, "maximum": 500 },
                    "kind": { "enum": ["file", "folder"] },
                    "exact": { "type": "boolean" },
                    "share": { "type": ["number", "null"], "minimum": 0, "maximum": 1 },
                },
            }),
        ),
        (
            "edit",
            json!({
                "type": "object", "required": ["edits", "mode"], "additionalProperties": false,
                "properties": {
                    "mode": { "const": "replace" },
                    "edits": { "type": "array", "minItems": 1, "maxItems": 2, "items": { "$ref": "#/$defs/edit" } },
                },
                "$defs": { "edit": {
                    "type": "object", "required": ["line"], "additionalProperties": false,
                    "properties": { "line": { "type": "integer", "minimum": 0, "maximum": 99 } },
                } },
            }),
        ),
        (
            "now",
            json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        ),
        (
            // It says more than is enforced; who did not ask for strictness gets the rest of it.
            "odd",
            json!({
                "type": "object", "required": ["level"], "additionalProperties": false,
                "properties": { "level": { "oneOf": [{ "type": "integer", "maximum": 5 }, { "type": "boolean" }] } },
            }),
        ),
    ]
}

#[test]
fn a_forced_call_fits_its_schema_in_every_dialect() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo/demo-target.gguf");
    let vocabulary = Vocabulary::from_gguf(GgufFile::open(path).unwrap().metadata()).unwrap();
    let rows = vocabulary.num_tokens();
    let grammars = Grammars::new(&vocabulary, rows).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for dialect in [Dialect::Elements, Dialect::Tagged, Dialect::Plain] {
        for (name, schema) in schemas() {
            let tools = Arc::new(Tools::from_nested(&[tool(name, schema.clone())]));
            let call = CallGrammar {
                tools: &tools,
                dialect,
                is_forced: true,
                is_parallel: false,
                said: None,
                marks_are_control: false,
            };
            let grammar = Grammar::Lark(call.lark().unwrap());
            let fits = jsonschema::validator_for(&schema).unwrap();
            for walk in 0..8 {
                // Half of the models would rather write spaces for ever.
                let likes_blanks = walk % 2 == 0;
                let mut matcher = grammars.compile(&grammar).unwrap();
                let mut text = Vec::new();
                for _ in 0..MOST {
                    if matcher.can_only_end() {
                        break;
                    }
                    let allowed = matcher.allowed().unwrap();
                    let mut choices: Vec<u32> =
                        (0..rows as u32).filter(|&t| allowed.contains(t)).collect();
                    let blanks: Vec<u32> = choices
                        .iter()
                        .copied()
                        .filter(|&token| {
                            vocabulary
                                .bytes(token, true)
                                .unwrap()
                                .trim_ascii()
                                .is_empty()
                        })
                        .collect();
                    if likes_blanks && !blanks.is_empty() {
                        choices = blanks;
                    }
                    let chosen = random.choice(&choices).copied().unwrap();
                    matcher.advance(chosen).unwrap();
                    text.extend_from_slice(&vocabulary.bytes(chosen, true).unwrap());
                }
                assert!(matcher.may_end(), "{dialect:?} {name} does not end");
                let text = String::from_utf8(text).unwrap();
                let mut parser = CallParser::new(Arc::clone(&tools), true, false);
                let mut events = parser.push(&text);
                events.extend(parser.finish(Ending::Complete));
                assert_eq!(events.first(), Some(&CallEvent::Start(name.to_owned())));
                let arguments = events.iter().filter_map(|event| match event {
                    CallEvent::Arguments(json) => Some(json.as_str()),
                    _ => None,
                });
                let arguments = arguments.collect::<String>();
                let found: Value = serde_json::from_str(&arguments).unwrap();
                assert!(fits.is_valid(&found), "{dialect:?}: {found} in {text:?}");
            }
        }
    }
}
