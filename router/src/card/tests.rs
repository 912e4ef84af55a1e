use std::fs;

use serde_json::{Value, json};

use super::{Card, SHIPPED, file_name};

fn schema() -> jsonschema::Validator {
    let text = include_str!("../../model-cards/card.schema.json");
    let schema: Value = serde_json::from_str(text).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

fn least() -> Value {
    json!({ "name": "m", "source": "https://example.com/m", "verified_at": "2026-11-22", "max_tokens": 1 })
}

#[test]
fn every_shipped_card_is_what_the_schema_says_and_is_found_by_its_name() {
    let schema = schema();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/model-cards");
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "card.schema.json")
        .collect();
    names.sort();
    let shipped: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names, shipped,
        "the cards of the folder are those inside the program"
    );
    for (name, text) in SHIPPED {
        let value: Value = serde_json::from_str(text).unwrap();
        schema
            .validate(&value)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let card = Card::parse(text).unwrap();
        assert_eq!(file_name(&card.name), name);
        let found = Card::find(&card.name.replace('-', "_"), None).unwrap();
        assert_eq!(found, Some(card));
    }
}

#[test]
fn what_the_schema_refuses_is_refused_and_nothing_else() {
    let schema = schema();
    let changes = [
        (json!({}), None),
        (
            json!({ "notes": "x", "sampling": {}, "reasoning_effort_tiers": { "x-high": 1 } }),
            None,
        ),
        (
            json!({ "download_urls": ["http://example.com"], "hard_limit_reply_budget": 256 }),
            None,
        ),
        (json!({ "max_tokens": null }), Some("null")),
        (json!({ "max_tokens": 0 }), Some("max_tokens is 0")),
        (
            json!({ "max_tokens": 4_294_967_296_u64 }),
            Some("4294967296"),
        ),
        (json!({ "name": "" }), Some("name is empty")),
        (json!({ "source": "a friend" }), Some("`a friend`")),
        (json!({ "download_urls": ["ftp://x"] }), Some("`ftp://x`")),
        (
            json!({ "verified_at": "22.11.2026" }),
            Some("verified_at is `22.11.2026`"),
        ),
        (json!({ "verified_at": "2026-13-01" }), Some("verified_at")),
        (
            json!({ "hard_limit_reply_budget": 255 }),
            Some("expected 256 or more"),
        ),
        (
            json!({ "thinking_marker": "<channel|>" }),
            Some("only `</think>` is understood"),
        ),
        (
            json!({ "thinking_terminator_hint": "" }),
            Some("thinking_terminator_hint is empty"),
        ),
        (
            json!({ "sampling": { "temperature": 2.5 } }),
            Some("temperature"),
        ),
        (json!({ "sampling": { "top_p": 0 } }), Some("top_p")),
        (
            json!({ "sampling": { "presence_penalty": 3 } }),
            Some("presence_penalty is 3"),
        ),
        (
            json!({ "sampling": { "temp": 1 } }),
            Some("unknown field `temp`"),
        ),
        (
            json!({ "reasoning_effort_tiers": { "low": 0 } }),
            Some("low is 0"),
        ),
        (
            json!({ "reasoning_effort_tiers": { "xhigh": 1 } }),
            Some("unknown field `xhigh`"),
        ),
        (json!({ "max_token": 5 }), Some("unknown field `max_token`")),
    ];
    for (change, refusal) in changes {
        let mut card = least();
        for (key, value) in change.as_object().unwrap() {
            card[key] = value.clone();
        }
        assert_eq!(schema.is_valid(&card), refusal.is_none(), "{card}");
        let parsed = Card::parse(&card.to_string());
        match refusal {
            None => assert!(parsed.is_ok(), "{card}"),
            Some(words) => {
                let error = format!("{:#}", parsed.unwrap_err());
                assert!(error.contains(words), "{error}");
            }
        }
    }
    for key in ["name", "source", "verified_at", "max_tokens"] {
        let mut card = least();
        card.as_object_mut().unwrap().remove(key);
        assert!(!schema.is_valid(&card));
        let error = Card::parse(&card.to_string()).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_folder_has_the_first_word_and_its_bad_cards_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qwen3.6-27b.json");
    let find = || Card::find("Qwen3.6 27B", Some(folder.path()));
    assert_eq!(
        find().unwrap().unwrap().max_tokens,
        32768,
        "the shipped one"
    );
    fs::write(&path, least().to_string()).unwrap();
    assert_eq!(find().unwrap().unwrap().max_tokens, 1);
    let mut bad = least();
    bad["sampling"] = json!({ "heat": 1 });
    fs::write(&path, bad.to_string()).unwrap();
    let error = format!("{:#}", find().unwrap_err());
    assert!(
        error.contains("qwen3.6-27b.json") && error.contains("`heat`"),
        "{error}"
    );
    assert_eq!(Card::find("nobody", Some(folder.path())).unwrap(), None);
    let error = Card::find("nobody", Some(&path)).unwrap_err().to_string();
    assert!(
        error.contains("model-cards") && error.contains("no folder"),
        "{error}"
    );
}

#[test]
fn names_of_files_are_plain() {
    for (name, file) in [
        ("Qwen3.6-27B", "qwen3.6-27b.json"),
        (" Qwen3.6 27B\t", "qwen3.6-27b.json"),
        ("Qwen_3.5 (0.8B)!", "qwen-3.5-0.8b.json"),
        ("../../etc/passwd", "....etcpasswd.json"),
    ] {
        assert_eq!(file_name(name), file);
    }
}
