//! Prompts to be compressed, and what comes of them.

use std::ops::Range;
use std::time::Duration;

use proto::prefill::v1 as wire;
use proto::prefill::v1::compress_event::Event;
use proto::prefill::v1::progress::Phase;

use crate::convert::memory::{memory_from_proto, memory_to_proto};
use crate::error::WorkerError;
use crate::prefill::{
    CompressEvent, CompressPhase, CompressProgress, CompressRequest, CompressTimings, Compression,
    PrefillDescription, PrefillStats,
};

/// A description as it goes over the wire.
#[must_use]
pub fn prefill_to_proto(prefill: &PrefillDescription) -> wire::PrefillDescription {
    wire::PrefillDescription {
        name: prefill.name.clone(),
        architecture: prefill.architecture.clone(),
        context_length: prefill.context_length,
        vocab_size: prefill.vocab_size,
        token_list: prefill.token_list.map_or_else(Vec::new, Vec::from),
        device: prefill.device.clone(),
        is_resident: prefill.is_resident,
    }
}

pub(crate) fn prefill_from_proto(
    prefill: wire::PrefillDescription,
) -> Result<PrefillDescription, WorkerError> {
    let token_list = if prefill.token_list.is_empty() {
        None
    } else {
        let list = prefill.token_list.try_into().map_err(|list: Vec<u8>| {
            invalid(format!(
                "PrefillDescription.token_list has {} bytes, expected 32",
                list.len()
            ))
        })?;
        Some(list)
    };
    Ok(PrefillDescription {
        name: prefill.name,
        architecture: prefill.architecture,
        context_length: prefill.context_length,
        vocab_size: prefill.vocab_size,
        token_list,
        device: prefill.device,
        is_resident: prefill.is_resident,
    })
}

pub(crate) fn compress_request_to_proto(
    request: CompressRequest,
) -> Result<wire::CompressRequest, WorkerError> {
    Ok(wire::CompressRequest {
        request_id: request.request_id,
        tokens: request.tokens,
        keep_ratio: request.keep_ratio,
        protected: spans_to_proto(&request.protected)?,
        within_budget: request.within_budget,
        chunk_scores: request.chunk_scores,
    })
}

/// A request as the worker takes it.
///
/// # Errors
/// The ratio is none, or a protected span is none of the prompt.
pub fn compress_request_from_proto(
    request: wire::CompressRequest,
) -> Result<CompressRequest, WorkerError> {
    if !(request.keep_ratio > 0.0 && request.keep_ratio <= 1.0) {
        return Err(invalid(format!(
            "keep_ratio is {}, expected above 0 and up to 1",
            request.keep_ratio
        )));
    }
    let protected = spans_from_proto(&request.protected, request.tokens.len())
        .map_err(|why| invalid(format!("protected: {why}")))?;
    Ok(CompressRequest {
        request_id: request.request_id,
        tokens: request.tokens,
        keep_ratio: request.keep_ratio,
        protected,
        within_budget: request.within_budget,
        chunk_scores: request.chunk_scores,
    })
}

/// An event as it goes over the wire.
///
/// # Errors
/// A position that the wire has no room for.
pub fn compress_event_to_proto(event: &CompressEvent) -> Result<wire::CompressEvent, WorkerError> {
    let event = match event {
        CompressEvent::Progress(progress) => {
            let phase = match progress.phase {
                CompressPhase::Waiting => Phase::Waiting,
                CompressPhase::Loading => Phase::Loading,
                CompressPhase::Scoring => Phase::Scoring,
            };
            Event::Progress(wire::Progress {
                phase: phase.into(),
                done: progress.done,
                total: progress.total,
            })
        }
        CompressEvent::Finished(compression) => Event::Compression(wire::Compression {
            kept: spans_to_proto(&compression.kept)?,
            tokens_in: position(compression.tokens_in)?,
            tokens_out: position(compression.tokens_out)?,
            timings: Some(timings_to_proto(&compression.timings)),
            chunk_scores: compression.chunk_scores.clone(),
        }),
    };
    Ok(wire::CompressEvent { event: Some(event) })
}

pub(crate) fn compress_event_from_proto(
    event: wire::CompressEvent,
) -> Result<CompressEvent, WorkerError> {
    let missing = |field: &str| invalid(format!("{field} is missing"));
    match event.event.ok_or_else(|| missing("CompressEvent.event"))? {
        Event::Progress(progress) => {
            let phase = match progress.phase() {
                Phase::Unspecified => return Err(missing("Progress.phase")),
                Phase::Waiting => CompressPhase::Waiting,
                Phase::Loading => CompressPhase::Loading,
                Phase::Scoring => CompressPhase::Scoring,
            };
            Ok(CompressEvent::Progress(CompressProgress {
                phase,
                done: progress.done,
                total: progress.total,
            }))
        }
        Event::Compression(compression) => {
            let timings = compression.timings;
            let timings = timings.ok_or_else(|| missing("Compression.timings"))?;
            finished(compression, timings_from_proto(&timings))
        }
    }
}

