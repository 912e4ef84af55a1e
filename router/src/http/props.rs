//! What is served, and how.

use std::sync::Arc;

use api_types::Effort;
use axum::Json;
use axum::extract::State as Shared;
use sampling::SamplingParams;
use serde_json::{Map, Value, json};

use crate::config::{DefaultThinking, RouterConfig};
use crate::drafts::DraftState;
use crate::http::health::PATIENCE;
use crate::policy::Policy;
use crate::state::State;
use crate::target::Target;
use crate::thinking::{Marks, ThinkingRules};

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
    let compression = &config.compression;
    let n_ctx = model.map(|model| model.context_length);
    let mut props = json!({
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
        "speculative_mode": speculation.as_ref().map(|speculation| &speculation.mode),
        "speculative": {
            "mode": speculation.as_ref().map(|speculation| &speculation.mode),
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
    });
    let policy = &state.policy;
    // Apart from the rest, for the macro has its limits.
    for (key, value) in [
        ("limits", limits(config)),
        ("server", server(config)),
        ("model_card", json!(policy.card)),
        ("reasoning", reasoning(config.thinking, policy, n_ctx)),
        ("budget_envelope", budget_envelope(&policy.rules, n_ctx)),
        ("sampling", sampling(&policy.sampling).into()),
        (
            "default_generation_settings",
            default_settings(policy, n_ctx),
        ),
    ] {
        props[key] = value;
    }
    Json(props)
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

fn limits(config: &RouterConfig) -> Value {
    let times = &config.times;
    json!({
        "max_body_bytes": config.max_body_bytes,
        "header_timeout_seconds": times.header.as_secs(),
        "body_timeout_seconds": times.body.as_secs(),
        "queue_timeout_seconds": times.queue.as_secs(),
        "first_token_timeout_seconds": times.first_token.as_secs(),
        "token_timeout_seconds": times.between_tokens.as_secs(),
        "request_timeout_seconds": times.request.as_secs(),
    })
}

/// Who may call.
fn server(config: &RouterConfig) -> Value {
    json!({
        "needs_key": !config.keys.is_empty(),
        "open_metrics": config.open_metrics,
        "cors": config.cors,
    })
}

/// What is known of reasoning, and how much of it each effort allows.
fn reasoning(default: DefaultThinking, policy: &Policy, n_ctx: Option<u32>) -> Value {
    let context = n_ctx.unwrap_or(u32::MAX);
    let tier = |effort: Effort| {
        let tokens = policy.rules.tier(effort, context);
        (effort.name().to_owned(), tokens.into())
    };
    let tiers: Map<String, Value> = Effort::ALL.map(tier).into_iter().collect();
    let marks = policy.marks.as_ref();
    json!({
        "default": default,
        "can_be_bounded": marks.is_some(),
        "terminator_tokens": marks.map(Marks::terminator_tokens),
        "effort_tiers": tiers,
    })
}

/// How long answers and their reasoning may be, and who says so.
fn budget_envelope(rules: &ThinkingRules, n_ctx: Option<u32>) -> Value {
    json!({
        "default_max_tokens": rules.default_max_tokens,
        // Longer answers are cut to it.
        "max_tokens_cap": rules.max_tokens_cap,
        "think_max_tokens": rules.think_max_tokens,
        "hard_limit_reply_budget": rules.reply_budget,
        "n_ctx": n_ctx,
        "source": rules.source.name(),
    })
}

/// How tokens are chosen where a request says nothing.
fn sampling(params: &SamplingParams) -> Map<String, Value> {
    let settings = json!({
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "repetition_window": params.repetition_window,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "seed": "random",
    });
    match settings {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The same in one place, as llama.cpp's server has it.
fn default_settings(policy: &Policy, n_ctx: Option<u32>) -> Value {
    let mut settings = sampling(&policy.sampling);
    settings.insert("n_ctx".to_owned(), json!(n_ctx));
    let max_tokens = policy.rules.default_max_tokens;
    let max_tokens = n_ctx.map_or(max_tokens, |context| max_tokens.min(context));
    settings.insert("max_tokens".to_owned(), max_tokens.into());
    settings.into()
}
