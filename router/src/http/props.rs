//! What is served, and how.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use serde_json::{Value, json};

use crate::drafts::DraftState;
use crate::http::health::PATIENCE;
use crate::state::State;
use crate::target::Target;

/// The settings in force. What only the target knows is null while it does not answer.
pub(super) async fn props<T: Target>(Shared(state): Shared<Arc<State<T>>>) -> Json<Value> {
    let model = tokio::time::timeout(PATIENCE, state.description()).await;
    let model = model.ok().and_then(Result::ok);
    let stats = tokio::time::timeout(PATIENCE, state.target.stats()).await;
    let stats = stats.ok().and_then(Result::ok);
    let stats = stats.as_ref();
    let speculation = tokio::time::timeout(PATIENCE, state.target.speculation()).await;
    let speculation = speculation.ok().and_then(Result::ok);
    let (config, words) = (&state.config, &state.words);
    let (defaults, compression) = (&config.defaults, &config.compression);
    let n_ctx = model.map(|model| model.context_length);
    Json(json!({
        "model": words.model_name,
        "model_alias": words.model_name,
        "model_file": words.file_stem,
        "architecture": model.map(|model| &model.architecture),
        "device": model.map(|model| &model.device),
        "n_ctx": n_ctx,
        "vocab_size": words.tokenizer.vocab_size(),
        "total_slots": model.map(|model| model.max_sequences),
        "is_sleeping": false,
        "build_info": concat!("tandem ", env!("CARGO_PKG_VERSION")),
        "chat_template": words.template_source,
        "chat_template_kwargs": config.template_kwargs,
        "bos_token": words.bos(),
        "eos_token": words.eos(),
        "queue": {
            "max_in_flight": config.max_in_flight,
            "in_flight": config.max_in_flight - state.permits.available_permits(),
            "running": stats.map(|stats| stats.running_sequences),
            "queued": stats.map(|stats| stats.queued_requests),
        },
        "speculative": {
            "mode": speculation.map(|speculation| speculation.mode),
            "draft": draft(state.draft.get()),
        },
        "compression": {
            "mode": compression.mode.to_string(),
            "threshold": compression.threshold,
            "keep": compression.keep.to_string(),
            "hot_window": compression.rules.hot_window,
            "message_threshold": compression.rules.message_tokens,
            "trouble": state.compressor.trouble(),
        },
        "limits": { "max_body_bytes": config.max_body_bytes },
        "default_generation_settings": {
            "n_ctx": n_ctx,
            "max_tokens": defaults.max_tokens,
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
            "repetition_window": defaults.repetition_window,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": "random",
        },
    }))
}

/// Null where none is configured.
fn draft(state: DraftState) -> Value {
    match state {
        DraftState::Unwanted => Value::Null,
        DraftState::Waiting { reason } => json!({ "state": "waiting", "reason": reason }),
        DraftState::Attached(session) => json!({
            "state": "attached",
            "model": session.draft.name,
            "architecture": session.draft.architecture,
            "transport": session.transport().to_string(),
            "block_size": session.draft.block_size,
            "capture_layers": session.draft.capture_layers,
            "n_ctx": session.draft.context_length,
            "max_top_k": session.draft.max_top_k,
            "device": session.draft.device,
        }),
    }
}
