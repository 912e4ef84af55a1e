//! Routes, and what happens around every request.

mod body;
mod chat;
mod completions;
mod conversation;
mod error;
mod health;
mod keys;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod openapi;
mod page;
mod props;
mod responses;
mod slots;
mod sse;
mod status;
mod tokenize;
mod track;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower::util::{MapRequest, option_layer};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer, ExposeHeaders};

use crate::config::Cors;
use crate::error::RouterError;
use crate::state::State;
use crate::target::Target;

/// Everything that is served, with or without a slash at the end.
pub(crate) fn service<T: Target>(state: Arc<State<T>>) -> Service {
    MapRequest::new(routes(state), trim_slash as fn(Request) -> Request)
}

/// What connections are served with.
pub(crate) type Service = MapRequest<Router, fn(Request) -> Request>;

fn routes<T: Target>(state: Arc<State<T>>) -> Router {
    // Whoever watches over the process has no key, and a page asks for one.
    let mut open = Router::new()
        .route("/", get(page::root::<T>))
        .route("/web/{name}", get(page::file))
        .route("/status", get(page::index))
        .route("/health", get(health::health::<T>))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready::<T>))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready::<T>));
    let mut keyed = Router::new()
        .route("/status/json", get(status::once::<T>))
        .route("/status/events", get(status::events::<T>))
        .route("/props", get(props::props::<T>))
        .route("/openapi.json", get(openapi::openapi))
        .route("/v1/models", get(models::list::<T>))
        .route("/v1/models/{*id}", get(models::one::<T>))
        .route("/v1/chat/completions", post(chat::complete::<T>))
        .route(
            "/v1/chat/completions/input_tokens",
            post(chat::count_tokens::<T>),
        )
        .route("/v1/responses", post(responses::create::<T>))
        .route(
            "/v1/responses/input_tokens",
            post(responses::input_tokens::<T>),
        )
        .route("/v1/responses/{id}", get(responses::stored))
        .route("/v1/responses/{id}/input_items", get(responses::stored))
        .route("/v1/completions", post(completions::complete::<T>))
        .route("/v1/messages", post(messages::create::<T>))
        .route(
            "/v1/messages/count_tokens",
            post(messages::count_tokens::<T>),
        )
        .route("/v1/embeddings", post(no_embeddings))
        .route("/v1/rerank", post(no_reranking))
        .route("/slots", get(slots::slots::<T>))
        .route("/apply-template", post(conversation::apply_template::<T>))
        .route("/tokenize", post(tokenize::tokenize::<T>))
        .route("/detokenize", post(tokenize::detokenize::<T>));
    let metrics = get(metrics::metrics::<T>);
    if state.config.open_metrics {
        open = open.route("/metrics", metrics);
    } else {
        keyed = keyed.route("/metrics", metrics);
    }
    let keyed = keyed
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&state), keys::check::<T>));
    let routes = open
        .method_not_allowed_fallback(wrong_method)
        .merge(keyed)
        .layer(option_layer(cors(state.config.cors)))
        .layer(from_fn(answer_options))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn_with_state(Arc::clone(&state), track::track::<T>));
    routes.with_state(state)
}

/// What browsers are told of pages of other origins. They send a key only where its header is named.
fn cors(pages: Cors) -> Option<CorsLayer> {
    let origins = match pages {
        Cors::Off => return None,
        Cors::Local => AllowOrigin::predicate(|origin, _| is_local(origin)),
        Cors::Any => AllowOrigin::any(),
    };
    let layer = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::OPTIONS])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(ExposeHeaders::any());
    Some(layer)
}

/// Whether a page is of this machine, on any port.
fn is_local(origin: &HeaderValue) -> bool {
    let uri = origin
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Uri>().ok());
    let host = uri.as_ref().and_then(Uri::host);
    matches!(host, Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// Drops the slash at the end of the path, which has to be done before the route is looked up.
fn trim_slash(mut request: Request) -> Request {
    let uri = request.uri();
    let path = uri.path().trim_end_matches('/');
    if path.is_empty() || path.len() == uri.path().len() {
        return request;
    }
    let path_and_query = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = path_and_query.parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// Whatever is asked about, the answer has no body; its headers say what may be done.
async fn answer_options(request: Request, next: Next) -> Response {
    let asks = request.method() == Method::OPTIONS;
    let response = next.run(request).await;
    if !asks {
        return response;
    }
    let mut headers = response.into_parts().0.headers;
    headers.remove(CONTENT_LENGTH);
    headers.remove(CONTENT_TYPE);
    (StatusCode::NO_CONTENT, headers).into_response()
}

async fn no_embeddings() -> RouterError {
    RouterError::NotOffered {
        path: "/v1/embeddings",
        what: "embeddings",
    }
}

async fn no_reranking() -> RouterError {
    RouterError::NotOffered {
        path: "/v1/rerank",
        what: "ranking",
    }
}

async fn unknown_route(uri: Uri) -> RouterError {
    RouterError::UnknownRoute {
        path: uri.path().to_owned(),
    }
}

async fn wrong_method(method: Method, uri: Uri) -> RouterError {
    RouterError::WrongMethod {
        method,
        path: uri.path().to_owned(),
    }
}
