//! Ids of other implementations. The vocabularies are too large for the repository: each test reads the
//! GGUF named by its environment variable and is skipped without it.
#![allow(clippy::unwrap_used)] // Helpers outside test functions.

use gguf::GgufFile;
use serde_json::Value;
use tokenizer::{EncodeOptions, Tokenizer};

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

fn check(variable: &str, golden: &str) -> Option<Tokenizer> {
    let Some(path) = std::env::var_os(variable) else {
        eprintln!("skipped: {variable} is not set");
        return None;
    };
    let file = GgufFile::open(path).unwrap();
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    let golden: Value = serde_json::from_str(golden).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let parse_special = case["parse_special"].as_bool().unwrap();
        let want = ids(case.get("llamacpp_ids").unwrap_or(&case["ids"]));
        let got = tokenizer.encode(
            text,
            EncodeOptions {
                add_bos: true,
                parse_special,
            },
        );
        assert_eq!(got, want, "{text:?} parse_special {parse_special}");
        assert_eq!(tokenizer.decode(&got, true), text);
    }
    eprintln!("{} cases agree", cases.len());
    Some(tokenizer)
}

#[test]
fn smollm2() {
    let golden = include_str!("data/tokenizer_smollm2.json");
    if let Some(tokenizer) = check("TANDEM_SMOLLM2_GGUF", golden) {
        assert_eq!(tokenizer.vocab_size(), 49152);
        assert_eq!(tokenizer.stop_ids(), [0, 2]);
    }
}

#[test]
fn qwen35() {
    let golden = include_str!("data/tokenizer_qwen35.json");
    if let Some(tokenizer) = check("TANDEM_QWEN35_VOCAB_GGUF", golden) {
        assert_eq!(tokenizer.vocab_size(), 248320);
        assert_eq!(tokenizer.stop_ids(), [248044, 248046]);
        assert_eq!(tokenizer.token_id("<think>"), Some(248068));
    }
}
