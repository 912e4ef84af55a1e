//! The live view's data.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use router::RouterConfig;
use serde_json::{Value, json};

use crate::client::{WATCHDOG, connect, request};
use crate::script::Script;
use crate::server::{Server, TOKENIZER};

fn script() -> Script {
    Script::says(&TOKENIZER, "Hello.")
}

#[test]
fn the_figures_are_those_of_the_set() {
    let server = Server::start(script());
    let reply = server.get("/status/json");
    assert_eq!(reply.status, 200);
    let status = reply.json();
    assert_eq!(status["state"], "ready");
    assert_eq!(status["shows_text"], false);
    assert_eq!(status["target"]["device"], "script");
    assert_eq!(status["target"]["n_ctx"], 512);
    let memory = json!({ "resident_bytes": 123, "device_free_bytes": null });
    assert_eq!(status["target"]["memory"], memory);
    assert_eq!(status["draft"], Value::Null);
    assert_eq!(status["prefill"], Value::Null);
    assert_eq!(status["requests"]["slots"], 4);
    assert_eq!(status["requests"]["in_flight"], 0);
    assert_eq!(status["requests"]["max_in_flight"], 64);
    assert_eq!(status["tokens"]["steps"], 7);
    let speculation = &status["speculation"];
    assert_eq!(speculation["rounds"], 11);
    assert_eq!(speculation["rounds_by_accepted"], json!([5, 2, 0, 4]));
    assert_eq!(speculation["stage_seconds"]["verify"], 1.5);
    assert_eq!(status["prefix_cache"]["hits"], 0);
    assert_eq!(status["compression"]["mode"], "off");
}

#[test]
fn without_a_target_the_rest_is_told() {
    let server = Server::start(script().down());
    let status = server.get("/status/json").json();
    assert_eq!(status["state"], "loading");
    assert_eq!(
        status["target"],
        json!({ "state": "waiting", "reason": "the model is loading" })
    );
    assert_eq!(status["speculation"], Value::Null);
    assert_eq!(status["requests"]["max_in_flight"], 64);
}

#[test]
fn a_watcher_gets_figures_and_rounds_and_none_is_made_without_one() {
    let script = script();
    let server = Server::start(script.clone());
    assert_eq!(script.watching(), 0);
    let mut feed = Feed::open(&server);
    assert_eq!(feed.next("status")["state"], "ready");
    let round = feed.next("round");
    let nodes = |key: &str| -> Vec<&Value> {
        let nodes = round["nodes"].as_array().unwrap().iter();
        nodes.map(|node| &node[key]).collect()
    };
    assert_eq!(nodes("parent"), [0, 0, 2]);
    assert!((round["nodes"][1]["probability"].as_f64().unwrap() - 0.367_879).abs() < 1e-5);
    assert_eq!(round["accepted"], json!([2]));
    assert_eq!(round["ms"]["draft"], 1.0);
    assert_eq!(round["ms"]["verify"], 4.5);
    // Tokens are text, which nobody asked to show: neither words nor ids, but how many there were.
    assert_eq!(round["anchor"], Value::Null);
    assert_eq!(nodes("text"), [&Value::Null; 3]);
    assert_eq!(round["chosen"], json!([null, null]));
    assert_eq!(script.watching(), 1);
    // The figures go on, and end with the watcher.
    feed.next("status");
    drop(feed);
    let started = Instant::now();
    while script.watching() > 0 {
        assert!(started.elapsed() < WATCHDOG, "somebody is still watching");
        std::thread::yield_now();
    }
}

#[test]
fn tokens_are_shown_where_the_flag_says_so() {
    let config = RouterConfig {
        status_text: true,
        ..RouterConfig::default()
    };
    let server = Server::with(config, script());
    assert_eq!(server.get("/status/json").json()["shows_text"], true);
    let mut feed = Feed::open(&server);
    let round = feed.next("round");
    assert_eq!(round["anchor"], " return");
    assert_eq!(round["nodes"][2]["text"], " z");
    assert_eq!(round["chosen"], json!([" y", " w"]));
}

#[test]
fn watchers_end_with_the_server_and_are_bounded() {
    let mut server = Server::start(script());
    let mut feeds: Vec<Feed> = (0..32).map(|_| Feed::open(&server)).collect();
    for feed in &mut feeds {
        feed.next("status");
    }
    let refused = server.get("/status/events");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Waits for nobody's leaving.
    server.stop();
    for mut feed in feeds {
        feed.read_to_end();
    }
}

/// An open event stream.
struct Feed(BufReader<TcpStream>);

impl Feed {
    fn open(server: &Server) -> Self {
        let mut stream = connect(server.address);
        let request = request("GET", "/status/events", "", b"");
        stream.write_all(&request).unwrap();
        Self(BufReader::new(stream))
    }

    /// The data of the next event of a kind.
    fn next(&mut self, kind: &str) -> Value {
        let wanted = format!("event: {kind}");
        while self.line().expect("an event") != wanted {}
        let data = self.line().expect("the data of an event");
        serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON")
    }

    fn read_to_end(&mut self) {
        while self.line().is_some() {}
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.0.read_line(&mut line).expect("the stream ends whole");
        (length > 0).then(|| line.trim_end().to_owned())
    }
}