/// What is kept is a part of the prompt, in order, as long as it says.
fn finished(
    compression: wire::Compression,
    timings: CompressTimings,
) -> Result<CompressEvent, WorkerError> {
    let (tokens_in, tokens_out) = (
        compression.tokens_in as usize,
        compression.tokens_out as usize,
    );
    let kept = spans_from_proto(&compression.kept, tokens_in)
        .map_err(|why| invalid(format!("Compression.kept: {why}")))?;
    let in_order = kept.windows(2).all(|pair| pair[0].end < pair[1].start);
    let kept_tokens: usize = kept.iter().map(Range::len).sum();
    if !in_order || kept_tokens != tokens_out {
        return Err(invalid(format!(
            "Compression.kept: {kept:?} are not {tokens_out} tokens in order"
        )));
    }
    Ok(CompressEvent::Finished(Compression {
        kept,
        tokens_in,
        tokens_out,
        timings,
        chunk_scores: compression.chunk_scores,
    }))
}

/// Counters as they go over the wire.
#[must_use]
pub fn prefill_stats_to_proto(stats: PrefillStats) -> wire::PrefillStats {
    wire::PrefillStats {
        queued_requests: stats.queued_requests,
        is_resident: stats.is_resident,
        finished_requests: stats.finished_requests,
        cancelled_requests: stats.cancelled_requests,
        failed_requests: stats.failed_requests,
        tokens_in: stats.tokens_in,
        tokens_out: stats.tokens_out,
        loads: stats.loads,
        parks: stats.parks,
        load_us: stats.load_us,
        score_us: stats.score_us,
        select_us: stats.select_us,
        park_us: stats.park_us,
        memory: Some(memory_to_proto(stats.memory)),
    }
}

pub(crate) fn prefill_stats_from_proto(stats: wire::PrefillStats) -> PrefillStats {
    PrefillStats {
        queued_requests: stats.queued_requests,
        is_resident: stats.is_resident,
        finished_requests: stats.finished_requests,
        cancelled_requests: stats.cancelled_requests,
        failed_requests: stats.failed_requests,
        tokens_in: stats.tokens_in,
        tokens_out: stats.tokens_out,
        loads: stats.loads,
        parks: stats.parks,
        load_us: stats.load_us,
        score_us: stats.score_us,
        select_us: stats.select_us,
        park_us: stats.park_us,
        memory: memory_from_proto(stats.memory.unwrap_or_default()),
    }
}

fn invalid(why: String) -> WorkerError {
    WorkerError::Invalid(why)
}

fn position(position: usize) -> Result<u32, WorkerError> {
    let wide = |_| invalid(format!("position {position} is past the last one there is"));
    u32::try_from(position).map_err(wide)
}

fn spans_to_proto(spans: &[Range<usize>]) -> Result<Vec<wire::Span>, WorkerError> {
    let span = |span: &Range<usize>| {
        Ok(wire::Span {
            start: position(span.start)?,
            end: position(span.end)?,
        })
    };
    spans.iter().map(span).collect()
}

/// Spans of `len` tokens, none empty.
fn spans_from_proto(spans: &[wire::Span], len: usize) -> Result<Vec<Range<usize>>, String> {
    let span = |span: &wire::Span| {
        let range = span.start as usize..span.end as usize;
        if range.is_empty() || range.end > len {
            return Err(format!("{range:?} is no span of {len} tokens"));
        }
        Ok(range)
    };
    spans.iter().map(span).collect()
}

fn timings_to_proto(timings: &CompressTimings) -> wire::Timings {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    wire::Timings {
        wait_ms: ms(timings.wait),
        load_ms: ms(timings.load),
        score_ms: ms(timings.score),
        select_ms: ms(timings.select),
        park_ms: ms(timings.park),
    }
}

fn timings_from_proto(timings: &wire::Timings) -> CompressTimings {
    // What is no time counts as none.
    let time = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
    CompressTimings {
        wait: time(timings.wait_ms),
        load: time(timings.load_ms),
        score: time(timings.score_ms),
        select: time(timings.select_ms),
        park: time(timings.park_ms),
    }
}

#[cfg(test)]
mod tests;
