//! How much reasoning a request gets, and what is said of how it ended.

use std::fs;

use generation::{FinishReason, GenerateEvent, GenerateRequest, ThinkingLimit, Timings};
use router::{AnswerDefaults, DefaultThinking, LengthLimits, RouterConfig};
use serde_json::{Value, json};

use crate::script::{Script, Step, opening, parsed, token};
use crate::server::{Server, TOKENIZER};

const CHAT: &str = "/v1/chat/completions";

fn hello(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

/// What the target is asked for a request.
fn asked(config: RouterConfig, more: Value) -> GenerateRequest {
    let script = Script::says(&TOKENIZER, "x").holding(16384);
    let server = Server::with(config, script.clone());
    let reply = server.post(CHAT, &hello(more));
    assert_eq!(reply.status, 200, "{}", reply.text());
    script.asked().remove(0)
}

fn limit(more: Value) -> ThinkingLimit {
    asked(RouterConfig::default(), more).thinking.unwrap()
}

/// A target that keeps to its budget: as many words of reasoning, the terminator, and then `content`.
fn keeps_budgets(content: Vec<u32>, reason: FinishReason) -> Script {
    Script::new(move |request| {
        let thinking = request.thinking.clone().unwrap();
        let word = TOKENIZER.encode(" hm", parsed())[0];
        let budget = thinking.budget.unwrap() as usize;
        let ids = [vec![word; budget], thinking.terminator, content.clone()].concat();
        let mut steps = opening(request);
        steps.extend(ids.into_iter().map(|id| token(request, id)));
        let timings = Timings::default();
        steps.push(Step::Event(GenerateEvent::Finished { reason, timings }));
        Ok(steps)
    })
}

#[test]
fn the_target_is_told_the_marks_and_the_budget() {
    let close = TOKENIZER.token_id("</think>").unwrap();
    let told = limit(json!({ "thinking": { "type": "enabled", "budget_tokens": 5 } }));
    assert_eq!((told.budget, told.starts_inside), (Some(5), true));
    assert_eq!(told.close_id, close);
    assert_eq!(told.open_id, TOKENIZER.token_id("<think>"));
    assert_eq!(told.terminator.iter().filter(|&&id| id == close).count(), 1);
    // The demo's card: 8192 tokens, and 256 for the answer.
    for (more, budget) in [
        (json!({}), None),
        (
            json!({ "chat_template_kwargs": { "enable_thinking": true } }),
            None,
        ),
        (json!({ "reasoning_effort": "low" }), Some(1024)),
        (json!({ "reasoning_effort": "medium" }), Some(4096)),
        (json!({ "reasoning_effort": "max" }), Some(8192)),
        (
            json!({ "reasoning_effort": "high", "max_tokens": 1000 }),
            Some(744),
        ),
        (
            json!({ "reasoning_effort": "high", "thinking_budget_tokens": 7 }),
            Some(7),
        ),
        (
            json!({ "thinking": { "budget_tokens": 100_000 } }),
            Some(8192),
        ),
    ] {
        assert_eq!(limit(more.clone()).budget, budget, "{more}");
    }
    let off = limit(json!({ "reasoning_effort": "none" }));
    assert_eq!((off.budget, off.starts_inside), (None, false));
}

#[test]
fn an_answer_is_as_long_as_the_request_the_configuration_and_the_card_say() {
    let config = |default_max_tokens| RouterConfig {
        lengths: LengthLimits {
            default_max_tokens,
            ..LengthLimits::default()
        },
        ..RouterConfig::default()
    };
    let length = |cap, more| asked(config(cap), more).max_tokens;
    assert_eq!(length(None, json!({})), 8192, "the card");
    assert_eq!(length(None, json!({ "max_tokens": 5000 })), 5000);
    assert_eq!(length(None, json!({ "reasoning_effort": "max" })), 8448);
    assert_eq!(length(Some(100), json!({})), 100);
    assert_eq!(length(Some(100), json!({ "max_tokens": 5000 })), 100);
    let script = Script::says(&TOKENIZER, "x").holding(8192);
    let server = Server::with(config(Some(100)), script);
    let envelope = server.get("/props").json()["budget_envelope"].take();
    assert_eq!(envelope["max_tokens_cap"], 100);
    assert_eq!(envelope["default_max_tokens"], 100);
}

#[test]
fn a_forced_close_is_told_in_both_shapes() {
    let content = TOKENIZER.encode("the answer", parsed());
    let said = content.len();
    let script = keeps_budgets(content, FinishReason::Stop);
    let server = Server::start(script.clone());
    let body = hello(json!({ "thinking": { "type": "enabled", "budget_tokens": 3 } }));
    let whole = server.post(CHAT, &body).json();
    let forced = script.asked()[0].thinking.clone().unwrap().terminator.len();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "the answer");
    let word = TOKENIZER.encode(" hm", parsed())[0];
    let word = String::from_utf8(TOKENIZER.token_bytes(word, false).unwrap().into_owned()).unwrap();
    assert_eq!(choice["message"]["reasoning_content"], word.repeat(3));
    let details = json!({
        "close_kind": "hard",
        "thinking_tokens": 3 + forced,
        "content_tokens": said,
        "total_tokens": 3 + forced + said,
        "degenerate_decode": false,
    });
    assert_eq!(choice["finish_details"], details);
    let reasoning = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert_eq!(*reasoning, json!(3 + forced));
    let streamed = server.post(
        CHAT,
        &hello(json!({
            "stream": true, "thinking": { "type": "enabled", "budget_tokens": 3 },
        })),
    );
    let (events, _) = streamed.events();
    let told = |event: &&Value| event["choices"][0].get("finish_details").is_some();
    let told: Vec<&Value> = events.iter().filter(told).collect();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["choices"][0]["finish_details"], details);
    server.wait_for_metric("tandem_reasoning_forced_closes_total 2");
    let tokens = format!("tandem_reasoning_tokens_total {}", 2 * (3 + forced));
    server.wait_for_metric(&tokens);
}

