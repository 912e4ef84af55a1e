//! Routes, and what happens around every request.

mod body;
mod chat;
mod completions;
mod conversation;
mod error;
mod health;
mod messages;
mod metrics;
mod models;
mod page;
mod props;
mod slots;
mod sse;
mod status;
mod tokenize;
mod track;
mod usage;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{IntoMakeService, get, post};
use axum::{Router, ServiceExt};
use tower::util::{MapRequest, option_layer};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;

use crate::error::RouterError;
use crate::state::State;
use crate::target::Target;

/// Everything that is served, with or without a slash at the end.
pub(crate) fn service<T: Target>(state: Arc<State<T>>) -> IntoMakeService<Trimmed> {
    let trimmed = MapRequest::new(routes(state), trim_slash as fn(Request) -> Request);
    ServiceExt::<Request>::into_make_service(trimmed)
}

type Trimmed = MapRequest<Router, fn(Request) -> Request>;

fn routes<T: Target>(state: Arc<State<T>>) -> Router {
    let cors = state.config.cors.then(CorsLayer::permissive);
    let routes = Router::new()
        .route("/", get(page::root::<T>))
        .route("/web/{name}", get(page::file))
        .route("/status", get(page::index))
        .route("/status/json", get(status::once::<T>))
        .route("/status/events", get(status::events::<T>))
        .route("/health", get(health::health::<T>))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready::<T>))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready::<T>))
        .route("/props", get(props::props::<T>))
        .route("/metrics", get(metrics::metrics::<T>))
        .route("/v1/models", get(models::list::<T>))
        .route("/v1/models/{*id}", get(models::one::<T>))
        .route("/v1/chat/completions", post(chat::complete::<T>))
        .route(
            "/v1/chat/completions/input_tokens",
            post(chat::count_tokens::<T>),
        )
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
        .route("/detokenize", post(tokenize::detokenize::<T>))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(option_layer(cors))
        .layer(from_fn(answer_options))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn_with_state(Arc::clone(&state), track::track::<T>));
    routes.with_state(state)
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
