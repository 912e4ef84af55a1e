//! How the set is doing, for people: one JSON object that tells no prompt and no answer.

use std::time::Duration;

use generation::{
    MemoryStats, ModelDescription, PrefixCacheStats, RoundReport, SpeculationStats, WorkerStats,
};
use serde_json::{Value, json};
use tokenizer::Tokenizer;
use worker_api::{SpeculationDescription, WorkerError};

use crate::drafts::DraftState;
use crate::state::{State, unix_seconds};
use crate::target::Target;

/// A worker that does not say how it is for this long is not there.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the set is doing now. What only a worker knows is null while it does not answer.
pub(crate) async fn status<T: Target>(state: &State<T>) -> Value {
    let (target, draft_stats, prefill) = tokio::join!(
        tokio::time::timeout(PATIENCE, ask_target(state)),
        tokio::time::timeout(PATIENCE, state.draft.stats()),
        tokio::time::timeout(PATIENCE, state.compressor.worker()),
    );
    let draft_memory = draft_stats.ok().flatten().map(|stats| memory(stats.memory));
    let silent = || Err("it does not answer".to_owned());
    let target = target.map_or_else(|_| silent(), |told| told.map_err(|error| error.to_string()));
    let stats = target.as_ref().ok().map(|told| &told.stats);
    let config = &state.config;
    json!({
        "model": state.words.model_name,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": unix_seconds().saturating_sub(state.created),
        "state": condition(state, &target),
        "shows_text": config.status_text,
        "target": target_report(&target),
        "draft": draft(state.draft.get(), draft_memory),
        "prefill": match prefill {
            Ok(None) => Value::Null,
            Ok(Some(Ok((description, stats)))) => json!({
                "state": "ready",
                "model": description.name,
                "device": description.device,
                "is_resident": stats.is_resident,
                "queued": stats.queued_requests,
                "prompts": stats.finished_requests,
                "tokens_in": stats.tokens_in,
                "tokens_out": stats.tokens_out,
                "score_seconds": seconds(stats.score_us),
                "memory": memory(stats.memory),
            }),
            Ok(Some(Err(error))) => json!({ "state": "waiting", "reason": error.to_string() }),
            Err(_) => json!({ "state": "waiting", "reason": "it does not answer" }),
        },
        "requests": {
            "max_in_flight": config.max_in_flight,
            "in_flight": config.max_in_flight - state.permits.available_permits(),
            "slots": target.as_ref().ok().map(|told| told.model.max_sequences),
            "running": stats.map(|stats| stats.running_sequences),
            "queued": stats.map(|stats| stats.queued_requests),
            "finished": stats.map(|stats| stats.finished_requests),
            "cancelled": stats.map(|stats| stats.cancelled_requests),
        },
        "tokens": {
            "prompt": stats.map(|stats| stats.prompt_tokens),
            "generated": stats.map(|stats| stats.generated_tokens),
            "steps": stats.map(|stats| stats.steps),
        },
        "speculation": stats.map(|stats| speculation(&stats.speculation)),
        "prefix_cache": stats.map(|stats| prefix_cache(&stats.prefix_cache)),
        "compression": {
            "mode": config.compression.mode.to_string(),
            "threshold": config.compression.threshold,
            "keep": config.compression.keep.to_string(),
            "trouble": state.compressor.trouble(),
        },
    })
}

/// What the target told.
struct Told {
    model: ModelDescription,
    speculates: SpeculationDescription,
    stats: WorkerStats,
}

async fn ask_target<T: Target>(state: &State<T>) -> Result<Told, WorkerError> {
    let target = &state.target;
    let (model, speculates, stats) =
        tokio::try_join!(target.describe(), target.speculation(), target.stats())?;
    Ok(Told {
        model,
        speculates,
        stats,
    })
}

fn condition<T: Target>(state: &State<T>, target: &Result<Told, String>) -> &'static str {
    match target {
        _ if state.shutdown.is_cancelled() => "draining",
        Ok(_) => "ready",
        Err(_) => "loading",
    }
}