#[test]
fn other_ends_are_told_as_what_they_are() {
    let details = |script: Script, more| {
        let server = Server::start(script);
        let choice = server.post(CHAT, &hello(more)).json()["choices"][0].take();
        (
            choice["finish_reason"].clone(),
            choice["finish_details"].clone(),
        )
    };
    let budget = || json!({ "thinking_budget_tokens": 4 });
    let natural = || Script::says(&TOKENIZER, "hm</think>yes");
    let (_, told) = details(natural(), budget());
    assert_eq!(
        (&told["close_kind"], &told["degenerate_decode"]),
        (&json!("natural"), &json!(false))
    );
    // Who does not ask about reasoning hears nothing of it.
    assert_eq!(details(natural(), json!({})).1, Value::Null);
    let (_, told) = details(
        Script::says(&TOKENIZER, "hm"),
        json!({ "reasoning_effort": "low" }),
    );
    assert_eq!(told["close_kind"], Value::Null);
    let turn = TOKENIZER.encode(
        "one two three four five six seven eight nine ten eleven twelve",
        parsed(),
    );
    let looped = keeps_budgets(turn.repeat(4), FinishReason::Length);
    let (reason, told) = details(looped, budget());
    assert_eq!(reason, "length");
    assert_eq!(
        (&told["close_kind"], &told["degenerate_decode"]),
        (&json!("hard"), &json!(true))
    );
}

#[test]
fn what_a_request_leaves_open_is_the_servers_to_say() {
    let starts_inside = |thinking, more| {
        let config = RouterConfig {
            thinking,
            ..RouterConfig::default()
        };
        asked(config, more).thinking.unwrap().starts_inside
    };
    let quiet = || json!({});
    assert!(starts_inside(DefaultThinking::Template, quiet()));
    assert!(starts_inside(DefaultThinking::On, quiet()));
    assert!(!starts_inside(DefaultThinking::Off, quiet()));
    assert!(starts_inside(
        DefaultThinking::Off,
        json!({ "reasoning_effort": "low" })
    ));
    assert!(starts_inside(
        DefaultThinking::Off,
        json!({ "enable_thinking": true })
    ));
    assert!(!starts_inside(
        DefaultThinking::On,
        json!({ "thinking": { "type": "disabled" } })
    ));
}

#[test]
fn a_card_says_how_tokens_are_chosen_unless_somebody_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let card = json!({
        "name": "Demo Python target", "source": "file:test", "verified_at": "2026-11-22", "max_tokens": 300,
        "sampling": { "temperature": 0.75, "top_k": 20, "presence_penalty": 1.5 },
        "thinking_terminator_hint": "Enough.", "hard_limit_reply_budget": 256,
    });
    fs::write(
        folder.path().join("demo-python-target.json"),
        card.to_string(),
    )
    .unwrap();
    let config = || RouterConfig {
        model_cards: Some(folder.path().to_owned()),
        defaults: AnswerDefaults {
            top_k: Some(40),
            ..AnswerDefaults::default()
        },
        ..RouterConfig::default()
    };
    let request = asked(
        config(),
        json!({ "presence_penalty": 0.5, "thinking_budget_tokens": 9 }),
    );
    assert_eq!(request.sampling.temperature, 0.75);
    assert_eq!(request.sampling.top_k, 40);
    assert_eq!(request.sampling.presence_penalty, 0.5);
    assert_eq!(request.max_tokens, 300);
    let terminator = TOKENIZER.encode("Enough.</think>\n\n", parsed());
    assert_eq!(request.thinking.unwrap().terminator, terminator);
    let server = Server::with(config(), Script::says(&TOKENIZER, "x"));
    let props = server.get("/props").json();
    assert_eq!(props["model_card"]["sampling"]["top_k"], 20);
    assert_eq!(props["sampling"]["temperature"], 0.75);
    assert_eq!(props["reasoning"]["effort_tiers"]["medium"], 150);
    assert_eq!(props["reasoning"]["can_be_bounded"], true);
}
