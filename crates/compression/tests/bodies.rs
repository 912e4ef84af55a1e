//! Bodies in the prompts of different templates, and what may be cut of them.
#![allow(clippy::unwrap_used, reason = "test helpers outside test functions")]

use std::ops::Range;

use chat::{ChatError, ChatTemplate, RenderInput};
use compression::{Body, Part, Plan, Rules, find, plan, remaining};
use serde_json::{Value, json};

/// Two turns of Llama's shape, whose tool results are JSON strings.
const HEADERS: &str = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% elif m.role == 'tool' %}{{ m.content | tojson }}\
    {% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}";

fn templates() -> Vec<(&'static str, ChatTemplate)> {
    let new = |source: &str| ChatTemplate::new(source, "<bos>", "<|im_end|>").unwrap();
    vec![
        ("qwen35", new(include_str!("data/qwen35.jinja"))),
        (
            "smollm2",
            new(include_str!("../../chat/tests/data/smollm2.jinja")),
        ),
        ("headers", new(HEADERS)),
        ("fallback", ChatTemplate::fallback_chatml().unwrap()),
    ]
}

fn tools() -> Vec<Value> {
    let parameters = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    let tool = |name: &str| {
        // As long as any body, and in the words of one.
        let description = lines(name, 40);
        json!({ "type": "function", "function": { "name": name, "description": description, "parameters": parameters } })
    };
    vec![tool("read_file"), tool("list_files")]
}

