//! What the requests of all chat APIs go through.

use std::sync::Arc;

use api_types::{ChatRequest, RequestError};
use axum::Json;
use axum::extract::{Request, State as Shared};
use serde_json::{Value, json};

use crate::conversation;
use crate::error::RouterError;
use crate::http::body;
use crate::plan::AnswersPlan;
use crate::state::{State, offload};
use crate::target::Target;

/// From a request to token ids; `parse` knows the API.
pub(super) async fn plan<T: Target>(
    state: &Arc<State<T>>,
    request: Request,
    parse: fn(&[u8]) -> Result<ChatRequest, RequestError>,
) -> Result<AnswersPlan, RouterError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, state.config.max_body_bytes).await?;
    let (state, bytes) = (Arc::clone(state), body.len());
    let plan = move || conversation::plan(&state, parse(&body)?);
    offload(bytes, plan).await?
}

/// Shows what the template makes of a conversation, as llama.cpp's server does.
pub(super) async fn apply_template<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    request: Request,
) -> Result<Json<Value>, RouterError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, state.config.max_body_bytes).await?;
    let bytes = body.len();
    let render = move || conversation::prompt(&state, ChatRequest::from_body(&body)?);
    let prompt = offload(bytes, render).await??;
    Ok(Json(json!({ "prompt": prompt })))
}

/// Tokens of the prompt, as long as it has not been made shorter.
pub(super) fn prompt_tokens(plan: &AnswersPlan) -> u32 {
    let tokens: usize = plan.prompts.iter().map(|(ids, _)| ids.len()).sum();
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
