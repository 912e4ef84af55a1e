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
    ("xhigh", "More than much"),
    ("max", "As much as the model may"),
];

/// All models, with the fields of OpenAI's list and of Anthropic's; for Codex, which says who it is, also as it wants to have them
/// told.
pub(super) async fn list<T: Target>(Shared(state): Shared<Arc<State<T>>>, uri: Uri) -> Json<Value> {
    let entry = entry(&state).await;
    let context_length = entry["context_length"].clone();
    let id = entry["id"].clone();
    let mut list = json!({
        "object": "list", "data": [entry],
        "has_more": false, "first_id": id, "last_id": id,
    });
    let mut query = uri.query().unwrap_or_default().split('&');
    if query.any(|pair| pair.split('=').next() == Some("client_version")) {
        let model = codex_entry(&state.words.model_name, context_length);
        list["models"] = json!([model]);
    }
    Json(list)
}

/// What Codex tells the model in place of its own instructions, which are 17 KB long and written for a far larger one.
const CODEX_INSTRUCTIONS: &str = include_str!("codex-instructions.txt");

/// As Codex 0.169 reads it: without one of these fields it leaves the whole catalogue aside.
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
        "input_modalities": ["text"],
        "support_verbosity": false,
        "truncation_policy": { "mode": "tokens", "limit": 10000 },
        "experimental_supported_tools": [],
        "base_instructions": CODEX_INSTRUCTIONS,
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

/// When a model was released if nobody knows, as Anthropic has it.
const RELEASED: &str = "1970-01-01T00:00:00Z";

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
        "type": "model",
        "display_name": state.words.model_name,
        "created_at": RELEASED,
        "lifecycle": "active",
        "max_input_tokens": context_length,
    })
}
