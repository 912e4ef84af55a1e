//! Answers that have to match a grammar: where they end, what they are spared, and that drafts change nothing of them.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::in_process::{InProcess, demo};
use common::matching::{VOCABULARY, generate, text};
use common::scripted::{Behaviour, Scripted};
use common::{Answer, CONFIG, FIBONACCI, IM_END, Stand, collect, request, start};
use engine::EngineConfig;
use generation::{
    FinishReason, GenerateError, GenerateRequest, Grammar, SpeculationConfig, SpeculationMode,
    ThinkingLimit, Token,
};
use grammar::Grammars;
use sampling::SamplingParams;
use serde_json::Value;
use vocabulary::{TokenType, Vocabulary};

const THINK_END: u32 = 8190;
const MASK: u32 = 8191;

const TREE: SpeculationConfig = SpeculationConfig {
    mode: SpeculationMode::Tree,
    budget: 64,
};

fn within_grammar(grammar: Grammar, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        stop_ids: vec![IM_END],
        grammar: Some(grammar),
        ..request(&FIBONACCI, max_tokens)
    }
}

fn regex(text: &str) -> Grammar {
    Grammar::Regex(text.to_owned())
}

async fn answer(stand: &Stand, request: &GenerateRequest) -> Answer {
    collect(generate(&stand.handle, request).unwrap()).await
}

/// Text of an answer without the token that ended it, and whether one did.
fn said(answer: &Answer) -> (String, bool) {
    let mut ids = answer.ids();
    let has_stop = ids.last() == Some(&IM_END);
    ids.truncate(ids.len() - usize::from(has_stop));
    (text(&ids), has_stop)
}

