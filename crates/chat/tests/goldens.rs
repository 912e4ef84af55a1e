//! Every golden of transformers' `render_jinja_template`, byte for byte.
#![allow(clippy::unwrap_used, reason = "test helpers outside test functions")]

use std::fs;
use std::path::Path;

use chat::{ChatTemplate, RenderInput};
use serde_json::Value;

fn check(cases: &Value, name: &str, source: &str, bos: &str, eos: &str) {
    let template = ChatTemplate::new(source, bos, eos).unwrap();
    let mut checked = 0;
    for case in cases["cases"].as_array().unwrap() {
        if case["template"] != name {
            continue;
        }
        let input = RenderInput {
            messages: case["messages"].as_array().unwrap().clone(),
            tools: case["tools"].as_array().cloned(),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            kwargs: case["kwargs"].as_object().unwrap().clone(),
        };
        let rendered = template.render(&input).unwrap();
        assert_eq!(rendered, case["rendered"].as_str().unwrap(), "{case}");
        checked += 1;
    }
    assert!(checked > 0);
    println!("{name}: {checked} goldens match");
}

#[test]
fn smollm2() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let cases = fs::read_to_string(data.join("chat_templates.json")).unwrap();
    let source = fs::read_to_string(data.join("smollm2.jinja")).unwrap();
    let cases = serde_json::from_str(&cases).unwrap();
    check(&cases, "smollm2", &source, "<|im_start|>", "<|im_end|>");
}

#[test]
fn qwen35() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/goldens/text");
    let read = |name: &str| fs::read_to_string(data.join(name));
    let (Ok(cases), Ok(source)) = (read("chat_templates.json"), read("qwen35.jinja")) else {
        println!("skipped: the shared goldens are not there");
        return;
    };
    check(
        &serde_json::from_str(&cases).unwrap(),
        "qwen35",
        &source,
        "",
        "<|im_end|>",
    );
}
