//! Turns of a chat go on from what is kept of the turns before, and say what they say without.

use serde_json::{Value, json};

use crate::http::Client;
use crate::set::Set;

/// What the model is told to be: longer than several steps of a prompt.
fn system(topic: &str) -> Value {
    let rules =
        (0..40).map(|rule| format!("Rule {rule}: functions about {topic} have short names.\n"));
    json!({"role": "system", "content": rules.collect::<String>()})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// An answer: its text, its prompt's tokens and those of them that were cached.
fn ask(client: &Client, messages: &[Value]) -> (String, u64, u64) {
    let body = json!({"messages": messages, "max_tokens": 40, "temperature": 0});
    let answer = client.post("/v1/chat/completions", &body).ok();
    let message = &answer["choices"][0]["message"];
    let text = ["reasoning_content", "content"].map(|key| message[key].as_str().unwrap_or(""));
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(answer["timings"]["cache_n"].as_u64(), cached);
    let prompt_tokens = usage["prompt_tokens"].as_u64().unwrap();
    (text.concat(), prompt_tokens, cached.unwrap())
}

/// Three chats with the same beginning in turns, and another one. What is said, and cached of how many tokens.
fn chats(client: &Client) -> (Vec<String>, Vec<(u64, u64)>) {
    let mut chats = [
        vec![system("lists"), user("Write a function that sums a list.")],
        vec![system("lists"), user("Write a function that sorts a list.")],
        vec![
            system("lists"),
            user("Write a function that reverses a list."),
        ],
        vec![system("files"), user("Write a function that reads a file.")],
    ];
    let (mut texts, mut tokens) = (Vec::new(), Vec::new());
    for next in ["Now with a test.", "Now without."] {
        for chat in &mut chats {
            let (text, prompt_tokens, cached) = ask(client, chat);
            chat.push(json!({"role": "assistant", "content": text.clone()}));
            chat.push(user(next));
            texts.push(text);
            tokens.push((cached, prompt_tokens));
        }
    }
    (texts, tokens)
}

#[test]
fn the_next_turn_of_a_chat_goes_on_from_the_last_one_and_says_the_same() {
    let cold = Set::start(&["--prefix-cache-slots", "0", "--speculation", "off"]);
    let (expected, tokens) = chats(&cold.client());
    assert!(tokens.iter().all(|(cached, _)| *cached == 0), "{tokens:?}");
    assert_eq!(
        cold.client().metric("tandem_prefix_cache_prefixes", &[]),
        0.0
    );
    assert!(cold.stop().success());
    for flags in [
        &["--speculation", "tree"][..],
        &["--target-devices", "cpu,cpu,cpu", "--speculation", "tree"],
        &["--prefix-cache-mib", "0", "--speculation", "off"],
    ] {
        let set = Set::start(flags);
        let client = set.client();
        if flags.contains(&"tree") {
            client.wait_until_attached();
        }
        let (texts, tokens) = chats(&client);
        assert_eq!(texts, expected, "{flags:?}");
        let metric = |name: &str| client.metric(&format!("tandem_prefix_cache_{name}"), &[]);
        if flags.contains(&"--prefix-cache-mib") {
            // There is room for no state.
            assert!(tokens.iter().all(|(cached, _)| *cached == 0), "{tokens:?}");
            assert_eq!(metric("prefixes"), 0.0);
        } else {
            let rest: Vec<u64> = tokens.iter().map(|(cached, all)| all - cached).collect();
            // The second chat shows where it parts from the first one, and the third goes on from there.
            let first = [0, 1, 3].map(|place| tokens[place].0);
            assert_eq!(first, [0; 3], "{tokens:?}");
            assert!(rest[2] < 200, "{tokens:?}");
            // In the next turn what came after the history is new.
            assert!(rest[4..].iter().all(|rest| *rest < 80), "{tokens:?}");
            let cached: u64 = tokens.iter().map(|(cached, _)| cached).sum();
            assert_eq!(
                (metric("hits"), metric("reused_tokens")),
                (5.0, cached as f64)
            );
            assert!(metric("prefixes") > 8.0 && metric("bytes") > 0.0);
            assert_eq!(metric("evictions"), 0.0);
            let total = client.metric("tandem_prompt_tokens_cached_total", &[]);
            assert_eq!(total, cached as f64);
        }
        assert!(set.stop().success());
    }
}

#[test]
fn after_a_restart_a_chat_goes_on_from_files_and_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    let start = |more: &[&str]| {
        let own = ["--kv-cache-dir", dir.to_str().unwrap()];
        let short = ["--kv-cache-min-tokens", "64"];
        Set::start(&[&own[..], &short, more].concat())
    };
    let mut chat = vec![system("lists"), user("Write a function that sums a list.")];
    let first = start(&["--speculation", "tree"]);
    first.client().wait_until_attached();
    let (text, _, cached) = ask(&first.client(), &chat);
    assert_eq!(cached, 0);
    assert!(first.stop().success());
    chat.push(json!({"role": "assistant", "content": text}));
    chat.push(user("Now with a test."));
    let cold = Set::start(&["--speculation", "off"]);
    let (expected, prompt_tokens, _) = ask(&cold.client(), &chat);
    assert!(cold.stop().success());
    let again = start(&["--speculation", "tree"]);
    let client = again.client();
    client.wait_until_attached();
    let (text, _, cached) = ask(&client, &chat);
    assert_eq!(text, expected);
    assert!(prompt_tokens - cached < 80, "{cached} of {prompt_tokens}");
    let metric = |name: &str| client.metric(&format!("tandem_disk_cache_{name}"), &[]);
    assert_eq!((metric("hits"), metric("loaded")), (1.0, 1.0));
    assert!(metric("prefixes") > 0.0 && metric("bytes") > 0.0);
    let damaged = client.metric("tandem_disk_cache_refused", &["damaged"]);
    assert_eq!(damaged, 0.0);
    assert!(again.stop().success());
    // A split target has none, and says so.
    let split = start(&["--target-devices", "cpu,cpu", "--speculation", "off"]);
    let (text, _, cached) = ask(&split.client(), &chat);
    assert_eq!((text, cached), (expected, 0));
    assert!(split.stop().success());
}
