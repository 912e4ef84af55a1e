//! A small HTTP client that hides nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A test that waits this long has failed.
pub const WATCHDOG: Duration = Duration::from_secs(30);

pub struct Reply {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }

    /// The events of a stream, and whether it ended with `[DONE]`.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let mut data: Vec<&str> = self
            .text()
            .split("\n\n")
            .flat_map(str::lines)
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        let done = data.last() == Some(&"[DONE]");
        if done {
            data.pop();
        }
        let parse = |text: &str| serde_json::from_str(text).expect("each event is JSON");
        (data.into_iter().map(parse).collect(), done)
    }
}

impl Reply {
    /// The events of a stream whose events have names: the name is the type in the JSON, and no event lacks one.
    pub fn named_events(&self) -> Vec<Value> {
        let named = |block: &str| -> Option<Value> {
            let field = |key| block.lines().find_map(|line| line.strip_prefix(key));
            let data = field("data: ")?;
            let data: Value = serde_json::from_str(data).expect("each event is JSON");
            assert_eq!(field("event: "), data["type"].as_str(), "{block}");
            Some(data)
        };
        self.text().split("\n\n").filter_map(named).collect()
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the router listens");
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

pub fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

pub fn exchange(address: SocketAddr, request: &[u8]) -> Reply {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("a whole reply");
    let split = bytes.windows(4).position(|w| w == b"\r\n\r\n");
    let split = split.expect("the reply has a head");
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let body = &bytes[split + 4..];
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut reply = Reply {
        status,
        head,
        body: Vec::new(),
    };
    reply.body = match reply.header("transfer-encoding") {
        Some("chunked") => unchunk(body),
        _ => body.to_vec(),
    };
    reply
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = bytes.windows(2).position(|w| w == b"\r\n").unwrap();
        let length = std::str::from_utf8(&bytes[..line]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return body;
        }
        bytes = &bytes[line + 2..];
        body.extend_from_slice(&bytes[..length]);
        bytes = &bytes[length + 2..];
    }
}
