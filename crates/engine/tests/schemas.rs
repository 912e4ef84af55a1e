//! Answers of a tiny model under many JSON schemas, from the real engine with and without drafts: what is not cut off
//! fits its schema.

#![allow(clippy::unwrap_used)]

mod common;

use common::in_process::{InProcess, demo};
use common::matching::{generate, text};
use common::{CONFIG, FIBONACCI, IM_END, collect, request, start};
use engine::EngineConfig;
use generation::{FinishReason, GenerateError, GenerateRequest, Grammar};
use generation::{SpeculationConfig, SpeculationMode};
use sampling::SamplingParams;
use serde_json::Value;

/// Long enough for nearly all that a model without much sense says within a schema.
const MAX_TOKENS: u32 = 192;

fn schemas(key: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/schemas.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    file[key].as_array().unwrap().clone()
}

fn of_schema(place: usize, schema: &Value, speculation: SpeculationConfig) -> GenerateRequest {
    GenerateRequest {
        stop_ids: vec![IM_END],
        sampling: SamplingParams {
            temperature: if place.is_multiple_of(2) { 0.0 } else { 0.7 },
            seed: place as u64,
            ..SamplingParams::default()
        },
        speculation: Some(speculation),
        grammar: Some(Grammar::JsonSchema(schema["schema"].to_string())),
        ..request(&FIBONACCI, MAX_TOKENS)
    }
}

#[tokio::test]
async fn every_answer_that_is_not_cut_off_fits_its_schema() {
    let schemas = schemas("followed");
    assert!(schemas.len() >= 100, "{} schemas", schemas.len());
    let config = EngineConfig {
        max_sequences: 8,
        queue_len: 2 * schemas.len(),
        speculation: SpeculationConfig {
            mode: SpeculationMode::Tree,
            budget: 16,
        },
        ..CONFIG
    };
    let stand = start(config);
    let draft = InProcess::open(&demo("demo-draft.gguf"), &demo("demo-target.gguf"), 16);
    let _lease = stand.handle.set_drafter(Box::new(draft));
    let mut streams = Vec::new();
    for (place, schema) in schemas.iter().enumerate() {
        for speculation in [SpeculationConfig::OFF, config.speculation] {
            let request = of_schema(place, schema, speculation);
            let stream = generate(&stand.handle, &request);
            let stream = stream.unwrap_or_else(|error| panic!("{schema}: {error}"));
            streams.push((schema, stream));
        }
    }
    let (mut ended, mut cut_off, mut plain) = (0, Vec::new(), Vec::new());
    for (schema, stream) in streams {
        let answer = collect(stream).await;
        let ids = answer.ids();
        let text = text(&ids);
        let name = schema["name"].as_str().unwrap();
        match answer.end {
            Ok((FinishReason::Stop, _)) => {
                let value: Value = serde_json::from_str(&text)
                    .unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
                let validator = jsonschema::options()
                    .should_validate_formats(true)
                    .build(&schema["schema"])
                    .unwrap();
                if let Err(error) = validator.validate(&value) {
                    panic!("{name}: {error}: {text}");
                }
                ended += 1;
            }
            Ok((FinishReason::Length, _)) => cut_off.push(name),
            Err(error) => panic!("{name}: {error}: {text}"),
        }
        // With drafts and without: they come in pairs.
        if plain.is_empty() {
            plain = vec![ids];
        } else {
            assert_eq!(plain.remove(0), ids, "{name}");
        }
    }
    let answers = 2 * schemas.len();
    println!("{ended} of {answers} answers ended; cut off: {cut_off:?}");
    assert!(
        ended * 100 >= answers * 80,
        "{ended} of {answers}: {cut_off:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused_by_its_name() {
    let stand = start(CONFIG);
    for schema in schemas("refused") {
        let request = of_schema(0, &schema, SpeculationConfig::OFF);
        let error = generate(&stand.handle, &request).map(|_| ()).unwrap_err();
        let GenerateError::Grammar(words) = &error else {
            panic!("{error}");
        };
        let named = schema["names"].as_str().unwrap();
        assert!(words.contains(named), "{schema}: {words}");
    }
}
