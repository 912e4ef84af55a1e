//! The list of models, which has one entry.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State as Shared};
use serde_json::{Value, json};

use crate::error::RouterError;
use crate::http::health::PATIENCE;
use crate::state::State;
use crate::target::Target;

/// All models.
pub(super) async fn list<T: Target>(Shared(state): Shared<Arc<State<T>>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [entry(&state).await] }))
}

/// One model.
pub(super) async fn one<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, RouterError> {
    state.check_model(Some(&id))?;
    Ok(Json(entry(&state).await))
}

/// The context length is null until the target has told it.
async fn entry<T: Target>(state: &State<T>) -> Value {
    let description = tokio::time::timeout(PATIENCE, state.description()).await;
    let description = description.ok().and_then(Result::ok);
    let context_length = description.map(|model| model.context_length);
    json!({
        "id": state.words.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "tandem",
        "context_length": context_length,
        "max_context_length": context_length,
    })
}
