//! The client: one connection per request, and streams read event by event.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::processes::{WATCHDOG, wait_until};

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    address: SocketAddr,
    runtime: Arc<Runtime>,
}

pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }

    /// The answer to a request that is fine.
    pub fn ok(self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, 200, "{text}");
        self.json()
    }
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(WATCHDOG)
            // A connection that is kept would count as one that is left over.
            .pool_max_idle_per_host(0);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self {
            http: http.build().unwrap(),
            address,
            runtime: Arc::new(runtime),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn try_get(&self, path: &str) -> reqwest::Result<Reply> {
        self.exchange(self.http.get(self.url(path)))
    }

    pub fn get(&self, path: &str) -> Reply {
        self.try_get(path).expect("an answer")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string().into_bytes())
    }

    pub fn post_bytes(&self, path: &str, body: Vec<u8>) -> Reply {
        let request = self.http.post(self.url(path)).body(body);
        self.exchange(request).expect("an answer")
    }

    fn exchange(&self, request: RequestBuilder) -> reqwest::Result<Reply> {
        self.runtime.block_on(async {
            let response = request.send().await?;
            Ok(Reply {
                status: response.status().as_u16(),
                headers: response.headers().clone(),
                body: response.bytes().await?.to_vec(),
            })
        })
    }

    /// Starts a streamed answer.
    pub fn stream(&self, path: &str, body: &Value) -> EventStream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let request = self.http.post(self.url(path)).body(body.to_string());
        let response = self.runtime.block_on(async { request.send().await });
        let response = response.expect("an answer");
        assert_eq!(response.status(), 200);
        EventStream {
            response,
            buffer: Vec::new(),
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// Text of a greedy completion, and its tokens' number.
    pub fn complete(&self, prompt: &str, max_tokens: u32) -> (String, u64) {
        let answer = self.post("/v1/completions", &completion(prompt, max_tokens));
        let answer = answer.ok();
        let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
        (text, answer["usage"]["completion_tokens"].as_u64().unwrap())
    }

    pub fn wait_until_ready(&self) {
        wait_until("the server to be ready", || {
            let answer = self.try_get("/health");
            answer.is_ok_and(|reply| reply.status == 200)
        });
    }

    /// What `/props` says of the draft: attached or waiting, nothing where none is wanted.
    pub fn draft_state(&self) -> String {
        let state = self.get("/props").ok()["speculative"]["draft"]["state"].take();
        state.as_str().unwrap_or_default().to_owned()
    }

    pub fn wait_until_attached(&self) {
        wait_until("the draft to be attached", || {
            self.draft_state() == "attached"
        });
    }

    /// The sum of a metric's series that have all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        let of_name = |line: &&str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([' ', '{']))
        };
        text.lines()
            .filter(of_name)
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }
}

/// A greedy request for a completion.
pub fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

/// A request that keeps the worker busy until its client leaves or the context is full.
pub fn endless(prompt: &str) -> Value {
    json!({"prompt": prompt, "temperature": 0, "ignore_eos": true})
}

/// An event of a stream.
#[derive(Debug, PartialEq)]
pub enum Event {
    Part(Value),
    Done,
    /// The connection ended, in order or not.
    End,
}

/// A streamed answer. The client leaves when it is dropped.
pub struct EventStream {
    response: Response,
    buffer: Vec<u8>,
    runtime: Arc<Runtime>,
}

impl EventStream {
    pub fn next(&mut self) -> Event {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = String::from_utf8(line).unwrap();
                match line.trim_end().strip_prefix("data: ") {
                    Some("[DONE]") => return Event::Done,
                    Some(data) => return Event::Part(serde_json::from_str(data).unwrap()),
                    None => continue,
                }
            }
            match self.runtime.block_on(self.response.chunk()) {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) | Err(_) => return Event::End,
            }
        }
    }

    /// Reads until a piece of text has come.
    pub fn first_text(&mut self) -> String {
        loop {
            match self.next() {
                Event::Part(part) => {
                    let text = text_of(&part);
                    if !text.is_empty() {
                        return text;
                    }
                }
                other => panic!("no text but {other:?}"),
            }
        }
    }

    /// All text up to the end, and what came last instead of a part.
    pub fn rest(&mut self) -> (String, Event) {
        let mut whole = String::new();
        loop {
            match self.next() {
                Event::Part(part) if part["error"].is_null() => whole.push_str(&text_of(&part)),
                last => return (whole, last),
            }
        }
    }
}

/// Text of a part of a completion, or reasoning and content of a chat completion's.
fn text_of(part: &Value) -> String {
    let choice = &part["choices"][0];
    let delta = &choice["delta"];
    [
        &choice["text"],
        &delta["reasoning_content"],
        &delta["content"],
    ]
    .into_iter()
    .filter_map(Value::as_str)
    .collect()
}
