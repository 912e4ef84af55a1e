//! What requests are answered.

use serde_json::{Value, json};

use crate::http::{Event, completion};
use crate::processes::{run, tandem};
use crate::set::Set;

const PROMPTS: [&str; 3] = ["def fibonacci(n):\n", "import os\n\n", "class Stack:\n    "];
const MAX_TOKENS: u32 = 48;

#[test]
fn streamed_whole_and_offline_greedy_answers_are_the_same() {
    let set = Set::start(&[]);
    let client = set.client();
    for prompt in PROMPTS {
        let (whole, generated) = client.complete(prompt, MAX_TOKENS);
        assert!(!whole.is_empty());
        let mut stream = client.stream("/v1/completions", &completion(prompt, MAX_TOKENS));
        assert_eq!(stream.rest(), (whole.clone(), Event::Done));
        assert_eq!(stream.next(), Event::End);

        let tokens = MAX_TOKENS.to_string();
        let args = [
            "run",
            "--json",
            "--threads",
            "1",
            "-n",
            &tokens,
            "-p",
            prompt,
        ];
        let offline = run(tandem(set.runtime_dir.path(), &args));
        let offline: Value = serde_json::from_str(&offline.stdout).expect("one JSON object");
        assert_eq!(offline["text"], whole, "{prompt}");
        assert_eq!(offline["timings"]["predicted_n"], generated, "{prompt}");
    }

    let chat = json!({
        "messages": [{"role": "user", "content": "Write a function that reverses a string."}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    });
    let message = client.post("/v1/chat/completions", &chat).ok()["choices"][0]["message"].take();
    let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    let whole = text("reasoning_content") + &text("content");
    assert!(!whole.is_empty());
    let mut stream = client.stream("/v1/chat/completions", &chat);
    assert_eq!(stream.rest(), (whole, Event::Done));
    assert!(set.stop().success());
}
