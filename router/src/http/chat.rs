//! Chat completions.

use std::sync::Arc;
use std::time::Duration;

use api_types::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs, ChatMessage,
    ChatRequest, CompressionReport, FinishDetails, FunctionCall, PromptProgress, ReasoningDetail,
    ToolCall, ToolCallDelta,
};
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use generation::FinishReason;
use serde_json::{Value, json};

use crate::answer::{CallDelta, Piece, Tally};
use crate::answers::{Answers, admit};
use crate::error::RouterError;
use crate::http::logprobs::chat_logprobs;
use crate::http::sse::{Part, Source};
use crate::http::usage::{FINGERPRINT, finish_details, finish_reason, timings, usage};
use crate::http::{conversation, error, sse};
use crate::logprob::TokenLogprob;
use crate::progress::{Progress, Stage};
use crate::random;
use crate::record::RequestRecord;
use crate::state::{State, unix_seconds};
use crate::target::Target;

/// How much was left of a prompt, where that is known before the answer.
const COMPRESSION: HeaderName = HeaderName::from_static("x-tandem-compression");

/// Answers a conversation.
pub(super) async fn complete<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    request: Request,
) -> Result<Response, RouterError> {
    let plan = conversation::plan(&state, request, ChatRequest::from_body).await?;
    let options = plan.options.clone();
    let shape = Shape {
        id: random::name("chatcmpl-"),
        created: unix_seconds(),
        model: state.words.model_name.clone(),
        choices: options.n as usize,
        reasoning: plan.prompts.iter().any(|(_, p)| p.reasoning.is_some()),
        thinking: plan.thinking.is_given(),
        logprobs: plan.top_logprobs.is_some(),
        include_usage: options.include_usage,
        return_progress: options.return_progress,
    };
    let progress = Progress::default();
    if options.stream {
        let source = Source::begin(&state, plan, record, &progress).await?;
        let compression = match &source {
            Source::Running(answers) => answers.compression().and_then(in_header),
            Source::Coming(_) => None,
        };
        let response = sse::response(source, shape, progress, state.config.keep_alive);
        return Ok(with_compression(response, compression));
    }
    let held = admit(&state, &plan)?;
    let mut answers = Answers::start(&state, plan, held, record, &progress).await?;
    let whole = answers.complete().await?;
    let compression = answers.compression().and_then(in_header);
    let response = Json(shape.whole(whole, &answers)).into_response();
    Ok(with_compression(response, compression))
}

/// Counts the tokens of a conversation, which needs no target.
pub(super) async fn count_tokens<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    request: Request,
) -> Result<Json<Value>, RouterError> {
    let plan = conversation::plan(&state, request, ChatRequest::from_body).await?;
    let input_tokens = conversation::prompt_tokens(&plan);
    Ok(Json(json!({
        "object": "response.input_tokens",
        "input_tokens": input_tokens,
    })))
}

fn with_compression(mut response: Response, told: Option<HeaderValue>) -> Response {
    if let Some(told) = told {
        response.headers_mut().insert(COMPRESSION, told);
    }
    response
}

fn in_header(report: &CompressionReport) -> Option<HeaderValue> {
    let CompressionReport {
        scope,
        original_tokens,
        kept_tokens,
        ..
    } = report;
    let text = format!("scope={scope}; original={original_tokens}; kept={kept_tokens}");
    HeaderValue::from_str(&text).ok()
}

/// What is the same in all parts of an answer.
struct Shape {
    id: String,
    created: u64,
    model: String,
    /// How many answers are made.
    choices: usize,
    reasoning: bool,
    /// Whether the request says something of reasoning.
    thinking: bool,
    logprobs: bool,
    include_usage: bool,
    return_progress: bool,
}

impl Shape {
    fn whole(&self, whole: Vec<(Piece, FinishReason)>, answers: &Answers) -> ChatCompletion {
        let choices = whole.into_iter().enumerate();
        let choices = choices.map(|(index, (piece, reason))| ChatChoice {
            index,
            logprobs: self.logprobs.then(|| logprobs(&piece.logprobs)),
            finish_reason: ended(reason, answers.tally(index)),
            finish_details: self.finish_details(&answers.tally(index)),
            message: self.message(piece),
        });
        ChatCompletion {
            choices: choices.collect(),
            id: self.id.clone(),
            object: "chat.completion",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: FINGERPRINT.to_owned(),
            usage: usage(answers),
            timings: timings(answers.total()),
        }
    }

