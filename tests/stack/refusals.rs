//! Requests that are not answered.

use serde_json::json;

use crate::http::{Reply, completion, endless};
use crate::processes::wait_until;
use crate::set::Set;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const CONTEXT: &str = "256";

fn assert_refused(reply: &Reply, status: u16, part_of_message: &str) {
    let body = reply.json();
    assert_eq!(reply.status, status, "{body}");
    let error = &body["error"];
    assert!(error["type"].is_string(), "{body}");
    assert!(
        error.get("param").is_some() && error.get("code").is_some(),
        "{body}"
    );
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(part_of_message), "{message}");
}

#[test]
fn bad_requests_are_refused_one_by_one_and_the_next_good_one_is_answered() {
    let set = Set::start(&[
        "--ctx-size",
        CONTEXT,
        "--strict-model-names",
        "--max-body-bytes",
        "8388608",
    ]);
    let client = set.client();
    let before = client.complete("x = 1\n", 8);
    let bad_bytes: [(&[u8], &str); 6] = [
        (b"", "empty"),
        (b"{\"prompt\": \"a\"", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1, 2]", "a list"),
        (&[b'['; 100_000], "not valid JSON"),
        (
            b"{\"prompt\": \"a\", \"max_tokens\": 1e400}",
            "not valid JSON",
        ),
    ];
    for (body, message) in bad_bytes {
        let reply = client.post_bytes(COMPLETIONS, body.to_vec());
        assert_refused(&reply, 400, message);
    }
    let mut prompt = completion("a", 4);
    let fields = [
        ("prompt", json!(17), "prompt"),
        ("prompt", json!([]), "prompt"),
        ("prompt", json!([4_000_000_000_u32]), "4000000000"),
        ("prompt", json!([-1]), "prompt"),
        ("max_tokens", json!("many"), "max_tokens"),
        ("max_tokens", json!(-1), "max_tokens"),
        ("max_tokens", json!(1.5), "max_tokens"),
        ("temperature", json!(-0.5), "temperature"),
        ("temperature", json!(1e30), "temperature"),
        ("top_p", json!(0), "top_p"),
        ("n", json!(1_000_000), "`n`"),
        ("stream", json!("yes"), "stream"),
        ("seed", json!(1.5), "seed"),
        ("stop", json!([1]), "stop"),
        ("logit_bias", json!({"9999999": 1}), "9999999"),
        ("temprature", json!(1), "temprature"),
        ("model", json!("gpt-none"), "gpt-none"),
    ];
    for (name, value, message) in fields {
        let good = prompt
            .as_object_mut()
            .unwrap()
            .insert(name.to_owned(), value);
        let status = if name == "model" { 404 } else { 400 };
        assert_refused(&client.post(COMPLETIONS, &prompt), status, message);
        match good {
            Some(good) => prompt[name] = good,
            None => drop(prompt.as_object_mut().unwrap().remove(name)),
        }
    }
    let messages = [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "user"}]}), "content"),
        (
            json!({"messages": [{"role": "wizard", "content": "a"}]}),
            "role",
        ),
        (json!({"messages": "hello"}), "messages"),
    ];
    for (body, message) in messages {
        assert_refused(&client.post(CHAT, &body), 400, message);
    }
    let long = "word ".repeat(1000);
    let too_long = client.post(COMPLETIONS, &completion(&long, 4));
    assert_refused(&too_long, 400, CONTEXT);
    assert_eq!(too_long.json()["error"]["code"], "context_length_exceeded");
    let huge = completion(&"a".repeat(10 << 20), 4);
    assert_refused(
        &client.post(COMPLETIONS, &huge),
        413,
        "longer than 8388608 bytes",
    );
    assert_refused(&client.get("/v1/nothing"), 404, "/v1/nothing");
    assert_refused(&client.get(COMPLETIONS), 405, "GET");

    assert_eq!(client.complete("x = 1\n", 8), before);
    assert_eq!(client.metric("tandem_worker_running_sequences", &[]), 0.0);
    assert!(set.stop().success());
}

#[test]
fn more_requests_than_there_is_room_for_are_sent_away_for_a_while() {
    let limits = [
        "--parallel",
        "1",
        "--queue-len",
        "1",
        "--max-in-flight",
        "3",
    ];
    let set = Set::start(&limits);
    let client = set.client();
    let mut running = client.stream(COMPLETIONS, &endless("a = 1\n"));
    running.first_text();
    // Its first event comes with its first token, so that its client waits beside the test.
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || client.complete("b = 1\n", 4)
    });
    wait_until("a request to wait", || {
        client.metric("tandem_worker_queued_requests", &[]) == 1.0
    });
    let check = |reply: Reply, message: &str| {
        assert_refused(&reply, 429, message);
        assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
        let seconds = reply.headers["retry-after"].to_str().unwrap();
        assert!(seconds.parse::<u32>().is_ok_and(|seconds| seconds > 0));
    };
    check(
        client.post(COMPLETIONS, &completion("c", 4)),
        "waiting already",
    );
    let mut two = completion("c", 4);
    two["n"] = json!(2);
    check(client.post(COMPLETIONS, &two), "3 answers are being made");
    drop(running);
    waiting.join().unwrap();
    client.complete("c", 4);
    assert_eq!(client.metric("tandem_requests_rejected_total", &[]), 2.0);
    assert!(set.stop().success());
}
