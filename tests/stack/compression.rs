//! Long prompts, made shorter by the demo's drafter.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::http::Client;
use crate::processes::{is_running, send, wait_for, wait_until};
use crate::set::Set;

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// A question about a document, which stands in the middle of it.
fn question(topic: &str) -> Value {
    let line = |n: usize| {
        format!(
            "{n}. The {topic} of drawer {n} are counted on day {}.",
            n * 13 % 31
        )
    };
    let document = (0..90).map(line).collect::<Vec<_>>().join("\n");
    message(
        "user",
        &format!("Read this.\n\n{document}\n\nHow many {topic} are there?"),
    )
}

/// The usage of an answer.
fn ask(client: &Client, messages: &[Value], compression: &str) -> Value {
    let body = json!({
        "messages": messages, "max_tokens": 8, "temperature": 0, "prefill_compression": compression,
    });
    client.post("/v1/chat/completions", &body).ok()["usage"].take()
}

#[test]
fn a_long_question_is_cut_and_the_next_turn_goes_on_from_what_is_left() {
    let set = Set::start(&["--prefill-compression", "always", "--prefill-threads", "1"]);
    let client = set.client();
    let mut messages = vec![message("system", "Be brief."), question("marbles")];
    let whole = ask(&client, &messages, "off");
    assert!(whole.get("compression").is_none());
    // The worker is not waited for, neither by the set nor by a request.
    let cut = wait_for("the prefill worker", || {
        let usage = ask(&client, &messages, "always");
        usage.get("compression").is_some().then_some(usage)
    });
    let (original, kept) = (
        cut["compression"]["original_tokens"].as_u64().unwrap(),
        cut["compression"]["kept_tokens"].as_u64().unwrap(),
    );
    assert_eq!(whole["prompt_tokens"], original);
    assert_eq!(cut["prompt_tokens"], kept);
    assert!(kept * 2 < original, "{kept} of {original}");

    messages.push(message("assistant", "Many."));
    messages.push(message("user", "Are you sure?"));
    let next = ask(&client, &messages, "always");
    assert_eq!(next["compression"]["scope"], "messages");
    let cached = next["prompt_tokens_details"]["cached_tokens"].as_u64();
    // All but the opening of the answer.
    assert!(cached.unwrap() + 8 >= kept, "{cached:?} of {kept}");

    let worker = set.pid("prefill-worker");
    send(worker, Signal::SIGKILL);
    wait_until("its end", || !is_running(worker));
    let other = [question("pebbles")];
    let alone = ask(&client, &other, "always");
    let again = ask(&client, &other, "off");
    if alone.get("compression").is_none() {
        assert_eq!(alone["prompt_tokens"], again["prompt_tokens"]);
    }
    wait_for("the prefill worker", || {
        let usage = ask(&client, &other, "always");
        usage.get("compression").is_some().then_some(usage)
    });
    assert!(set.stop().success());
}

#[test]
fn the_draft_leaves_its_device_while_a_prompt_is_scored_and_comes_back() {
    let set = Set::start(&[
        "--prefill-compression",
        "always",
        "--prefill-threads",
        "1",
        "--lazy-draft",
    ]);
    let client = set.client();
    let messages = [question("marbles")];
    wait_for("a prompt that is cut", || {
        let usage = ask(&client, &messages, "always");
        usage.get("compression").map(|_| ())
    });
    let metric = |name: &str| {
        let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix(name).map(str::to_owned));
        line.and_then(|value| value.trim().parse::<f64>().ok())
    };
    let moved = |how: &str| metric(&format!("tandem_draft_moves_total{{move=\"{how}\"}}"));
    wait_until("the draft is back", || moved("unparked") >= Some(1.0));
    assert!(moved("parked") >= Some(1.0));
    assert!(set.stop().success());
}
