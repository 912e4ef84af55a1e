//! Texts in, JSON out, in any two chunks.

use serde_json::json;

use super::ValueWriter;

fn written(
    schema: Option<&serde_json::Value>,
    root: &serde_json::Value,
    chunks: &[&str],
) -> String {
    let mut writer = ValueWriter::new(schema, root);
    let mut json: String = chunks.iter().map(|chunk| writer.push(chunk)).collect();
    json += &writer.finish();
    json
}

#[test]
fn texts_become_what_the_schema_has() {
    let root = json!({ "$defs": { "count": { "type": "integer" } } });
    for (schema, text, expected) in [
        (json!({ "type": "string" }), "\nParis\n", r#""Paris""#),
        (json!({ "type": "string" }), "\r\nParis\r\n", r#""Paris""#),
        (
            json!({ "type": "string" }),
            "\n\n  a <b> \"c\"\t\n\n",
            r#""\n  a <b> \"c\"\t\n""#,
        ),
        (json!({ "type": "string" }), "", r#""""#),
        (json!({ "type": "string" }), "\n", r#""""#),
        (json!({ "type": "string" }), "null", r#""null""#),
        (json!({ "type": "string" }), "5", r#""5""#),
        (json!({ "type": "string" }), "🚀 é\u{1}", "\"🚀 é\\u0001\""),
        (json!({ "type": ["string", "null"] }), "\nnull\n", "null"),
        (
            json!({ "type": ["string", "null"] }),
            "nullable",
            r#""nullable""#,
        ),
        (
            json!({ "type": "string", "nullable": true }),
            "null",
            "null",
        ),
        (
            json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }),
            "nul",
            r#""nul""#,
        ),
        (
            json!({ "type": "integer" }),
            "\n18446744073709551617\n",
            "18446744073709551617",
        ),
        (json!({ "type": "integer" }), "seven", r#""seven""#),
        (json!({ "type": "integer" }), "007", r#""007""#),
        (json!({ "type": "number" }), " -1.5e-300 ", "-1.5e-300"),
        (json!({ "type": "number" }), "1e999", "1e999"),
        (json!({ "type": "number" }), "null", r#""null""#),
        (json!({ "type": ["null", "number"] }), "null", "null"),
        (json!({ "type": ["integer", "string"] }), "5", "5"),
        (
            json!({ "type": ["integer", "string"] }),
            "five",
            r#""five""#,
        ),
        (json!({ "type": ["string", "integer"] }), "5", r#""5""#),
        (json!({ "type": "boolean" }), "True", "true"),
        (json!({ "type": "boolean" }), "yes", r#""yes""#),
        (
            json!({ "type": "object" }),
            "\n{\"a\": [1, {\"b\": 1e99}]}\n",
            "{\"a\": [1, {\"b\": 1e99}]}",
        ),
        (
            json!({ "type": "object" }),
            "{'a': True, 'b': None}",
            r#"{"a":true,"b":null}"#,
        ),
        (json!({ "type": "object" }), "{broken", r#""{broken""#),
        (json!({ "type": "array" }), "[1, 2]", "[1, 2]"),
        (json!({ "type": "array" }), "1, 2", r#""1, 2""#),
        (
            json!({ "anyOf": [{ "type": "integer" }, { "type": "boolean" }] }),
            "true",
            "true",
        ),
        (
            json!({ "oneOf": [{ "$ref": "#/$defs/count" }] }),
            "12",
            "12",
        ),
        (json!({ "$ref": "#/$defs/count" }), "12", "12"),
        (
            json!({ "allOf": [{ "$ref": "#/$defs/count" }] }),
            "12",
            "12",
        ),
        (json!({ "enum": ["a", "1"] }), "1", r#""1""#),
        (json!({ "enum": ["auto", 1] }), "1", "1"),
        (json!({ "enum": ["auto", null] }), "null", "null"),
        (json!({ "const": 3 }), "3", "3"),
        (json!({ "properties": {} }), "{}", "{}"),
        (json!({ "items": {} }), "[]", "[]"),
        (json!({}), "12", "12"),
        (json!({}), "[1]", "[1]"),
        (json!({}), "text", r#""text""#),
        (json!({ "$ref": "#" }), "x", r#""x""#),
    ] {
        let places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        for at in places {
            let chunks = [&text[..at], &text[at..]];
            let found = written(Some(&schema), &root, &chunks);
            assert_eq!(found, expected, "{schema} {chunks:?}");
        }
    }
    assert_eq!(
        written(None, &root, &["5"]),
        r#""5""#,
        "unknown keys are texts"
    );
}

#[test]
fn a_text_is_written_as_it_grows() {
    let schema = json!({ "type": ["string", "null"] });
    let mut writer = ValueWriter::new(Some(&schema), &schema);
    assert_eq!(writer.push("\nnu"), "");
    assert_eq!(writer.push("t"), "\"nut");
    assert_eq!(writer.push("s\n"), "s");
    assert_eq!(writer.push("x"), "\\nx");
    assert_eq!(writer.finish(), "\"");
}
