//! The list of models, which has one entry.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State as Shared};
use axum::http::Uri;
use serde_json::{Value, json};

use crate::error::RouterError;
use crate::http::health::PATIENCE;
use crate::state::State;
use crate::target::Target;

/// What Codex lets its user choose from.
const REASONING_LEVELS: [(&str, &str); 5] = [
    ("low", "A short thought, or none"),
    ("medium", "Some thought"),
    ("high", "Much thought"),
    ("x-high", "More than much"),
    ("max", "As much as the model may"),
];

/// All models; for Codex, which says who it is, also as it wants to have them told.
pub(super) async fn list<T: Target>(Shared(state): Shared<Arc<State<T>>>, uri: Uri) -> Json<Value> {
    let entry = entry(&state).await;
    let context_length = entry["context_length"].clone();
    let mut list = json!({ "object": "list", "data": [entry] });
    let mut query = uri.query().unwrap_or_default().split('&');
    if query.any(|pair| pair.split('=').next() == Some("client_version")) {
        let model = codex_entry(&state.words.model_name, context_length);
        list["models"] = json!([model]);
    }
    Json(list)
}

fn codex_entry(name: &str, context_window: Value) -> Value {
    let level = |(effort, description)| json!({ "effort": effort, "description": description });
    let levels: Vec<Value> = REASONING_LEVELS.into_iter().map(level).collect();
    json!({
        "slug": name,
        "display_name": name,
        "description": "A local model, served by Tandem",
        "default_reasoning_level": "low",
        "supported_reasoning_levels": levels,
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": true,
        "priority": 0,
        "context_window": context_window,
        "supports_reasoning_summaries": false,
        "supports_parallel_tool_calls": true,
    })
}

/// One model.
pub(super) async fn one<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, RouterError> {
    state.find_model(&id)?;
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