fn target_report(target: &Result<Told, String>) -> Value {
    match target {
        Ok(Told {
            model,
            speculates,
            stats,
        }) => json!({
            "state": "ready",
            "model": model.name,
            "architecture": model.architecture,
            "device": model.device,
            "n_ctx": model.context_length,
            "layers": speculates.num_layers,
            "speculation": speculates.mode,
            "memory": memory(stats.memory),
        }),
        Err(reason) => json!({ "state": "waiting", "reason": reason }),
    }
}

/// Null where none is configured.
fn draft(state: DraftState, memory: Option<Value>) -> Value {
    match state {
        DraftState::Unwanted => Value::Null,
        DraftState::Waiting { reason } => json!({ "state": "waiting", "reason": reason }),
        DraftState::Attached(session) => json!({
            "state": "ready",
            "model": session.draft.name,
            "architecture": session.draft.architecture,
            "device": session.draft.device,
            "transport": session.transport().to_string(),
            "block_size": session.draft.block_size,
            "memory": memory,
        }),
    }
}

/// Null where it is not known.
fn memory(memory: MemoryStats) -> Value {
    json!({
        "resident_bytes": memory.resident_bytes,
        "device_free_bytes": memory.device_free_bytes,
    })
}

fn speculation(stats: &SpeculationStats) -> Value {
    json!({
        "draft_attached": stats.draft_attached,
        "drafts_lost": stats.drafts_lost,
        "draft_timeouts": stats.draft_timeouts,
        "rounds": stats.rounds,
        "plain_tokens": stats.plain_tokens,
        "draft_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "rounds_by_accepted": stats.rounds_by_accepted,
        "stage_seconds": {
            "draft": seconds(stats.draft_us),
            "channel": seconds(stats.channel_us),
            "tree": seconds(stats.tree_us),
            "verify": seconds(stats.verify_us),
            "commit": seconds(stats.commit_us),
        },
        "lossless": {
            "checked_tokens": stats.checked_tokens,
            "mismatches": stats.mismatched_tokens,
        },
    })
}

fn prefix_cache(stats: &PrefixCacheStats) -> Value {
    json!({
        "hits": stats.hits,
        "reused_tokens": stats.reused_tokens,
        "prefixes": stats.prefixes,
        "bytes": stats.bytes,
        "evictions": stats.evictions,
        "disk": {
            "hits": stats.disk.hits,
            "prefixes": stats.disk.prefixes,
            "bytes": stats.disk.bytes,
        },
    })
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// A round for the live view. Its tokens are text of a request, ids as much as words: they are there with `tokenizer` only.
pub(crate) fn round(report: &RoundReport, tokenizer: Option<&Tokenizer>) -> Value {
    let token = |id: u32| tokenizer.map(|tokenizer| shown(tokenizer, id));
    let nodes = report.tokens.iter().zip(&report.parents);
    let nodes = nodes.zip(&report.log_probs);
    let nodes: Vec<Value> = nodes
        .map(|((&id, &parent), log_prob)| {
            json!({
                "text": token(id),
                "parent": parent,
                // Of everything from the root to here.
                "probability": f64::from(*log_prob).exp(),
            })
        })
        .collect();
    let stages = &report.stages;
    json!({
        "sequence": report.sequence,
        "position": report.position,
        "anchor": token(report.anchor),
        "nodes": nodes,
        "accepted": report.accepted,
        "chosen": report.chosen.iter().map(|&id| token(id)).collect::<Vec<_>>(),
        "step_sequences": report.step_sequences,
        "ms": {
            "draft": ms(stages.draft_us),
            "channel": ms(stages.channel_us),
            "tree": ms(stages.tree_us),
            "verify": ms(stages.verify_us),
            "commit": ms(stages.commit_us),
        },
    })
}

/// A token by itself may be a piece of a character.
fn shown(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id, true).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}
