//! The page at `/`: chat and live view, from files inside the program.

use std::sync::{Arc, LazyLock};

use axum::extract::{Path, State as Shared};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::RouterError;
use crate::http::health;
use crate::state::State;
use crate::target::Target;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Only what came with the page runs, and it speaks to this server only. What a model writes cannot become markup: the page
/// itself has no way to turn a string into it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

/// A file of the page.
struct File {
    name: &'static str,
    content_type: HeaderValue,
    bytes: &'static [u8],
    /// Of the bytes.
    tag: HeaderValue,
}

macro_rules! files {
    ($($name:literal: $content_type:expr),* $(,)?) => {
        vec![$(File::new($name, $content_type, include_bytes!(concat!("../../web/", $name)))),*]
    };
}

static INDEX: LazyLock<File> =
    LazyLock::new(|| File::new("index.html", HTML, include_bytes!("../../web/index.html")));

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    files! {
        "icon.svg": SVG,
        "base.css": CSS,
        "chat.css": CSS,
        "live.css": CSS,
        "app.js": SCRIPT,
        "api.js": SCRIPT,
        "chart.js": SCRIPT,
        "chat.js": SCRIPT,
        "code.js": SCRIPT,
        "dom.js": SCRIPT,
        "format.js": SCRIPT,
        "live.js": SCRIPT,
        "markdown.js": SCRIPT,
        "message.js": SCRIPT,
        "round.js": SCRIPT,
        "settings.js": SCRIPT,
        "store.js": SCRIPT,
        "theme.js": SCRIPT,
        "tiles.js": SCRIPT,
    }
});

impl File {
    fn new(name: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let tag = format!("\"{:032x}\"", xxh3_128(bytes));
        Self {
            name,
            content_type: HeaderValue::from_static(content_type),
            bytes,
            tag: HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes"),
        }
    }

    /// The file, or nothing where the client has it. It asks each time, so that a new program never meets an old page.
    fn reply(&self, request: &HeaderMap) -> Response {
        let headers: [(HeaderName, HeaderValue); 8] = [
            (CONTENT_TYPE, self.content_type.clone()),
            (ETAG, self.tag.clone()),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (VARY, HeaderValue::from_static("accept")),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
            (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        ];
        if self.is_known(request) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, self.bytes).into_response()
    }

    /// Whether one of the tags that the client has is this one's. A proxy that compresses makes weak ones of them.
    fn is_known(&self, request: &HeaderMap) -> bool {
        let tags = request.get_all(IF_NONE_MATCH).iter();
        tags.filter_map(|tags| tags.to_str().ok())
            .flat_map(|tags| tags.split(','))
            .map(|tag| tag.trim().trim_start_matches("W/"))
            .any(|tag| tag == "*" || tag.as_bytes() == self.tag.as_bytes())
    }
}

/// The page; programs that ask for JSON are told of the health, as at `/health`.
pub(super) async fn root<T: Target>(state: Shared<Arc<State<T>>>, headers: HeaderMap) -> Response {
    if wants_json(&headers) {
        let health = health::health(state).await;
        return ([(VARY, HeaderValue::from_static("accept"))], health).into_response();
    }
    index(headers).await
}

/// The page, whichever part of it the path names.
pub(super) async fn index(headers: HeaderMap) -> Response {
    INDEX.reply(&headers)
}

/// A file that the page consists of.
pub(super) async fn file(
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, RouterError> {
    let file = FILES.iter().find(|file| file.name == name);
    let file = file.ok_or_else(|| RouterError::UnknownRoute {
        path: format!("/web/{name}"),
    })?;
    Ok(file.reply(&headers))
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(ACCEPT).iter();
    let mut accept = accept.filter_map(|value| value.to_str().ok());
    // Browsers list what they take; HTML is the first of it.
    accept.any(|value| value.contains("application/json") && !value.contains("text/html"))
}
