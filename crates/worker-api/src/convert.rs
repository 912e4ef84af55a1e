//! Domain types to messages and back. A message is foreign input: what it leaves out is an error, not a default.

mod draft;
mod grammar;
mod memory;
mod prefill;
mod prefix_cache;
mod round;
mod speculation;
mod stage;
mod thinking;

use generation::{
    FinishReason, GenerateEvent, GenerateRequest, ModelDescription, Timings, Token, TopToken,
    WorkerStats,
};
use proto::target::v1 as wire;
use sampling::SamplingParams;

use crate::error::WorkerError;
use crate::session::SpeculationDescription;

pub(crate) use draft::{draft_from_proto, draft_stats_from_proto, transports_to_proto};
pub use draft::{
    draft_stats_to_proto, draft_to_proto, session_from_proto, session_to_proto,
    transports_from_proto,
};
pub(crate) use prefill::{
    compress_event_from_proto, compress_request_to_proto, prefill_from_proto,
    prefill_stats_from_proto,
};
pub use prefill::{
    compress_event_to_proto, compress_request_from_proto, prefill_stats_to_proto, prefill_to_proto,
};
pub(crate) use round::round_from_proto;
pub use round::round_to_proto;
pub(crate) use speculation::speculation_from_proto;
pub use stage::{later_stage_from_proto, stage_session_to_proto};
pub(crate) use stage::{later_stage_to_proto, stage_session_from_proto};

pub(crate) fn request_to_proto(request: GenerateRequest) -> wire::GenerateRequest {
    let sampling = request.sampling;
    wire::GenerateRequest {
        request_id: request.request_id,
        prompt: request.prompt,
        max_tokens: request.max_tokens,
        min_tokens: request.min_tokens,
        stop_ids: request.stop_ids,
        sampling: Some(wire::Sampling {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_window: u32::try_from(sampling.repetition_window).unwrap_or(u32::MAX),
            seed: sampling.seed,
            logit_bias: sampling
                .logit_bias
                .into_iter()
                .map(|(token, bias)| wire::LogitBias { token, bias })
                .collect(),
        }),
        logprobs: request.logprobs,
        top_logprobs: request.top_logprobs,
        speculation: request.speculation.map(speculation::config_to_proto),
        history_tokens: request.history_tokens,
        thinking: request.thinking.map(thinking::to_proto),
        grammar: request.grammar.map(grammar::grammar_to_proto),
    }
}

/// A request as the worker takes it; `GenerateRequest::check` says whether its values make sense.
///
/// # Errors
/// The sampling parameters are missing, drafts are to be used in a way that is none, reasoning has no closing mark, or a grammar
/// is empty.
pub fn request_from_proto(request: wire::GenerateRequest) -> Result<GenerateRequest, WorkerError> {
    let sampling = request
        .sampling
        .ok_or_else(|| WorkerError::Invalid("GenerateRequest.sampling is missing".to_owned()))?;
    Ok(GenerateRequest {
        request_id: request.request_id,
        prompt: request.prompt,
        history_tokens: request.history_tokens,
        max_tokens: request.max_tokens,
        min_tokens: request.min_tokens,
        stop_ids: request.stop_ids,
        sampling: SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_window: sampling.repetition_window as usize,
            logit_bias: sampling
                .logit_bias
                .into_iter()
                .map(|entry| (entry.token, entry.bias))
                .collect(),
            seed: sampling.seed,
        },
        logprobs: request.logprobs,
        top_logprobs: request.top_logprobs,
        speculation: request
            .speculation
            .map(|config| speculation::config_from_proto(&config))
            .transpose()?,
        thinking: request.thinking.map(thinking::from_proto).transpose()?,
        grammar: request
            .grammar
            .map(grammar::grammar_from_proto)
            .transpose()?,
    })
}

/// An event as it goes over the wire.
#[must_use]
pub fn event_to_proto(event: GenerateEvent) -> wire::GenerateEvent {
    use wire::generate_event::Event;
    let event = match event {
        GenerateEvent::Started {
            prompt_tokens,
            cached_tokens,
        } => Event::Started(wire::Started {
            prompt_tokens,
            cached_tokens,
        }),
        GenerateEvent::Progress { prompt_tokens } => {
            Event::Progress(wire::Progress { prompt_tokens })
        }
        GenerateEvent::Token(token) => Event::Token(wire::Token {
            id: token.id,
            logprob: token.logprob,
            top: token
                .top
                .into_iter()
                .map(|top| wire::TopToken {
                    id: top.id,
                    logprob: top.logprob,
                })
                .collect(),
        }),
        GenerateEvent::Finished { reason, timings } => Event::Finished(wire::Finished {
            reason: match reason {
                FinishReason::Stop => wire::finished::Reason::Stop,
                FinishReason::Length => wire::finished::Reason::Length,
            }
            .into(),
            timings: Some(wire::Timings {
                prompt_tokens: timings.prompt_tokens,
                prompt_ms: timings.prompt_ms,
                generated_tokens: timings.generated_tokens,
                generated_ms: timings.generated_ms,
                speculation: Some(speculation::timings_to_proto(&timings.speculation)),
            }),
        }),
    };
    wire::GenerateEvent { event: Some(event) }
}

