//! The page, as a browser asks for it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::client::{Reply, exchange, request};
use crate::script::Script;
use crate::server::{Server, TOKENIZER};

/// What Chromium sends when somebody opens a page.
const BROWSER: &str = "accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n";

fn server() -> Server {
    Server::start(Script::says(&TOKENIZER, "Hello."))
}

fn get(server: &Server, path: &str, headers: &str) -> Reply {
    exchange(server.address, &request("GET", path, headers, b""))
}

#[test]
fn a_browser_gets_the_page_and_a_program_the_health() {
    let server = server();
    for accept in [BROWSER, "accept: */*\r\n", ""] {
        let page = get(&server, "/", accept);
        assert_eq!(page.status, 200);
        assert_eq!(
            page.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert!(page.text().starts_with("<!doctype html>"), "{accept}");
        assert_eq!(page.header("vary"), Some("accept"));
    }
    let health = get(&server, "/", "accept: application/json\r\n");
    assert_eq!(health.header("content-type"), Some("application/json"));
    assert_eq!(health.header("vary"), Some("accept"));
    assert_eq!(health.json(), get(&server, "/health", BROWSER).json());
    // The live view is a part of the same page.
    assert_eq!(get(&server, "/status", "").body, get(&server, "/", "").body);
}

#[test]
fn the_page_is_there_before_the_target_is() {
    let server = Server::start(Script::says(&TOKENIZER, "").down());
    assert_eq!(get(&server, "/", BROWSER).status, 200);
    assert_eq!(
        get(&server, "/", "accept: application/json\r\n").status,
        503
    );
}

#[test]
fn nothing_but_its_own_files_runs_in_the_page() {
    let server = server();
    for path in [
        "/",
        "/status",
        "/web/app.js",
        "/web/base.css",
        "/web/icon.svg",
    ] {
        let reply = get(&server, path, BROWSER);
        let policy = reply.header("content-security-policy").expect(path);
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{policy}"
        );
        assert!(
            policy.contains("require-trusted-types-for 'script'"),
            "{policy}"
        );
        assert!(
            !policy.contains("unsafe") && !policy.contains("http"),
            "{policy}"
        );
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
    }
}

#[test]
fn a_file_that_the_browser_has_is_not_sent_again() {
    let server = server();
    let first = get(&server, "/web/app.js", "");
    assert_eq!(
        first.header("content-type"),
        Some("text/javascript; charset=utf-8")
    );
    assert_eq!(first.header("cache-control"), Some("no-cache"));
    let tag = first.header("etag").expect("a tag");
    assert_ne!(get(&server, "/web/base.css", "").header("etag"), Some(tag));
    for known in [tag, &format!("W/{tag}"), &format!("\"other\", {tag}"), "*"] {
        let again = get(
            &server,
            "/web/app.js",
            &format!("if-none-match: {known}\r\n"),
        );
        assert_eq!((again.status, again.body.len()), (304, 0), "{known}");
        assert_eq!(again.header("etag"), Some(tag));
    }
    let changed = get(&server, "/web/app.js", "if-none-match: \"other\"\r\n");
    assert_eq!((changed.status, changed.body), (200, first.body));
}

#[test]
fn whatever_the_page_asks_for_is_there_and_nothing_else() {
    let server = server();
    let page = get(&server, "/", BROWSER);
    let mut asked = links(page.text());
    let mut seen = BTreeSet::new();
    while let Some(path) = asked.pop() {
        let file = get(&server, &path, "");
        assert_eq!(file.status, 200, "{path}");
        if seen.insert(path) {
            asked.extend(links(file.text()));
        }
    }
    // Each file of the page is asked for by something; the first is the page itself.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(seen.len() + 1, files, "{seen:?}");
    for path in [
        "/web/none.js",
        "/web/index.html",
        "/web/%2e%2e%2fCargo.toml",
    ] {
        let reply = get(&server, path, "");
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    let posted = server.post("/", &serde_json::json!({}));
    assert_eq!(
        (posted.status, posted.header("allow")),
        (405, Some("GET,HEAD"))
    );
}

/// What a file of the page names in quotes: `/web/...` in HTML, `./...` in scripts.
fn links(text: &str) -> Vec<String> {
    let quoted = text.split('"').skip(1).step_by(2);
    quoted
        .filter_map(|quoted| {
            let name = quoted
                .strip_prefix("/web/")
                .or_else(|| quoted.strip_prefix("./"))?;
            let is_file = !name.is_empty() && name.contains('.') && !name.contains(' ');
            is_file.then(|| format!("/web/{name}"))
        })
        .collect()
}