#[tokio::test]
async fn an_answer_ends_where_its_grammar_does() {
    let stand = start(CONFIG);
    // Nothing can follow: no token is spent on saying so.
    let fixed = answer(&stand, &within_grammar(regex("ab{3}c"), 50)).await;
    assert_eq!(said(&fixed), ("abbbc".to_owned(), false));
    assert_eq!(fixed.reason(), FinishReason::Stop);
    // Where more can follow the model says when to stop.
    let open = GenerateRequest {
        sampling: SamplingParams {
            logit_bias: vec![(IM_END, 100.0)],
            ..SamplingParams::default()
        },
        ..within_grammar(regex("[a-z]{3,}"), 50)
    };
    let (text, has_stop) = said(&answer(&stand, &open).await);
    assert!(has_stop && text.len() >= 3, "{text}");
    // As long as it may not stop, it does not, whatever it would like.
    let long = GenerateRequest {
        min_tokens: 20,
        ..open.clone()
    };
    let answer_of_20 = answer(&stand, &long).await;
    assert_eq!(answer_of_20.tokens.len(), 21);
    // Unless there is nothing else.
    let short = GenerateRequest {
        min_tokens: 20,
        ..within_grammar(regex("abc"), 50)
    };
    let ended = answer(&stand, &short).await;
    assert_eq!(
        (said(&ended).0.as_str(), ended.reason()),
        ("abc", FinishReason::Stop)
    );
    // Nor does it need a token to stop with.
    let endless = GenerateRequest {
        stop_ids: Vec::new(),
        ..within_grammar(regex("abc"), 50)
    };
    let ended = answer(&stand, &endless).await;
    assert_eq!(
        (said(&ended).0.as_str(), ended.reason()),
        ("abc", FinishReason::Stop)
    );
    // Too short for what has to be said.
    let cut = answer(&stand, &within_grammar(regex("[0-9]{100}"), 5)).await;
    assert_eq!((cut.tokens.len(), cut.reason()), (5, FinishReason::Length));
    let nothing = answer(
        &stand,
        &within_grammar(Grammar::Lark("start: \"\"".to_owned()), 5),
    )
    .await;
    assert_eq!(
        (nothing.tokens.len(), nothing.reason()),
        (0, FinishReason::Stop)
    );
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_model_and_not_of_what_is_left() {
    let stand = start(CONFIG);
    let request = GenerateRequest {
        logprobs: true,
        top_logprobs: 2,
        ..within_grammar(regex("Q[0-9]"), 5)
    };
    let answer = answer(&stand, &request).await;
    let first = &answer.tokens[0];
    assert_eq!(text(&[first.id]), "Q");
    assert!(
        first.logprob < -1.0 && first.top[0].logprob > first.logprob,
        "{first:?}"
    );
    assert_ne!(first.top[0].id, first.id);
}

#[tokio::test]
async fn a_grammar_begins_behind_the_reasoning() {
    let thinking = |budget| ThinkingLimit {
        budget,
        starts_inside: true,
        close_id: THINK_END,
        terminator: vec![198, THINK_END, 198, 198],
        ..ThinkingLimit::default()
    };
    assert_eq!(VOCABULARY.text(THINK_END), Some("</think>"));
    let object = r#"{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}"#;
    // The budget closes it, or the model does, at once; or the model would end the answer there.
    for (budget, likely) in [
        (Some(0), (THINK_END, -100.0)),
        (Some(7), (THINK_END, -100.0)),
        (None, (THINK_END, 100.0)),
        (None, (IM_END, 100.0)),
    ] {
        let request = GenerateRequest {
            thinking: Some(thinking(budget)),
            sampling: SamplingParams {
                logit_bias: vec![likely],
                ..SamplingParams::default()
            },
            ..within_grammar(Grammar::JsonSchema(object.to_owned()), 60)
        };
        let mut answers = Vec::new();
        for speculation in [SpeculationConfig::OFF, TREE] {
            let config = EngineConfig {
                speculation,
                verify_lossless: true,
                ..CONFIG
            };
            let stand = start(config);
            let draft = InProcess::open(&demo("demo-draft.gguf"), &demo("demo-target.gguf"), 8);
            let lease = (speculation == TREE).then(|| stand.handle.set_drafter(Box::new(draft)));
            let answer = answer(&stand, &request).await;
            assert_eq!(answer.reason(), FinishReason::Stop);
            let ids = answer.ids();
            let closed = ids.iter().position(|&id| id == THINK_END).unwrap();
            let forced = if budget.is_some() { 2 } else { 0 };
            let content = text(&ids[closed + 1 + forced..]);
            let value: Value = serde_json::from_str(&content).unwrap();
            assert!(value["a"].is_boolean(), "{content}");
            let stats = stand.handle.stats().speculation;
            assert_eq!(stats.mismatched_tokens, 0);
            assert!(stats.checked_tokens > 0);
            answers.push(ids);
            drop(lease);
        }
        assert_eq!(answers[0], answers[1]);
    }
}

#[tokio::test]
async fn a_grammar_that_nobody_has_read_is_refused() {
    let stand = start(CONFIG);
    let refused = stand.handle.generate(within_grammar(regex("a"), 5));
    assert!(matches!(refused.unwrap_err(), GenerateError::Grammar(_)));
}

/// Grammars of all kinds; some leave much to choose, some nothing.
fn grammars() -> Vec<Grammar> {
    let schema = |text: &str| Grammar::JsonSchema(text.to_owned());
    vec![
        schema(r#"{"type": "object"}"#),
        schema(r#"{"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 6}"#),
        schema(
            r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "code": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name", "code", "n"], "additionalProperties": false}"#,
        ),
        regex(r"(?s:def [a-z_]{1,20}\([a-z, ]{0,20}\):\n.*)"),
        regex(r"[ -~\n]*"),
        regex(r"([a-z]+ ){5,10}\."),
        Grammar::Lark("start: (line \"\\n\")+\nline: /[a-z]+/ \" = \" /[0-9]+/".to_owned()),
    ]
}

fn prompts() -> Vec<Vec<u32>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/acceptance.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let ids = |prompt: &Value| -> Vec<u32> {
        let ids = prompt["prompt_ids"].as_array().unwrap();
        ids.iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    golden["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .map(ids)
        .collect()
}

/// Requests of every kind under every grammar.
fn requests() -> Vec<GenerateRequest> {
    let prompts = prompts();
    let mut requests = Vec::new();
    for (place, grammar) in grammars().into_iter().enumerate() {
        for kind in 0..4 {
            let prompt = &prompts[(place * 4 + kind) * 2 % prompts.len()];
            let sampled = SamplingParams {
                temperature: 0.8,
                top_p: 0.95,
                top_k: 40,
                min_p: 0.02,
                repetition_penalty: 1.05,
                presence_penalty: 0.1,
                frequency_penalty: 0.1,
                repetition_window: 64,
                logit_bias: vec![(10, 0.5), (20, -2.0)],
                seed: (place * 4 + kind) as u64,
            };
            requests.push(GenerateRequest {
                min_tokens: if kind == 3 { 24 } else { 0 },
                logprobs: true,
                stop_ids: vec![IM_END],
                sampling: if kind < 2 {
                    SamplingParams::default()
                } else {
                    sampled
                },
                grammar: Some(grammar.clone()),
                ..request(prompt, 64)
            });
        }
    }
    requests
}

async fn answers(
    requests: &[GenerateRequest],
    speculation: SpeculationConfig,
) -> (Vec<(Vec<Token>, FinishReason)>, f64) {
    let config = EngineConfig {
        max_sequences: 8,
        queue_len: requests.len(),
        context_length: 512,
        prefill_chunk_tokens: 128,
        speculation,
        ..CONFIG
    };
    let stand = start(config);
    let draft = InProcess::open(&demo("demo-draft.gguf"), &demo("demo-target.gguf"), 16);
    let is_drafted = speculation.mode != SpeculationMode::Off;
    let lease = is_drafted.then(|| stand.handle.set_drafter(Box::new(draft)));
    let streams: Vec<_> = requests
        .iter()
        .map(|request| generate(&stand.handle, request).unwrap())
        .collect();
    let mut answers = Vec::new();
    for stream in streams {
        let answer = collect(stream).await;
        let (reason, _) = answer.end.unwrap();
        answers.push((answer.tokens, reason));
    }
    let stats = stand.handle.stats().speculation;
    drop(lease);
    assert_eq!(is_drafted, stats.rounds > 0);
    let per_round = 1.0 + stats.accepted_tokens as f64 / stats.rounds.max(1) as f64;
    (answers, per_round)
}

#[tokio::test]
async fn drafts_change_nothing_of_an_answer_under_a_grammar() {
    let requests = requests();
    let (plain, _) = answers(&requests, SpeculationConfig::OFF).await;
    for (mode, budget) in [
        (SpeculationMode::Chain, 0),
        (SpeculationMode::Tree, 4),
        (SpeculationMode::Tree, 22),
        (SpeculationMode::Tree, 64),
    ] {
        let (drafted, per_round) = answers(&requests, SpeculationConfig { mode, budget }).await;
        for (place, (a, b)) in plain.iter().zip(&drafted).enumerate() {
            assert_eq!(a, b, "{mode:?} {budget}, {:?}", requests[place].grammar);
        }
        let mode = mode.name();
        println!("{mode} {budget}: {per_round:.2} tokens a round");
        assert!(
            per_round > 1.2,
            "{mode} {budget}: {per_round:.2} tokens a round"
        );
    }
}

#[tokio::test]
async fn plain_decoding_beside_it_agrees_with_what_a_grammar_left() {
    let config = EngineConfig {
        queue_len: 100,
        speculation: TREE,
        verify_lossless: true,
        ..CONFIG
    };
    let stand = start(config);
    let draft = InProcess::open(&demo("demo-draft.gguf"), &demo("demo-target.gguf"), 16);
    let _lease = stand.handle.set_drafter(Box::new(draft));
    let fits = |request: &&GenerateRequest| request.prompt.len() < 120;
    let requests = requests();
    let streams: Vec<_> = requests
        .iter()
        .filter(fits)
        .take(8)
        .map(|request| generate(&stand.handle, request).unwrap())
        .collect();
    assert_eq!(streams.len(), 8);
    for stream in streams {
        collect(stream).await.end.unwrap();
    }
    let stats = stand.handle.stats().speculation;
    assert!(
        stats.checked_tokens > 100 && stats.accepted_tokens > 0,
        "{stats:?}"
    );
    assert_eq!(stats.mismatched_tokens, 0);
}

/// A draft that knows the answer and says much else: what the grammar forbids takes no rows.
#[tokio::test]
async fn what_a_grammar_forbids_is_not_verified() {
    let request = GenerateRequest {
        speculation: Some(TREE),
        ..within_grammar(regex("([a-z]{1,8} ){40}"), 60)
    };
    let plain = start(CONFIG);
    let expected = answer(&plain, &request).await;
    let whole = [FIBONACCI.to_vec(), expected.ids()].concat();
    let stand = start(EngineConfig {
        speculation: TREE,
        ..CONFIG
    });
    let (draft, _) = Scripted::new(Behaviour::Answers { right: 10 }, vec![whole]);
    let _lease = stand.handle.set_drafter(Box::new(draft));
    let drafted = answer(&stand, &request).await;
    assert_eq!(drafted.ids(), expected.ids());
    let stats = stand.handle.stats().speculation;
    let per_round = 1.0 + stats.accepted_tokens as f64 / stats.rounds as f64;
    // Of the draft's other tokens most have letters that the grammar has not, or no space where one must be.
    assert!(per_round > 2.0, "{per_round:.2} tokens a round");
}

#[tokio::test]
async fn a_token_that_ends_answers_may_be_named_by_a_grammar() {
    let stand = start(CONFIG);
    let grammar = Grammar::Lark("start: \"a\" <|mask|> \"b\"\n".to_owned());
    let request = GenerateRequest {
        stop_ids: vec![MASK],
        ..within_grammar(grammar, 20)
    };
    let ended = answer(&stand, &request).await;
    assert_eq!(ended.ids().last(), Some(&MASK));
    assert_eq!(ended.reason(), FinishReason::Stop);
}

#[tokio::test]
async fn an_answer_that_cannot_go_on_ends_with_an_error() {
    let stand = start(CONFIG);
    // A vocabulary that has nothing but an "a".
    let mut types = vec![TokenType::Unused; VOCABULARY.num_tokens()];
    types[64] = TokenType::Normal;
    let mut texts = VOCABULARY.texts().to_vec();
    texts[64] = "a".to_owned();
    let poor = Vocabulary::new("gpt2", texts, types).unwrap();
    let grammars = Grammars::new(&poor, VOCABULARY.num_tokens()).unwrap();
    let request = within_grammar(regex("ab"), 20);
    let matcher = grammars.compile(request.grammar.as_ref().unwrap()).unwrap();
    let stream = stand.handle.generate_within(request, matcher).unwrap();
    let answer = collect(stream).await;
    assert_eq!(answer.ids(), [64]);
    let Err(GenerateError::GrammarStuck(words)) = answer.end else {
        panic!("{:?}", answer.end);
    };
    assert!(words.contains("no token"), "{words}");
    // The engine goes on.
    let next = answer_to_anything(&stand).await;
    assert_eq!(next.reason(), FinishReason::Length);
}

async fn answer_to_anything(stand: &Stand) -> Answer {
    stand.answer(&request(&FIBONACCI, 3)).await
}
