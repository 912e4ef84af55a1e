//! Which requests are being answered, for people who look.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use serde_json::{Value, json};

use crate::http::health::PATIENCE;
use crate::state::State;
use crate::target::Target;

/// The requests at work or waiting, oldest first, without a word of what is in them.
pub(super) async fn slots<T: Target>(Shared(state): Shared<Arc<State<T>>>) -> Json<Value> {
    let model = tokio::time::timeout(PATIENCE, state.description()).await;
    let n_ctx = model.ok().and_then(Result::ok).map(|m| m.context_length);
    let requests = state.active.requests();
    let slots = requests.iter().enumerate().map(|(id, record)| {
        let so_far = record.so_far();
        json!({
            "id": id,
            "request_id": record.id,
            "route": record.route,
            "state": so_far.phase.name(),
            "is_processing": so_far.phase.is_processing(),
            "n_ctx": n_ctx,
            "prompt_tokens": so_far.prompt_tokens,
            "cached_tokens": so_far.cached_tokens,
            "completion_tokens": so_far.completion_tokens,
            "elapsed_ms": u64::try_from(record.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    });
    Json(slots.collect())
}
