//! Whether the service is there.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::state::State;
use crate::target::Target;

/// A target that does not say what it is for this long is not there.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the target answers.
pub(super) async fn health<T: Target>(Shared(state): Shared<Arc<State<T>>>) -> Response {
    report(check(&state).await)
}

/// Whether the process is alive: it answers.
pub(super) async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Whether another request would be taken.
pub(super) async fn ready<T: Target>(Shared(state): Shared<Arc<State<T>>>) -> Response {
    let mut health = check(&state).await;
    if health.is_ok() && state.permits.available_permits() == 0 {
        health = Err(("busy", "as many answers are being made as may".to_owned()));
    }
    report(health)
}

async fn check<T: Target>(state: &State<T>) -> Result<(), (&'static str, String)> {
    if state.shutdown.is_cancelled() {
        return Err(("draining", "the server is shutting down".to_owned()));
    }
    match tokio::time::timeout(PATIENCE, state.target.describe()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(("loading", error.to_string())),
        Err(_) => Err(("loading", "the target does not answer".to_owned())),
    }
}

fn report(health: Result<(), (&'static str, String)>) -> Response {
    match health {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err((status, reason)) => {
            let body = Json(json!({ "status": status, "reason": reason }));
            let retry = (header::RETRY_AFTER, HeaderValue::from_static("2"));
            (StatusCode::SERVICE_UNAVAILABLE, [retry], body).into_response()
        }
    }
}
