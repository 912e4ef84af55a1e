//! The series, for Prometheus.

use std::sync::Arc;

use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::http::health::PATIENCE;
use crate::state::State;
use crate::target::Target;

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All series as text.
pub(super) async fn metrics<T: Target>(Shared(state): Shared<Arc<State<T>>>) -> impl IntoResponse {
    let stats = tokio::time::timeout(PATIENCE, state.target.stats()).await;
    state.metrics.set_worker(stats.ok().and_then(Result::ok));
    ([(CONTENT_TYPE, TEXT_FORMAT)], state.metrics.render())
}
