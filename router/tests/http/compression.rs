//! Prompts that are made shorter, with the prefill worker played.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use api_types::CompressionMode;
use compression::{Keep, Rules};
use gguf::{Array, GgufFile, GgufWriter, Value as GgufValue};
use router::{CompressionConfig, Prefill, RouterConfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenizer::Tokenizer;
use worker_api::CompressError;

use crate::client::Reply;
use crate::prefill::{Play, PlayedWorker};
use crate::script::Script;
use crate::server::{MODEL, Server, TOKENIZER};

pub const CHAT: &str = "/v1/chat/completions";

/// Renders tools and calls; the demo's own does not.
const TEMPLATE: &str = include_str!("../../../crates/compression/tests/data/qwen35.jinja");

pub static TOKEN_LIST: LazyLock<[u8; 32]> = LazyLock::new(|| {
    let model = GgufFile::open(MODEL).unwrap();
    let tokens = model.metadata().str_array("tokenizer.ggml.tokens");
    tokens.unwrap().unwrap().sha256()
});

pub fn config(mode: CompressionMode) -> RouterConfig {
    RouterConfig {
        chat_template: Some(TEMPLATE.to_owned()),
        compression: CompressionConfig {
            mode,
            threshold: 2000,
            keep: Keep::Ratio(0.05),
            rules: Rules {
                hot_window: 2,
                message_tokens: 300,
            },
            timeout: Duration::from_secs(30),
        },
        ..RouterConfig::default()
    }
}

/// A router, the target behind it, and the worker beside it.
pub struct Set {
    pub server: Server,
    pub target: Script,
    pub worker: PlayedWorker,
    _dir: TempDir,
}

impl Set {
    pub fn new(config: RouterConfig) -> Self {
        let worker = PlayedWorker::new(Arc::clone(&TOKENIZER), *TOKEN_LIST);
        Self::with(config, worker, |worker, dir| worker.prefill(dir))
    }

    pub fn with(
        config: RouterConfig,
        worker: PlayedWorker,
        prefill: impl FnOnce(&PlayedWorker, &std::path::Path) -> Prefill,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = Script::says(&TOKENIZER, "</think>ok").holding(4096);
        let server = Server::compressing(config, target.clone(), || prefill(&worker, dir.path()));
        Self {
            server,
            target,
            worker,
            _dir: dir,
        }
    }

    /// Asks, and gives the prompt that the target got, as text, the tokens of it that the next turn has too, and the reply.
    pub fn prompt(&self, body: &Value) -> (String, String, Reply) {
        let reply = self.server.post(CHAT, body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let asked = self.target.asked();
        let asked = asked.last().unwrap();
        let text = TOKENIZER.decode(&asked.prompt, true);
        let history = &asked.prompt[..asked.history_tokens as usize];
        (text, TOKENIZER.decode(history, true), reply)
    }
}

pub fn off(mut body: Value) -> Value {
    body["prefill_compression"] = "off".into();
    body
}

pub fn chat(messages: &[Value]) -> Value {
    json!({ "messages": messages })
}

pub fn says(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// Lines of which one has the needle.
pub fn haystack(name: &str, lines: usize, needle: &str) -> String {
    let line = |n: usize| match n {
        n if n == lines / 2 => format!("The needle {needle} is here."),
        n => format!(
            "Line {n} of the {name} is about nothing, {} times über 中文.",
            n * 7
        ),
    };
    (0..lines).map(line).collect::<Vec<_>>().join("\n")
}

const QUESTION: &str = "What is the needle?\nAnswer in a word.";

fn document() -> Vec<Value> {
    let document = haystack("book", 250, "plover");
    vec![
        says("system", &haystack("rules", 20, "of the rules")),
        says("user", &format!("Read this.\n\n{document}\n\n{QUESTION}")),
    ]
}

#[test]
fn a_long_question_reaches_the_target_without_most_of_its_middle() {
    let set = Set::new(config(CompressionMode::Auto));
    let mut messages = document();
    // Longer than what the target can hold, which is looked at when the rest is cut.
    let whole = set.server.post(CHAT, &off(chat(&messages)));
    assert_eq!(whole.json()["error"]["code"], "context_length_exceeded");
    let original = whole.json()["error"]["n_prompt_tokens"].as_u64().unwrap();
    assert!(original > 4096 && set.worker.asked().is_empty());

    let (prompt, history, reply) = set.prompt(&chat(&messages));
    let system = messages[0]["content"].as_str().unwrap();
    assert!(prompt.starts_with(&format!(
        "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nRead this."
    )));
    assert!(prompt.contains("The needle plover is here."), "{prompt}");
    assert!(prompt.ends_with(&format!(
        "\n\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )));
    assert!(!prompt.contains("Line 100 of") && !prompt.contains('\u{fffd}'));
    let asked = set.worker.asked();
    assert_eq!((asked.len(), asked[0].keep_ratio), (1, 0.05));
    assert!(asked[0].text.ends_with("<think>\n"));
    assert_eq!(asked[0].protected.len(), 2);
    assert!(asked[0].protected[1].contains(QUESTION));

    let kept = set.target.asked()[0].prompt.len();
    let usage = &reply.json()["usage"];
    assert_eq!(usage["prompt_tokens"], kept);
    assert_eq!(usage["compression"]["scope"], "prompt");
    assert_eq!(usage["compression"]["original_tokens"], original);
    assert_eq!(usage["compression"]["kept_tokens"], kept);
    assert_eq!(
        reply.header("x-tandem-compression").unwrap(),
        format!("scope=prompt; original={original}; kept={kept}")
    );
    set.server
        .wait_for_metric("tandem_compressions_total{scope=\"prompt\"} 1");
    let line = format!("tandem_compression_tokens_out_total {kept}");
    set.server.wait_for_metric(&line);

    // Once more, and the next turn: nobody is asked, and the prompt begins as it did.
    assert_eq!(set.prompt(&chat(&messages)).0, prompt);
    messages.push(says("assistant", "Plover."));
    messages.push(says("user", "Sure?"));
    let (next, _, _) = set.prompt(&chat(&messages));
    assert!(next.starts_with(&history) && history.ends_with("word.<|im_end|>\n"));
    assert!(set.worker.asked().is_empty());
}

#[test]
fn a_request_says_whether_and_how_much() {
    let set = Set::new(config(CompressionMode::Off));
    let short = chat(&[says("user", &haystack("note", 60, "wren"))]);
    let with = |value: Value| {
        let mut body = short.clone();
        body["prefill_compression"] = value;
        let (prompt, _, reply) = set.prompt(&body);
        let is_cut = reply.header("x-tandem-compression").is_some();
        assert_eq!(is_cut, reply.json()["usage"].get("compression").is_some());
        assert_eq!(is_cut, !prompt.contains("Line 20 of"));
        let ratios: Vec<f64> = set.worker.asked().iter().map(|a| a.keep_ratio).collect();
        (is_cut, ratios)
    };
    assert_eq!(with(Value::Null), (false, vec![]));
    assert_eq!(with(json!("off")), (false, vec![]));
    // Shorter than the threshold.
    assert_eq!(with(json!("auto")), (false, vec![]));
    assert_eq!(with(json!("always")), (true, vec![0.05]));
    assert_eq!(with(json!({ "keep_ratio": 0.5 })), (false, vec![]));
    let half = json!({ "mode": "always", "keep_ratio": 0.5 });
    assert_eq!(with(half), (true, vec![0.5]));
    let tiny = json!({ "messages": [says("user", "hello")], "prefill_compression": "always" });
    assert!(set.prompt(&tiny).2.header("x-tandem-compression").is_none());
    set.server
        .wait_for_metric("tandem_compressions_skipped_total{reason=\"short\"} 1");
    set.server
        .wait_for_metric("tandem_compressions_skipped_total{reason=\"protected\"} 1");
}

fn tools() -> Value {
    let path = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    let description = haystack("manual", 20, "of the manual");
    json!([{ "type": "function", "function": { "name": "read", "description": description, "parameters": path } }])
}

/// A round of an agent: it reads a file.
fn round(n: usize) -> [Value; 2] {
    let arguments = json!({ "path": format!("file-{n}") }).to_string();
    let call = json!({ "id": format!("c{n}"), "type": "function", "function": { "name": "read", "arguments": arguments } });
    let content = haystack(&format!("file {n}"), 30, &format!("number {n}"));
    [
        json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": format!("c{n}"), "content": content }),
    ]
}

#[test]
fn an_agents_old_results_are_cut_once_and_its_prompts_keep_their_beginning() {
    let set = Set::new(config(CompressionMode::Always));
    let ask = |messages: &[Value]| json!({ "messages": messages, "tools": tools() });
    let mut messages = vec![
        says("system", &haystack("rules", 20, "of the rules")),
        says("user", "Find the numbers."),
    ];
    let mut history = String::new();
    for n in 0..6 {
        messages.extend(round(n));
        let (prompt, next_history, _) = set.prompt(&ask(&messages));
        assert!(prompt.starts_with(&history), "{n}");
        history = next_history;
        // Each is cut when it is no longer the last.
        let expected = n.checked_sub(1);
        let asked = set.worker.asked();
        let files: Vec<&str> = asked.iter().map(|asked| asked.text.as_str()).collect();
        let results: Vec<String> = expected
            .iter()
            .map(|n| haystack(&format!("file {n}"), 30, &format!("number {n}")))
            .collect();
        assert_eq!(files, results, "{n}");
        let whole = off(ask(&messages));
        let between = |text: &str| {
            let (from, to) = (
                text.find("<tools>").unwrap(),
                text.find("</tools>").unwrap(),
            );
            text[from..to].to_owned()
        };
        let cut = set.prompt(&ask(&messages)).0;
        assert_eq!(cut, prompt, "{n}");
        if n < 2 {
            let uncut = set.prompt(&whole).0;
            assert_eq!(between(&uncut), between(&prompt));
            for mark in [
                "<|im_start|>",
                "<|im_end|>",
                "<tool_call>",
                "<tool_response>",
                "file-",
            ] {
                assert_eq!(
                    uncut.matches(mark).count(),
                    prompt.matches(mark).count(),
                    "{mark}"
                );
            }
        }
        for file in 0..=n {
            let needle = format!("The needle number {file} is here.");
            assert!(prompt.contains(&needle), "{n} {file}");
        }
        let last = messages.last().unwrap()["content"].as_str().unwrap();
        assert!(prompt.contains(last));
    }
    set.server
        .wait_for_metric("tandem_compressions_total{scope=\"messages\"} 10");
}

#[test]
fn without_the_workers_help_prompts_are_whole() {
    let mut config = config(CompressionMode::Auto);
    config.compression.timeout = Duration::from_millis(300);
    let set = Set::new(config);
    let body = chat(&[says("user", &haystack("book", 90, "plover"))]);
    let whole = set.prompt(&off(body.clone())).0;
    let skipped = |reason: &str| {
        let line = format!("tandem_compressions_skipped_total{{reason=\"{reason}\"}} 1");
        set.server.wait_for_metric(&line);
    };
    let gone = || Play::Refuse(CompressError::ShuttingDown);
    for (play, reason) in [
        (Play::Refuse(CompressError::QueueFull { limit: 2 }), "busy"),
        (Play::Hang, "timeout"),
        (Play::BreakOff, "failed"),
        (Play::Crowded(Arc::default()), "no_room"),
        (gone(), "absent"),
    ] {
        // One that has failed is not asked again at once.
        while set.server.get("/props").json()["compression"]["trouble"].is_string() {
            set.worker.set(Play::Answer);
            let other = haystack(&format!("book before {reason}"), 90, "wren");
            set.server.post(CHAT, &chat(&[says("user", &other)]));
        }
        set.worker.set(play);
        let (prompt, _, reply) = set.prompt(&body);
        assert_eq!(prompt, whole, "{reason}");
        assert!(reply.json()["usage"].get("compression").is_none());
        if reason != "absent" {
            skipped(reason);
        }
    }
    let trouble = set.server.get("/props").json()["compression"]["trouble"].take();
    assert!(
        trouble.as_str().unwrap().contains("shutting down"),
        "{trouble}"
    );
}

#[test]
fn a_worker_that_never_was_is_missed_by_nobody() {
    let worker = PlayedWorker::new(Arc::clone(&TOKENIZER), *TOKEN_LIST);
    let set = Set::with(config(CompressionMode::Always), worker, |_, dir| {
        let endpoint = service::Endpoint::Unix(dir.join("nobody.sock"));
        let client = worker_api::PrefillClient::new(&endpoint).unwrap();
        Prefill::new(client, &GgufFile::open(MODEL).unwrap()).unwrap()
    });
    let body = chat(&[says("user", &haystack("book", 90, "plover"))]);
    let whole = set.prompt(&off(body.clone())).0;
    assert_eq!(set.prompt(&body).0, whole);
    set.server
        .wait_for_metric("tandem_compressions_skipped_total{reason=\"absent\"} 1");
}

/// A vocabulary of single bytes.
fn bytes_only() -> GgufFile {
    let mut filler = 0x100u32;
    let spelled = (0..=255u8).map(|byte| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from(byte).to_string(),
        _ => {
            filler += 1;
            char::from_u32(filler - 1).unwrap().to_string()
        }
    });
    let tokens: Vec<String> = spelled.collect();
    let mut writer = GgufWriter::new();
    writer.set("tokenizer.ggml.model", GgufValue::String("gpt2".into()));
    writer.set("tokenizer.ggml.pre", GgufValue::String("qwen2".into()));
    let array = Array::String(tokens.iter().collect());
    writer.set("tokenizer.ggml.tokens", GgufValue::Array(array));
    let merges = Array::String(std::iter::empty::<&str>().collect());
    writer.set("tokenizer.ggml.merges", GgufValue::Array(merges));
    let bytes = writer.to_bytes().unwrap();
    GgufFile::from_bytes("drafter.gguf", bytes).unwrap()
}

#[test]
fn a_drafter_of_other_words_is_spoken_to_in_its_own() {
    let file = bytes_only();
    let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata()).unwrap());
    let tokens = file.metadata().str_array("tokenizer.ggml.tokens");
    let list = tokens.unwrap().unwrap().sha256();
    let body = chat(&[says("user", &haystack("book", 90, "plövér中"))]);
    let known = Set::with(
        config(CompressionMode::Auto),
        PlayedWorker::new(Arc::clone(&tokenizer), list),
        |worker, dir| Prefill::new(worker.serve(dir), &file).unwrap(),
    );
    let (prompt, _, _) = known.prompt(&body);
    assert_eq!(known.worker.asked().len(), 1);
    assert!(prompt.contains("needle plövér中 is"), "{prompt}");
    assert!(!prompt.contains("Line 20 of") && !prompt.contains('\u{fffd}'));

    let unknown = Set::with(
        config(CompressionMode::Auto),
        PlayedWorker::new(tokenizer, list),
        |worker, dir| worker.prefill(dir),
    );
    assert!(unknown.prompt(&body).0.contains("Line 20 of"));
    unknown
        .server
        .wait_for_metric("tandem_compressions_skipped_total{reason=\"vocabulary\"} 1");
}

#[test]
fn a_request_is_told_what_the_model_saw_where_it_asks() {
    let set = Set::new(config(CompressionMode::Auto));
    let mut body = chat(&document());
    body["prefill_compression"] = json!({ "mode": "always", "return_prompt": true });
    let (prompt, _, reply) = set.prompt(&body);
    assert_eq!(reply.json()["usage"]["compression"]["prompt"], prompt);
    let (_, _, reply) = set.prompt(&chat(&document()));
    let report = &reply.json()["usage"]["compression"];
    assert!(report.is_object() && report.get("prompt").is_none());
}
