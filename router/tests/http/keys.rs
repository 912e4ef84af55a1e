//! Who may call: keys, and pages of other origins.

use router::{ApiKeys, Cors, RouterConfig, Secret};

use crate::client::{Reply, exchange, request};
use crate::script::Script;
use crate::server::{Server, TOKENIZER};

const KEY: &str = "sk-open-sesame";

fn server(open_metrics: bool) -> Server {
    let keys = [KEY, "sk-other"].map(|key| Secret::from(key.to_owned()));
    let config = RouterConfig {
        keys: ApiKeys::new(&keys, None).unwrap(),
        open_metrics,
        ..RouterConfig::default()
    };
    Server::with(config, Script::says(&TOKENIZER, "</think>x"))
}

fn call(server: &Server, method: &str, path: &str, headers: &str) -> Reply {
    let body = br#"{"messages":[{"role":"user","content":"hello"}]}"#;
    let body: &[u8] = if method == "POST" { body } else { b"" };
    exchange(server.address, &request(method, path, headers, body))
}

#[test]
fn nothing_but_health_is_told_to_who_has_no_key() {
    let server = server(false);
    for path in [
        "/health",
        "/health/live",
        "/health/ready",
        "/livez",
        "/readyz",
    ] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for (method, path) in [
        ("GET", "/props"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/x"),
        ("GET", "/nowhere"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
    ] {
        for headers in [
            "",
            "authorization: Bearer sk-wrong\r\n",
            "authorization: Bearer\r\n",
            "authorization: Basic sk-open-sesame\r\n",
            "authorization: sk-open-sesame\r\n",
            "x-api-key: sk-open-sesam\r\n",
        ] {
            let reply = call(&server, method, path, headers);
            assert_eq!(reply.status, 401, "{method} {path} {headers}");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            let error = &reply.json()["error"];
            assert_eq!(error["type"], "authentication_error");
            assert_eq!(error["code"], "invalid_api_key");
            assert!(!reply.text().contains("sesam"), "{}", reply.text());
        }
    }
}

#[test]
fn every_key_opens_everything_in_both_headers() {
    let server = server(false);
    for headers in [
        "authorization: Bearer sk-open-sesame\r\n",
        "Authorization: bearer  sk-other\r\n",
        "x-api-key: sk-open-sesame\r\n",
    ] {
        for (method, path, status) in [
            ("GET", "/props", 200),
            ("GET", "/metrics", 200),
            ("GET", "/v1/models", 200),
            ("GET", "/nowhere", 404),
            ("POST", "/v1/chat/completions", 200),
        ] {
            let reply = call(&server, method, path, headers);
            assert_eq!(reply.status, status, "{method} {path} {headers}");
            assert!(!reply.text().contains("sesame"), "no key is told");
        }
    }
    let wrong = call(
        &server,
        "GET",
        "/props",
        "x-api-key: no\r\nanthropic-version: 2023-06-01\r\n",
    );
    let body = wrong.json();
    assert_eq!((wrong.status, body["type"].as_str()), (401, Some("error")));
    assert_eq!(body["error"]["type"], "authentication_error");
    let metrics = call(&server, "GET", "/metrics", "x-api-key: sk-other\r\n");
    assert!(
        metrics
            .text()
            .contains("tandem_requests_unauthorized_total 1\n")
    );
}

#[test]
fn metrics_are_open_where_that_is_wanted() {
    let server = server(true);
    assert_eq!(server.get("/metrics").status, 200);
    assert_eq!(server.get("/props").status, 401);
}

#[test]
fn pages_of_this_machine_may_call_and_others_where_that_is_wanted() {
    let allowed = |cors, origin: &str| {
        let config = RouterConfig {
            cors,
            ..RouterConfig::default()
        };
        let server = Server::with(config, Script::says(&TOKENIZER, "x"));
        let headers = format!("origin: {origin}\r\n");
        let reply = call(&server, "GET", "/v1/models", &headers);
        assert_eq!(reply.status, 200);
        reply
            .header("access-control-allow-origin")
            .map(str::to_owned)
    };
    for origin in [
        "http://localhost:3000",
        "http://127.0.0.1:8080",
        "http://[::1]",
    ] {
        assert_eq!(allowed(Cors::Local, origin).as_deref(), Some(origin));
        assert_eq!(allowed(Cors::Off, origin), None);
    }
    for origin in [
        "https://example.com",
        "http://localhost.example.com",
        "null",
    ] {
        assert_eq!(allowed(Cors::Local, origin), None);
        assert_eq!(allowed(Cors::Any, origin).as_deref(), Some("*"));
    }
}

#[test]
fn browsers_may_ask_whether_they_may_send_a_key() {
    let server = server(false);
    let headers = "origin: http://localhost:3000\r\naccess-control-request-method: POST\r\naccess-control-request-headers: authorization,x-stainless-os\r\n";
    let reply = call(&server, "OPTIONS", "/v1/chat/completions", headers);
    assert_eq!(reply.status, 204);
    let told = reply.header("access-control-allow-headers").unwrap();
    assert!(
        told.contains("authorization") && told.contains("x-stainless-os"),
        "{told}"
    );
    assert!(
        reply
            .header("access-control-allow-methods")
            .unwrap()
            .contains("POST")
    );
}
