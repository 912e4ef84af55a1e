//! What a stream says before its first token.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use api_types::CompressionMode;
use generation::GenerateEvent;
use router::RouterConfig;
use serde_json::{Value, json};

use crate::client::{connect, request};
use crate::compression::{CHAT, Set, chat, config, haystack, says};
use crate::prefill::Play;
use crate::script::{Script, Step, opening};
use crate::server::Server;

/// Sends `body` and reads what comes until `text` is there.
fn read_until(server: &Server, body: &Value, text: &str) -> (String, TcpStream) {
    let mut stream = connect(server.address);
    let sent = request("POST", CHAT, "", body.to_string().as_bytes());
    stream.write_all(&sent).unwrap();
    let mut seen = String::new();
    while !seen.contains(text) {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    (seen, stream)
}

/// A target that reads a part of each prompt and then nothing.
fn half() -> Script {
    Script::new(|request| {
        let mut steps = opening(request);
        steps.push(Step::Event(GenerateEvent::Progress { prompt_tokens: 7 }));
        steps.push(Step::Hang);
        Ok(steps)
    })
}

fn keep_alive(config: RouterConfig, ms: u64) -> RouterConfig {
    RouterConfig {
        keep_alive: Duration::from_millis(ms),
        ..config
    }
}

#[test]
fn who_asks_for_progress_gets_it_in_parts_of_its_own() {
    // Signs of life are off.
    let server = Server::with(keep_alive(RouterConfig::default(), 0), half());
    let mut body = chat(&[says("user", "hello there")]);
    body["stream"] = true.into();
    body["return_progress"] = true.into();
    let (seen, _) = read_until(&server, &body, "\"time_ms\"");
    let part = seen.lines().find_map(|line| {
        let part: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
        part.get("prompt_progress").cloned()
    });
    let progress = part.unwrap();
    assert_eq!(progress["stage"], "prefill");
    assert_eq!(
        (&progress["cache"], &progress["processed"]),
        (&json!(1), &json!(7))
    );
    assert!(progress["total"].as_u64().unwrap() > 7);
}

#[test]
fn signs_of_life_say_how_far_the_prompt_is() {
    let server = Server::with(keep_alive(RouterConfig::default(), 20), half());
    let mut body = chat(&[says("user", "hello there")]);
    body["stream"] = true.into();
    let (seen, _) = read_until(&server, &body, ": prefill 7/");
    assert!(!seen.contains("prompt_progress"));
    assert!(seen.contains("\"role\":\"assistant\""));
}

#[test]
fn a_stream_begins_before_its_prompt_is_cut_and_tells_how_far_it_is() {
    let set = Set::new(keep_alive(config(CompressionMode::Auto), 50));
    set.worker.set(Play::Hang);
    let mut body = chat(&[says("user", &haystack("book", 90, "plover"))]);
    body["stream"] = true.into();
    let (seen, stream) = read_until(&set.server, &body, ": compression 3/28");
    assert!(seen.starts_with("HTTP/1.1 200"));
    assert!(seen.contains("\"role\":\"assistant\"") && set.target.asked().is_empty());
    drop(stream);
    // Who leaves is not worked for.
    set.worker.wait_for_drops(1);
    set.server
        .wait_for_metric("tandem_requests_cancelled_total 1");
    set.server.wait_for_metric("tandem_answers_in_flight 0");

    set.worker.set(Play::Answer);
    body["stream_options"] = json!({ "include_usage": true });
    let (events, done) = set.server.post(CHAT, &body).events();
    let usage = &events.last().unwrap()["usage"];
    assert!(done && usage["compression"]["kept_tokens"].is_number());
    // What is too long even so is told in the stream.
    let long = haystack("rules", 400, "of the rules");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.insert(0, says("system", &long));
    let (events, done) = set.server.post(CHAT, &body).events();
    let error = &events.last().unwrap()["error"];
    assert!(
        done && error["code"] == "context_length_exceeded",
        "{error}"
    );
}
