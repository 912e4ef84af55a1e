//! Small templates for each thing that chat templates rely on.
#![allow(clippy::unwrap_used, reason = "test helpers outside test functions")]

use chat::{ChatError, ChatTemplate, RenderInput};
use serde_json::{Map, Value, json};

fn input(kwargs: Value) -> RenderInput {
    RenderInput {
        kwargs: kwargs.as_object().unwrap().clone(),
        ..Default::default()
    }
}

fn render(source: &str, kwargs: Value) -> Result<String, ChatError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(&input(kwargs))
}

#[test]
fn constructs() {
    let v = json!({
        "z": 1, "a": [true, null, 1.0, 1e22, -3], "é": "q\"\\\n\t\u{7f}\u{1}<&>'日😀", "e": {}, "l": []
    });
    let rows = [
        (
            "{{ v | tojson }}",
            r#"{"z": 1, "a": [true, null, 1.0, 1e+22, -3], "é": "q\"\\\n\tDEL\u0001<&>'日😀", "e": {}, "l": []}"#,
        ),
        (
            "{{ {'b': [1, {}], 'a': []} | tojson(indent=2) }}",
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}",
        ),
        (
            "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
            r#"{"a":2,"b":1}"#,
        ),
        (
            "{{ '日😀' | tojson(ensure_ascii=true) }}",
            r#""\u65e5\ud83d\ude00""#,
        ),
        (
            "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ nope is defined }}",
            "<s></s>TrueFalse",
        ),
        (
            "{{ v.a[0] }} {{ v.a[1] }} {{ v.a[3] | string }} {{ nope }}|",
            "True None 1e+22 |",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}\
          {% if i == 4 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "4",
        ),
        (
            "{{ 'a-b'.split('-')[-1] }}{{ ' x '.strip() }}{{ 'xx'.lstrip('x') }}{{ 'ab'.startswith('a') }}\
          {{ 'ab'.endswith('a') }}{{ 'ab'.upper() }}{{ 'a b'.title() }}{{ 'ab'.replace('a', 'c') }}",
            "bxTrueFalseABA Bcb",
        ),
        (
            "{% for k, x in {'p': 1, 'o': 2}.items() %}{{ k }}{{ x }}{% endfor %}\
          {{ {'p': 1}.keys() | list | length }}{{ {'p': 1}.get('q', 7) }}",
            "p1o217",
        ),
        (
            "{% for m in [1, 2, 3][::-1] %}{{ m }}{% if not loop.last %},{% endif %}{% endfor %}",
            "3,2,1",
        ),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n\n", "  a\nb\n"),
        (
            "a\r\n{%- generation %}x{%- endgeneration -%}\r\nb\r\n",
            "axb",
        ),
        (
            "{% macro m(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ m(1) ~ m('<', y=3) }}",
            "<12><<3>",
        ),
    ];
    for (source, expected) in rows {
        let expected = expected.replace("DEL", "\u{7f}");
        assert_eq!(
            render(source, json!({ "v": v })).unwrap(),
            expected,
            "{source}"
        );
    }
}

#[test]
fn client_variables_cannot_replace_the_conversation() {
    let kwargs = json!({ "messages": [1], "tools": [1], "add_generation_prompt": true, "mine": 5 });
    let source = "{{ messages | length }}{{ tools }}{{ add_generation_prompt }}{{ mine }}";
    assert_eq!(render(source, kwargs).unwrap(), "0NoneFalse5");
}

#[test]
fn the_time_can_be_fixed() {
    let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", "", "").unwrap();
    assert_eq!(
        template.clone().render(&input(json!({}))).unwrap().len(),
        11
    );
    assert_eq!(
        template.at(86_400).render(&input(json!({}))).unwrap(),
        "02 Jan 1970"
    );
}

#[test]
fn failures_are_told_apart() {
    let error = render("a\n\n{% if %}", json!({})).unwrap_err();
    assert!(
        matches!(error, ChatError::Compile { line: 3, .. }),
        "{error:?}"
    );
    let rejected = ChatError::Rejected {
        message: "No way.".to_owned(),
    };
    let direct = "{{ raise_exception('No way.') }}";
    let nested =
        "{% macro m() %}{{ raise_exception('No way.') }}{% endmacro %}{% set x = m() | trim %}";
    for source in [direct, nested] {
        assert_eq!(render(source, json!({})).unwrap_err(), rejected);
    }
    let error = render("\n{{ nope.deeper.still }}", json!({})).unwrap_err();
    assert!(
        matches!(error, ChatError::Render { line: 2, .. }),
        "{error:?}"
    );
    assert!(render("{{ nope | tojson }}", json!({})).is_err());
}

#[test]
fn hostile_templates_end() {
    let r = "range(9999)";
    let source = format!("{{% for a in {r} %}}{{% for b in {r} %}}{{% endfor %}}{{% endfor %}}");
    let error = render(&source, json!({})).unwrap_err();
    assert!(matches!(error, ChatError::OutOfFuel { .. }), "{error:?}");
    assert!(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", json!({})).is_err());
}

#[test]
fn fallback() {
    let template = ChatTemplate::fallback_chatml().unwrap();
    let messages = json!([
        { "role": "system", "content": "S" },
        { "role": "user", "content": [{ "type": "text", "text": "U" }] },
        { "role": "assistant", "content": null, "tool_calls": [
            { "function": { "name": "f", "arguments": { "k": "v", "n": [1, 2] } } },
            { "function": { "name": "g", "arguments": {} } }
        ] },
        { "role": "tool", "content": "1" },
        { "role": "tool", "content": "2" },
        { "role": "assistant", "content": "A" }
    ]);
    let mut input = RenderInput {
        messages: messages.as_array().unwrap().clone(),
        add_generation_prompt: true,
        ..Default::default()
    };
    let turns = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<tool_call>\n<function=f>\n\
        <parameter=k>\nv\n</parameter>\n<parameter=n>\n[1, 2]\n</parameter>\n</function>\n</tool_call>\n\
        <tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n\
        <tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n\
        <|im_start|>assistant\nA<|im_end|>\n<|im_start|>assistant\n<think>\n";
    let expected = format!("<|im_start|>system\nS<|im_end|>\n{turns}");
    assert_eq!(template.render(&input).unwrap(), expected);
    input.kwargs = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    assert_eq!(
        template.render(&input).unwrap(),
        format!("{expected}\n</think>\n\n")
    );
    input.tools = Some(vec![
        json!({ "type": "function", "function": { "name": "f" } }),
    ]);
    let prompt = template.render(&input).unwrap();
    assert!(
        prompt.starts_with("<|im_start|>system\nS\n\n# Tools\n"),
        "{prompt}"
    );
    assert!(
        prompt.contains("\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>")
    );
    assert_eq!(prompt.matches("<|im_start|>system").count(), 1);
}