pub(crate) fn event_from_proto(event: wire::GenerateEvent) -> Result<GenerateEvent, WorkerError> {
    use wire::generate_event::Event;
    let event = event
        .event
        .ok_or_else(|| WorkerError::Internal("an event without content".to_owned()))?;
    Ok(match event {
        Event::Started(started) => GenerateEvent::Started {
            prompt_tokens: started.prompt_tokens,
            cached_tokens: started.cached_tokens,
        },
        Event::Progress(wire::Progress { prompt_tokens }) => {
            GenerateEvent::Progress { prompt_tokens }
        }
        Event::Token(token) => GenerateEvent::Token(Token {
            id: token.id,
            logprob: token.logprob,
            top: token
                .top
                .into_iter()
                .map(|top| TopToken {
                    id: top.id,
                    logprob: top.logprob,
                })
                .collect(),
        }),
        Event::Finished(finished) => GenerateEvent::Finished {
            reason: match finished.reason() {
                wire::finished::Reason::Stop => FinishReason::Stop,
                wire::finished::Reason::Length => FinishReason::Length,
                wire::finished::Reason::Unspecified => {
                    let message = format!("finish reason {} is not known", finished.reason);
                    return Err(WorkerError::Internal(message));
                }
            },
            timings: timings_from_proto(&finished.timings.unwrap_or_default()),
        },
    })
}

fn timings_from_proto(timings: &wire::Timings) -> Timings {
    Timings {
        prompt_tokens: timings.prompt_tokens,
        prompt_ms: timings.prompt_ms,
        generated_tokens: timings.generated_tokens,
        generated_ms: timings.generated_ms,
        speculation: speculation::timings_from_proto(&timings.speculation.unwrap_or_default()),
    }
}

/// A description as it goes over the wire.
#[must_use]
pub fn description_to_proto(
    model: &ModelDescription,
    speculation: &SpeculationDescription,
) -> wire::ModelDescription {
    wire::ModelDescription {
        name: model.name.clone(),
        architecture: model.architecture.clone(),
        context_length: model.context_length,
        vocab_size: model.vocab_size,
        max_sequences: model.max_sequences,
        device: model.device.clone(),
        hidden_size: speculation.hidden_size,
        num_layers: speculation.num_layers,
        speculation: speculation.mode.clone(),
        transports: transports_to_proto(&speculation.transports),
    }
}

pub(crate) fn description_from_proto(model: wire::ModelDescription) -> ModelDescription {
    ModelDescription {
        name: model.name,
        architecture: model.architecture,
        context_length: model.context_length,
        vocab_size: model.vocab_size,
        max_sequences: model.max_sequences,
        device: model.device,
    }
}

/// Counters as they go over the wire.
#[must_use]
pub fn stats_to_proto(stats: WorkerStats) -> wire::WorkerStats {
    wire::WorkerStats {
        running_sequences: stats.running_sequences,
        queued_requests: stats.queued_requests,
        prompt_tokens: stats.prompt_tokens,
        generated_tokens: stats.generated_tokens,
        steps: stats.steps,
        finished_requests: stats.finished_requests,
        cancelled_requests: stats.cancelled_requests,
        speculation: Some(speculation::stats_to_proto(stats.speculation)),
        prefix_cache: Some(prefix_cache::stats_to_proto(stats.prefix_cache)),
        memory: Some(memory::memory_to_proto(stats.memory)),
    }
}

