//! What an answer took, as the API tells it.

use api_types::{
    CompletionTokensDetails, FinishDetails, PromptTokensDetails, SpeculationReport,
    SpeculationStages, Timings, Usage,
};
use generation::{CloseKind, SpeculationTimings};

use crate::answer::Tally;
use crate::answers::Answers;

/// Names the program that answers.
pub(super) const FINGERPRINT: &str = concat!("tandem-", env!("CARGO_PKG_VERSION"));

pub(super) fn usage(answers: &Answers) -> Usage {
    let (prompt_tokens, tally) = (answers.prompt_tokens(), answers.total());
    Usage {
        prompt_tokens,
        completion_tokens: tally.completion_tokens,
        total_tokens: prompt_tokens.saturating_add(tally.completion_tokens),
        prompt_tokens_details: PromptTokensDetails {
            cached_tokens: tally.cached_tokens,
        },
        completion_tokens_details: CompletionTokensDetails {
            reasoning_tokens: tally.reasoning_tokens,
        },
        compression: answers.compression().cloned(),
    }
}

pub(super) fn timings(tally: Tally) -> Timings {
    let timings = tally.timings;
    // The first token belongs to the prompt's time.
    let steps = timings.generated_tokens.saturating_sub(1);
    Timings {
        cache_n: tally.cached_tokens,
        prompt_n: timings.prompt_tokens,
        prompt_ms: timings.prompt_ms,
        prompt_per_second: per_second(timings.prompt_tokens, timings.prompt_ms),
        predicted_n: timings.generated_tokens,
        predicted_ms: timings.generated_ms,
        predicted_per_second: per_second(steps, timings.generated_ms),
        speculation: speculation(&timings.speculation),
    }
}

/// Nothing where there was no round, as llama.cpp's server has it.
fn speculation(timings: &SpeculationTimings) -> Option<SpeculationReport> {
    let rounds = timings.rounds;
    (rounds > 0).then(|| SpeculationReport {
        draft_n: timings.draft_tokens,
        draft_n_accepted: timings.accepted_tokens,
        speculation: SpeculationStages {
            rounds,
            acceptance_length: 1.0 + f64::from(timings.accepted_tokens) / f64::from(rounds),
            draft_ms: timings.draft_ms,
            channel_ms: timings.channel_ms,
            tree_ms: timings.tree_ms,
            verify_ms: timings.verify_ms,
            commit_ms: timings.commit_ms,
        },
    })
}

/// The reason as the API spells it.
pub(super) fn finish_reason(reason: generation::FinishReason) -> &'static str {
    match reason {
        generation::FinishReason::Stop => "stop",
        generation::FinishReason::Length => "length",
    }
}

/// How an answer and its reasoning ended.
pub(super) fn finish_details(tally: &Tally) -> FinishDetails {
    FinishDetails {
        close_kind: tally.close.map(|close| match close {
            CloseKind::Natural => "natural",
            CloseKind::Hard => "hard",
        }),
        thinking_tokens: tally.reasoning_tokens,
        content_tokens: tally
            .completion_tokens
            .saturating_sub(tally.reasoning_tokens),
        total_tokens: tally.completion_tokens,
        degenerate_decode: tally.is_degenerate,
    }
}

fn per_second(count: u32, ms: f64) -> f64 {
    if ms > 0.0 {
        f64::from(count) * 1e3 / ms
    } else {
        0.0
    }
}