fn lines(name: &str, count: usize) -> String {
    let line = |n: usize| {
        format!(
            "Line {n} of {name} tells nothing that {} others do not.",
            n * 7
        )
    };
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

/// An agent at work: two rounds of tools are over, a third with two results was the last.
fn agent() -> Vec<Value> {
    let call = |path: &str| {
        let arguments = json!({ "path": path, "note": lines("an argument", 30) });
        json!({ "type": "function", "function": { "name": "read_file", "arguments": arguments } })
    };
    vec![
        json!({ "role": "system", "content": lines("the rules", 60) }),
        json!({ "role": "user", "content": format!("Look at this.\n\n{}\n\nWhat is wrong?", lines("the report", 60)) }),
        json!({ "role": "assistant", "content": "", "tool_calls": [call("a")] }),
        json!({ "role": "tool", "content": format!("\n{}  \n", lines("a", 60)) }),
        json!({ "role": "assistant", "content": lines("thoughts", 60), "tool_calls": [call("b")] }),
        // The words of the rules once more.
        json!({ "role": "tool", "content": lines("the rules", 60) }),
        json!({ "role": "assistant", "content": "", "tool_calls": [call("c"), call("d")] }),
        json!({ "role": "tool", "content": lines("c", 60) }),
        json!({ "role": "tool", "content": lines("d", 60) }),
    ]
}

const RULES: Rules = Rules {
    hot_window: 2,
    message_tokens: 100,
};

struct Prompt {
    messages: Vec<Value>,
    text: String,
    bodies: Vec<Body>,
    /// Words are tokens here, with the space before them.
    ends: Vec<usize>,
}

impl Prompt {
    fn new(template: &ChatTemplate, messages: Vec<Value>) -> Self {
        let render = |messages: Vec<Value>| -> Result<String, ChatError> {
            template.render(&RenderInput {
                messages,
                tools: Some(tools()),
                add_generation_prompt: true,
                ..RenderInput::default()
            })
        };
        let text = render(messages.clone()).unwrap();
        let bodies = find(&messages, &text, render);
        let mut ends: Vec<usize> = text
            .match_indices([' ', '\n', '<'])
            .map(|(at, _)| at)
            .collect();
        ends.retain(|&end| end > 0);
        ends.push(text.len());
        Self {
            messages,
            text,
            bodies,
            ends,
        }
    }

    fn plan(&self) -> Plan {
        plan(
            &self.messages,
            self.bodies.clone(),
            &self.text,
            &self.ends,
            RULES,
        )
    }

    fn body(&self, message: usize) -> Option<&str> {
        let body = self.bodies.iter().find(|body| body.message == message)?;
        Some(&self.text[body.bytes.clone()])
    }

    /// What is left when all that is due goes.
    fn cut(&self) -> String {
        let plan = self.plan();
        let cuts: Vec<Range<usize>> = due(&plan).map(|part| part.cut.clone()).collect();
        let token = |token: usize| {
            let start = token.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.text[start..self.ends[token]]
        };
        let kept = remaining(&self.text, &self.ends, &cuts, |_| false);
        kept.into_iter().map(token).collect()
    }
}

fn due(plan: &Plan) -> impl Iterator<Item = &Part> {
    plan.parts.iter().filter(|part| part.is_due)
}

fn due_messages(prompt: &Prompt) -> Vec<usize> {
    due(&prompt.plan()).map(|part| part.body.message).collect()
}

#[test]
fn bodies_are_where_the_template_put_them() {
    for (name, template) in templates() {
        let prompt = Prompt::new(&template, agent());
        let found: Vec<usize> = prompt.bodies.iter().map(|body| body.message).collect();
        // One that is quoted as JSON, or not shown at all, is not there verbatim.
        let expected: &[usize] = match name {
            "headers" => &[1],
            _ => &[1, 3, 4, 5, 7, 8],
        };
        assert_eq!(found, expected, "{name}");
        for &message in expected {
            let content = prompt.messages[message]["content"].as_str().unwrap();
            let body = prompt.body(message).unwrap();
            assert!(
                body == content || body == content.trim(),
                "{name} {message}"
            );
        }
    }
}

#[test]
fn a_body_that_the_template_reads_or_shows_twice_is_left_alone() {
    let twice =
        "{% for m in messages %}[{{ m.content }}]{{ m.content if m.role == 'user' }}{% endfor %}";
    let long = lines("it", 10);
    let conversation = |first: &str| {
        vec![
            json!({ "role": "user", "content": first }),
            json!({ "role": "assistant", "content": lines("answer", 9) }),
            json!({ "role": "user", "content": "next" }),
        ]
    };
    let found = |source: &str, messages: Vec<Value>| -> Vec<usize> {
        let template = ChatTemplate::new(source, "", "").unwrap();
        let prompt = Prompt::new(&template, messages);
        prompt.bodies.iter().map(|body| body.message).collect()
    };
    assert_eq!(found(twice, conversation(&long)), [1]);
    let upper = "{% for m in messages %}[{{ m.content | upper if m.role == 'user' else m.content }}]{% endfor %}";
    assert_eq!(found(upper, conversation(&long)), [1]);
    // An answer whose thoughts the template takes away.
    let mut thinking = conversation(&long);
    let answer = format!("<think>{long}</think>\n\n{}", lines("answer", 9));
    thinking[1]["content"] = answer.as_str().into();
    assert_eq!(found(include_str!("data/qwen35.jinja"), thinking), [0]);
    // A prompt with the mark in it.
    let marked = format!("\u{e000}0\u{e000}{long}");
    let all = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    assert_eq!(found(all, conversation(&marked)), [0, 1]);
    assert!(
        found(
            all,
            conversation(&format!("{}{long}", "\u{e000}".repeat(9)))
        )
        .is_empty()
    );
}

#[test]
fn system_text_tools_calls_and_the_last_round_survive_byte_for_byte() {
    for (name, template) in templates() {
        let prompt = Prompt::new(&template, agent());
        let expected: &[usize] = match name {
            "headers" => &[1],
            _ => &[1, 3, 4, 5],
        };
        assert_eq!(due_messages(&prompt), expected, "{name}");
        let left = prompt.cut();
        let mut whole = vec![
            lines("the rules", 60),
            "Look at this.".to_owned(),
            "What is wrong?".to_owned(),
        ];
        if name != "headers" {
            assert!(left.len() < prompt.text.len() - 10_000, "{name}");
        }
        if matches!(name, "qwen35" | "fallback") {
            whole.extend([lines("c", 60), lines("d", 60)]);
            whole.extend([lines("an argument", 30)]);
            let from = prompt.text.find("<tools>").unwrap();
            let to = prompt.text.find("</tools>").unwrap();
            whole.push(prompt.text[from..to].to_owned());
        }
        for text in whole {
            assert!(
                prompt.text.contains(&text) && left.contains(&text),
                "{name}: {text}"
            );
        }
        // Cutting the bodies as a whole leaves the markup as it was.
        for mark in [
            "<|im_start|>",
            "<|im_end|>",
            "<tool_call>",
            "<tool_response>",
            "<|eot_id|>",
        ] {
            assert_eq!(
                left.matches(mark).count(),
                prompt.text.matches(mark).count(),
                "{name} {mark}"
            );
        }
    }
}

#[test]
fn in_an_opening_only_what_users_say_is_cut_and_not_its_ends() {
    let (_, template) = templates().remove(0);
    let document = lines("the book", 120);
    let question = "In two\nparagraphs: what does the book say of line 7?";
    let content = format!("Here is a book.\n\n{document}\n\n{question}");
    let messages = vec![
        json!({ "role": "system", "content": lines("the rules", 60) }),
        json!({ "role": "user", "content": content }),
    ];
    let prompt = Prompt::new(&template, messages);
    let plan = prompt.plan();
    assert!(plan.is_opening);
    assert_eq!(due_messages(&prompt), [1]);
    let cut = &prompt.text[plan.parts[0].cut.clone()];
    assert_eq!(cut.trim(), document);
    assert!(prompt.cut().contains(question));
    // Without paragraphs: a share of its tokens.
    let flat = document.replace('\n', " ");
    let prompt = Prompt::new(&template, vec![json!({ "role": "user", "content": flat })]);
    let plan = prompt.plan();
    let (cut, tokens) = (plan.due_tokens(&prompt.ends), flat.split(' ').count());
    assert!(
        (tokens - 64 - tokens / 16 - 2..=tokens - 64 - tokens / 16).contains(&cut),
        "{cut} of {tokens}"
    );
}

#[test]
fn what_is_hot_short_or_little_stays() {
    let (_, template) = templates().remove(0);
    let long = |name: &str| lines(name, 80);
    let chat = |older: &str| {
        vec![
            json!({ "role": "user", "content": older }),
            json!({ "role": "assistant", "content": long("an answer") }),
            json!({ "role": "user", "content": long("another question") }),
        ]
    };
    let prompt = Prompt::new(&template, chat(&long("a question")));
    assert_eq!(due_messages(&prompt), [0]);
    let plan = prompt.plan();
    let later: Vec<_> = plan
        .parts
        .iter()
        .map(|part| (part.is_long, part.is_due))
        .collect();
    assert_eq!(later, [(true, true), (true, false), (true, false)]);
    assert!(due_messages(&Prompt::new(&template, chat(&lines("few", 5)))).is_empty());
    // Longer than a message has to be, but not worth it.
    assert!(due_messages(&Prompt::new(&template, chat(&lines("some", 20)))).is_empty());
}