    fn message(&self, piece: Piece) -> ChatMessage {
        let thoughts = Some(piece.reasoning).filter(|text| self.reasoning && !text.is_empty());
        let details = thoughts.iter().map(|text| ReasoningDetail {
            kind: "reasoning.text",
            text: text.clone(),
        });
        let calls = piece.calls.into_iter().filter_map(|call| {
            let start = call.start?;
            Some(ToolCall {
                id: start.id,
                kind: "function",
                function: FunctionCall {
                    name: Some(start.name),
                    arguments: call.arguments,
                },
            })
        });
        let tool_calls: Vec<ToolCall> = calls.collect();
        let only_calls = piece.content.is_empty() && !tool_calls.is_empty();
        ChatMessage {
            role: "assistant",
            content: (!only_calls).then_some(piece.content),
            reasoning_details: details.collect(),
            reasoning: thoughts.clone(),
            reasoning_content: thoughts,
            tool_calls,
            refusal: None,
        }
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: FINGERPRINT.to_owned(),
            choices,
            usage: None,
            timings: None,
            prompt_progress: None,
        }
    }

    fn delta(&self, index: usize, delta: ChatDelta) -> ChatChunk {
        self.chunk(vec![ChatChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            finish_details: None,
        }])
    }

    fn finish_details(&self, tally: &Tally) -> Option<FinishDetails> {
        self.thinking.then(|| finish_details(tally))
    }
}

impl sse::Parts for Shape {
    fn opening(&mut self) -> Vec<Part> {
        let opening = |index| {
            let delta = ChatDelta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..ChatDelta::default()
            };
            Part::data(&self.delta(index, delta))
        };
        (0..self.choices).map(opening).collect()
    }

    fn piece(&mut self, index: usize, piece: Piece, tally: Tally) -> Vec<Part> {
        let mut parts = Vec::new();
        if !piece.reasoning.is_empty() {
            let delta = ChatDelta {
                reasoning: Some(piece.reasoning.clone()),
                reasoning_content: Some(piece.reasoning),
                ..ChatDelta::default()
            };
            parts.push(self.delta(index, delta));
        }
        // The entries go with the text that they are of, or with the calls.
        let only_entries = piece.calls.is_empty() && !piece.logprobs.is_empty();
        if !piece.content.is_empty() || only_entries {
            let delta = ChatDelta {
                content: Some(piece.content),
                ..ChatDelta::default()
            };
            parts.push(self.delta(index, delta));
        }
        for delta in piece.calls.into_iter().flat_map(call_deltas) {
            let delta = ChatDelta {
                tool_calls: vec![delta],
                ..ChatDelta::default()
            };
            parts.push(self.delta(index, delta));
        }
        if !piece.logprobs.is_empty()
            && let Some(last) = parts.last_mut()
        {
            last.choices[0].logprobs = self.logprobs.then(|| logprobs(&piece.logprobs));
        }
        if let Some(reason) = piece.finish {
            let mut part = self.delta(index, ChatDelta::default());
            part.choices[0].finish_reason = Some(ended(reason, tally));
            part.choices[0].finish_details = self.finish_details(&tally);
            part.timings = Some(timings(tally));
            parts.push(part);
        }
        parts.iter().map(Part::data).collect()
    }

    fn closing(&mut self, answers: &Answers) -> Vec<Part> {
        let mut parts = Vec::new();
        if self.include_usage {
            parts.push(Part::data(&ChatChunk {
                usage: Some(usage(answers)),
                timings: Some(timings(answers.total())),
                ..self.chunk(Vec::new())
            }));
        }
        parts.push(Part::done());
        parts
    }

    fn failing(&mut self, failure: &RouterError) -> Vec<Part> {
        vec![Part::data(&error::openai(failure)), Part::done()]
    }

    fn signs_of_life(&mut self, _: Duration) -> Vec<Part> {
        vec![Part::data(&self.delta(0, ChatDelta::default()))]
    }

    fn progress(&mut self, stage: Stage, elapsed: Duration) -> Option<Part> {
        let (processed, total) = stage.so_far();
        self.return_progress.then(|| {
            Part::data(&ChatChunk {
                prompt_progress: Some(PromptProgress {
                    stage: stage.name(),
                    total,
                    cache: stage.cached(),
                    processed,
                    time_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
                }),
                ..self.delta(0, ChatDelta::default())
            })
        })
    }
}

/// What a piece has of a call: its beginning has no arguments yet, which clients count on.
fn call_deltas(call: CallDelta) -> Vec<ToolCallDelta> {
    let index = call.index;
    let start = call.start.map(|start| ToolCallDelta {
        index,
        id: Some(start.id),
        kind: Some("function"),
        function: FunctionCall {
            name: Some(start.name),
            arguments: String::new(),
        },
    });
    let more = (!call.arguments.is_empty()).then_some(ToolCallDelta {
        index,
        id: None,
        kind: None,
        function: FunctionCall {
            name: None,
            arguments: call.arguments,
        },
    });
    start.into_iter().chain(more).collect()
}

/// Why an answer has ended: one that the model ended with calls waits for what comes of them.
fn ended(reason: FinishReason, tally: Tally) -> &'static str {
    match reason {
        FinishReason::Stop if tally.calls > 0 => "tool_calls",
        other => finish_reason(other),
    }
}

fn logprobs(entries: &[TokenLogprob]) -> ChatLogprobs {
    ChatLogprobs {
        content: chat_logprobs(entries),
        refusal: None,
    }
}