pub(crate) fn stats_from_proto(stats: wire::WorkerStats) -> WorkerStats {
    WorkerStats {
        running_sequences: stats.running_sequences,
        queued_requests: stats.queued_requests,
        prompt_tokens: stats.prompt_tokens,
        generated_tokens: stats.generated_tokens,
        steps: stats.steps,
        finished_requests: stats.finished_requests,
        cancelled_requests: stats.cancelled_requests,
        speculation: speculation::stats_from_proto(stats.speculation.unwrap_or_default()),
        prefix_cache: prefix_cache::stats_from_proto(stats.prefix_cache.unwrap_or_default()),
        memory: memory::memory_from_proto(stats.memory.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use generation::{
        DiskCacheStats, Grammar, MemoryStats, PrefixCacheStats, RefusedFiles, SpeculationConfig,
        SpeculationMode, SpeculationTimings, ThinkingLimit,
    };

    use super::*;

    #[test]
    fn requests_come_back_as_they_went() {
        let request = GenerateRequest {
            request_id: "r".to_owned(),
            prompt: vec![1, 2],
            history_tokens: 1,
            max_tokens: 3,
            min_tokens: 1,
            stop_ids: vec![4],
            sampling: SamplingParams {
                temperature: 0.5,
                top_p: 0.9,
                top_k: 5,
                min_p: 0.1,
                repetition_penalty: 1.1,
                presence_penalty: 0.2,
                frequency_penalty: 0.3,
                repetition_window: 64,
                logit_bias: vec![(6, -1.5)],
                seed: u64::MAX,
            },
            logprobs: true,
            top_logprobs: 2,
            speculation: Some(SpeculationConfig {
                mode: SpeculationMode::Tree,
                budget: 7,
            }),
            thinking: Some(ThinkingLimit {
                budget: Some(8),
                starts_inside: true,
                open_id: Some(9),
                close_id: 10,
                terminator: vec![11, 10],
                blank_ids: vec![12],
            }),
            grammar: Some(Grammar::Regex("a+".to_owned())),
        };
        let back = request_from_proto(request_to_proto(request.clone())).unwrap();
        assert_eq!(back, request);
    }

    #[test]
    fn events_come_back_as_they_went() {
        let top = vec![TopToken {
            id: 8,
            logprob: -0.5,
        }];
        let events = [
            GenerateEvent::Started {
                prompt_tokens: 4,
                cached_tokens: 2,
            },
            GenerateEvent::Progress { prompt_tokens: 3 },
            GenerateEvent::Token(Token {
                id: 7,
                logprob: -0.25,
                top,
            }),
            GenerateEvent::Finished {
                reason: FinishReason::Length,
                timings: Timings {
                    prompt_tokens: 4,
                    prompt_ms: 1.5,
                    generated_tokens: 9,
                    generated_ms: 2.5,
                    speculation: SpeculationTimings {
                        rounds: 3,
                        draft_tokens: 30,
                        accepted_tokens: 7,
                        draft_ms: 0.5,
                        channel_ms: 0.25,
                        tree_ms: 0.125,
                        verify_ms: 4.0,
                        commit_ms: 0.75,
                    },
                },
            },
        ];
        for event in events {
            assert_eq!(
                event_from_proto(event_to_proto(event.clone())).unwrap(),
                event
            );
        }
    }

    #[test]
    fn counters_come_back_as_they_went() {
        let stats = WorkerStats {
            running_sequences: 1,
            queued_requests: 2,
            prompt_tokens: 3,
            generated_tokens: 4,
            steps: 5,
            finished_requests: 6,
            cancelled_requests: 7,
            memory: MemoryStats {
                resident_bytes: Some(1 << 30),
                device_free_bytes: None,
            },
            prefix_cache: PrefixCacheStats {
                hits: 8,
                reused_tokens: 9,
                evictions: 10,
                prefixes: 11,
                bytes: 12,
                disk: DiskCacheStats {
                    hits: 13,
                    loaded: 14,
                    loaded_bytes: 15,
                    load_us: 16,
                    saved: 17,
                    saved_bytes: 18,
                    save_us: 19,
                    dropped: 20,
                    evictions: 21,
                    refused: RefusedFiles {
                        damaged: 22,
                        version: 23,
                        foreign: 24,
                        missing: 25,
                        unreadable: 26,
                        unknown: 27,
                    },
                    prefixes: 28,
                    bytes: 29,
                },
            },
            ..WorkerStats::default()
        };
        assert_eq!(stats_from_proto(stats_to_proto(stats.clone())), stats);
    }

    #[test]
    fn empty_messages_are_errors() {
        assert!(request_from_proto(wire::GenerateRequest::default()).is_err());
        let no_mode = wire::GenerateRequest {
            sampling: Some(wire::Sampling::default()),
            speculation: Some(wire::Speculation::default()),
            ..wire::GenerateRequest::default()
        };
        assert!(request_from_proto(no_mode).is_err());
        let no_close = wire::GenerateRequest {
            sampling: Some(wire::Sampling::default()),
            thinking: Some(wire::Thinking::default()),
            ..wire::GenerateRequest::default()
        };
        assert!(request_from_proto(no_close).is_err());
        let no_grammar = wire::GenerateRequest {
            sampling: Some(wire::Sampling::default()),
            grammar: Some(wire::Grammar::default()),
            ..wire::GenerateRequest::default()
        };
        assert!(request_from_proto(no_grammar).is_err());
        assert!(event_from_proto(wire::GenerateEvent::default()).is_err());
    }
}
