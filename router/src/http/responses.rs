//! The Responses API. Nothing is stored: each request brings its whole conversation.

mod item;
mod text_input;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use api_types::{
    Asked, ChatRequest, InputTokens, InputTokensDetails, OutputTokensDetails, ResponseError,
    ResponseEvent, ResponseObject, ResponseStatus, ResponseUsage, ResponsesRequest,
};
use axum::extract::{Path, Request, State as Shared};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sampling::SamplingParams;
use tokio_stream::StreamExt;

use crate::answer::{Piece, Tally};
use crate::answers::{Answers, admit};
use crate::conversation;
use crate::error::RouterError;
use crate::http::conversation::prompt_tokens;
use crate::http::responses::writer::Writer;
use crate::http::sse::{Part, Source};
use crate::http::{body, error, sse};
use crate::plan::AnswersPlan;
use crate::progress::{Progress, Stage};
use crate::random;
use crate::record::RequestRecord;
use crate::state::{State, offload, unix_seconds};
use crate::target::Target;

/// Answers a conversation.
pub(super) async fn create<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    request: Request,
) -> Result<Response, RouterError> {
    let (plan, mut writer) = prepare(&state, request).await?;
    let progress = Progress::default();
    if plan.options.stream {
        let source = Source::begin(&state, plan, record, &progress).await?;
        return Ok(sse::response(
            source,
            writer,
            progress,
            state.config.keep_alive,
        ));
    }
    let held = admit(&state, &plan)?;
    let mut answers = Answers::start(&state, plan, held, record, &progress).await?;
    while let Some(next) = answers.next().await {
        let (_, piece) = next?;
        writer.piece(piece);
    }
    writer.close(usage(&answers));
    Ok(Json(writer.response()).into_response())
}

/// Counts the tokens of a conversation.
pub(super) async fn input_tokens<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    request: Request,
) -> Result<Json<InputTokens>, RouterError> {
    let (plan, _) = prepare(&state, request).await?;
    Ok(Json(InputTokens {
        object: "response.input_tokens",
        input_tokens: prompt_tokens(&plan),
    }))
}

/// An answer of the past, of which there are none.
pub(super) async fn stored(Path(id): Path<String>) -> RouterError {
    RouterError::NotStored { id }
}

/// From a body to token ids, and to the writer of the answer.
async fn prepare<T: Target>(
    state: &Arc<State<T>>,
    request: Request,
) -> Result<(AnswersPlan, Writer), RouterError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, state.config.max_body_bytes).await?;
    let (state, length) = (Arc::clone(state), body.len());
    let work = move || {
        let request = ResponsesRequest::from_body(&body)?;
        let model = &state.words.model_name;
        let defaults = &state.policy.sampling;
        let response = empty_response(model, request.asked, &request.chat, defaults);
        let writer = Writer::new(response, request.tools, request.includes_reasoning);
        Ok((conversation::plan(&state, request.chat)?, writer))
    };
    offload(length, work).await?
}

/// The answer before there is anything of it.
fn empty_response(
    model: &str,
    asked: Asked,
    chat: &ChatRequest,
    defaults: &SamplingParams,
) -> ResponseObject {
    let sampling = &chat.options.sampling;
    ResponseObject {
        id: random::name("resp_"),
        object: "response",
        created_at: unix_seconds(),
        completed_at: None,
        status: ResponseStatus::InProgress,
        incomplete_details: None,
        model: model.to_owned(),
        previous_response_id: None,
        instructions: asked.instructions,
        output: Vec::new(),
        error: None,
        tools: asked.tools,
        tool_choice: asked.tool_choice,
        truncation: "disabled",
        parallel_tool_calls: asked.parallel_tool_calls,
        text: asked.text,
        top_p: sampling.top_p.unwrap_or(defaults.top_p),
        presence_penalty: sampling
            .presence_penalty
            .unwrap_or(defaults.presence_penalty),
        frequency_penalty: sampling
            .frequency_penalty
            .unwrap_or(defaults.frequency_penalty),
        top_logprobs: chat.top_logprobs.unwrap_or(0),
        temperature: sampling.temperature.unwrap_or(defaults.temperature),
        reasoning: asked.reasoning,
        usage: None,
        max_output_tokens: asked.max_output_tokens,
        max_tool_calls: asked.max_tool_calls,
        store: false,
        background: false,
        service_tier: "default",
        metadata: asked.metadata,
        safety_identifier: asked.safety_identifier,
        prompt_cache_key: asked.prompt_cache_key,
    }
}

impl sse::Parts for Writer {
    fn opening(&mut self) -> Vec<Part> {
        self.open();
        parts(self.events())
    }

    fn piece(&mut self, _: usize, piece: Piece, _: Tally) -> Vec<Part> {
        Writer::piece(self, piece);
        parts(self.events())
    }

    fn closing(&mut self, answers: &Answers) -> Vec<Part> {
        self.close(usage(answers));
        parts(self.events())
    }

    fn failing(&mut self, failure: &RouterError) -> Vec<Part> {
        self.fail(ResponseError {
            code: error::response_code(failure),
            message: failure.to_string(),
        });
        parts(self.events())
    }

    fn signs_of_life(&mut self, _: Duration) -> Vec<Part> {
        self.stay();
        parts(self.events())
    }

    fn progress(&mut self, _: Stage, _: Duration) -> Option<Part> {
        None
    }
}

fn parts(events: Vec<ResponseEvent>) -> Vec<Part> {
    let part = |event: &ResponseEvent| Part::named(event.kind.name(), event);
    events.iter().map(part).collect()
}

fn usage(answers: &Answers) -> ResponseUsage {
    let (input_tokens, tally) = (answers.prompt_tokens(), answers.total());
    ResponseUsage {
        input_tokens,
        input_tokens_details: InputTokensDetails {
            cached_tokens: tally.cached_tokens,
            cache_write_tokens: 0,
        },
        output_tokens: tally.completion_tokens,
        output_tokens_details: OutputTokensDetails {
            reasoning_tokens: tally.reasoning_tokens,
        },
        total_tokens: input_tokens.saturating_add(tally.completion_tokens),
    }
}
