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

/// A series of `/metrics`, where it is there.
fn metric(client: &Client, name: &str) -> Option<f64> {
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name).map(str::to_owned));
    value.and_then(|value| value.trim().parse().ok())
}

/// How often the target moved.
fn target_moved(client: &Client, how: &str) -> f64 {
    let name = format!("tandem_target_moves_total{{move=\"{how}\"}}");
    metric(client, &name).unwrap_or(0.0)
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
    let moved = |how: &str| {
        metric(
            &client,
            &format!("tandem_draft_moves_total{{move=\"{how}\"}}"),
        )
    };
    wait_until("the draft is back", || moved("unparked") >= Some(1.0));
    assert!(moved("parked") >= Some(1.0));
    assert!(set.stop().success());
}

#[test]
fn the_target_leaves_its_device_while_a_prompt_is_scored_and_answers_go_on_as_they_were() {
    let set = Set::start(&[
        "--prefill-compression",
        "always",
        "--prefill-threads",
        "1",
        "--target-residency",
        "request-scoped",
        "--lazy-draft",
    ]);
    let client = set.client();
    let story = json!({ "prompt": "def count(n):", "max_tokens": 400, "temperature": 0, "min_tokens": 400 });
    let tell =
        |client: &Client| client.post("/v1/completions", &story).ok()["choices"][0]["text"].take();
    let want = tell(&client);
    assert_eq!(target_moved(&client, "parked"), 0.0);
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| tell(&set.client()));
        // Questions one after another, until one of them was cut and its answer has come.
        let mut number = 0;
        wait_for("a prompt that is cut", || {
            number += 1;
            let messages = [question(&format!("marbles of kind {number}"))];
            let usage = ask(&client, &messages, "always");
            usage.get("compression").map(|_| ())
        });
        told.join().unwrap()
    });
    assert_eq!(told, want);
    wait_until("all are back", || {
        target_moved(&client, "unparked") >= 1.0
            && target_moved(&client, "unparked") == target_moved(&client, "parked")
    });
    let seconds = metric(&client, "tandem_target_move_seconds{move=\"unparked\"}");
    assert!(seconds > Some(0.0), "{seconds:?}");
    assert_eq!(tell(&client), want);
    assert!(set.stop().success());
}

#[test]
fn the_target_leaves_when_the_prefill_worker_finds_no_room_and_comes_back_though_that_was_in_vain()
{
    // Room for its weights, and for no prompt.
    let set = Set::start(&[
        "--prefill-compression",
        "always",
        "--prefill-threads",
        "1",
        "--prefill-device-memory",
        "0.0175",
    ]);
    let client = set.client();
    let messages = [question("marbles")];
    let tokens = |compression: &str| ask(&client, &messages, compression)["prompt_tokens"].take();
    let whole = tokens("off");
    wait_for("a prompt that finds no room", || {
        assert_eq!(tokens("always"), whole);
        metric(
            &client,
            "tandem_compressions_skipped_total{reason=\"no_room\"}",
        )
        .filter(|skipped| *skipped > 0.0)
    });
    wait_until("the target is back", || {
        target_moved(&client, "unparked") == 1.0
    });
    assert_eq!(target_moved(&client, "parked"), 1.0);
    assert_eq!(tokens("off"), whole);
    assert!(set.stop().success());
}
