//! The Messages API, as Anthropic has it.

mod blocks;

use std::sync::Arc;
use std::time::Duration;

use api_types::{
    AnthropicEnd, AnthropicEvent, AnthropicMessage, AnthropicOutputDetails, AnthropicUsage,
    ChatRequest,
};
use axum::extract::{Request, State as Shared};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use chat::ReasoningStart;
use generation::FinishReason;
use serde_json::{Value, json};
use tokio_stream::StreamExt;

use crate::answer::{AnswerPlan, Piece, Tally};
use crate::answers::{Answers, admit};
use crate::error::RouterError;
use crate::http::sse::{Part, Source};
use crate::http::{conversation, error, sse};
use crate::plan::AnswersPlan;
use crate::progress::{Progress, Stage};
use crate::random;
use crate::record::RequestRecord;
use crate::state::State;
use crate::target::Target;
use blocks::{Blocks, Content};

/// How long the opening of a stream waits to hear from the target how much of the prompt was cached.
const OPENING_PATIENCE: Duration = Duration::from_millis(300);

/// Answers a conversation.
pub(super) async fn create<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    request: Request,
) -> Result<Response, RouterError> {
    let plan = conversation::plan(&state, request, ChatRequest::from_messages_body).await?;
    let stream = plan.options.stream;
    let mut shape = Shape::new(&state, &plan, &record);
    let progress = Progress::default();
    if stream {
        let mut source = Source::begin(&state, plan, record, &progress).await?;
        if let Source::Running(answers) = &mut source {
            answers.begun(OPENING_PATIENCE).await?;
            shape.usage = usage(answers);
        }
        let keep_alive = state.config.keep_alive;
        return Ok(sse::response(source, shape, progress, keep_alive));
    }
    let held = admit(&state, &plan)?;
    let mut answers = Answers::start(&state, plan, held, record, &progress).await?;
    let whole = shape.whole(&mut answers).await?;
    Ok(Json(whole).into_response())
}

/// Counts the tokens of a conversation, which needs no target.
pub(super) async fn count_tokens<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    request: Request,
) -> Result<Json<Value>, RouterError> {
    let plan = conversation::plan(&state, request, ChatRequest::from_messages_body).await?;
    let input_tokens = conversation::prompt_tokens(&plan);
    Ok(Json(json!({ "input_tokens": input_tokens })))
}

/// The prompt's tokens are told in two sums, for this API does not count what was cached as input.
fn usage(answers: &Answers) -> AnthropicUsage {
    let total = answers.total();
    AnthropicUsage {
        input_tokens: answers.prompt_tokens().saturating_sub(total.cached_tokens),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: total.cached_tokens,
        output_tokens: total.completion_tokens,
        output_tokens_details: AnthropicOutputDetails {
            thinking_tokens: total.reasoning_tokens,
        },
    }
}

/// An answer on its way.
struct Shape {
    id: String,
    model: String,
    request_id: String,
    blocks: Blocks,
    /// As far as it is known at the beginning.
    usage: AnthropicUsage,
    end: AnthropicEnd,
}

impl Shape {
    fn new<T: Target>(state: &State<T>, plan: &AnswersPlan, record: &RequestRecord) -> Self {
        let thinks = |plan: &AnswerPlan| plan.reasoning == Some(ReasoningStart::Inside);
        Self {
            id: random::name("msg_"),
            model: state.words.model_name.clone(),
            request_id: record.id.clone(),
            blocks: Blocks::new(plan.prompts.iter().any(|(_, plan)| thinks(plan))),
            usage: AnthropicUsage {
                input_tokens: conversation::prompt_tokens(plan),
                ..AnthropicUsage::default()
            },
            end: AnthropicEnd {
                stop_reason: "end_turn",
                stop_sequence: None,
            },
        }
    }

    async fn whole(mut self, answers: &mut Answers) -> Result<AnthropicMessage, RouterError> {
        let mut content = Content::default();
        while let Some(next) = answers.next().await {
            let (_, piece) = next?;
            for event in self.take(piece) {
                content.take(event);
            }
        }
        Ok(AnthropicMessage {
            content: content.into_blocks(),
            stop_reason: Some(self.end.stop_reason),
            stop_sequence: self.end.stop_sequence.take(),
            usage: usage(answers),
            ..self.message()
        })
    }

    /// The answer before anything is said.
    fn message(&self) -> AnthropicMessage {
        AnthropicMessage {
            id: self.id.clone(),
            kind: "message",
            role: "assistant",
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: self.usage,
        }
    }

    fn take(&mut self, mut piece: Piece) -> Vec<AnthropicEvent> {
        let finish = piece.finish;
        let matched = piece.stopped_at.take();
        let events = self.blocks.push(piece);
        if let Some(reason) = finish {
            self.end.stop_reason = match reason {
                FinishReason::Length => "max_tokens",
                FinishReason::Stop if matched.is_some() => "stop_sequence",
                FinishReason::Stop if self.blocks.has_calls() => "tool_use",
                FinishReason::Stop => "end_turn",
            };
            self.end.stop_sequence = matched;
        }
        events
    }
}

impl sse::Parts for Shape {
    fn opening(&mut self) -> Vec<Part> {
        let message = self.message();
        parts(vec![
            AnthropicEvent::MessageStart { message },
            AnthropicEvent::Ping,
        ])
    }

    fn piece(&mut self, _: usize, piece: Piece, _: Tally) -> Vec<Part> {
        parts(self.take(piece))
    }

    fn closing(&mut self, answers: &Answers) -> Vec<Part> {
        parts(vec![
            AnthropicEvent::MessageDelta {
                delta: self.end.clone(),
                usage: usage(answers),
            },
            AnthropicEvent::MessageStop,
        ])
    }

    fn failing(&mut self, failure: &RouterError) -> Vec<Part> {
        let error = error::anthropic(failure, &self.request_id);
        vec![Part::named("error", &error)]
    }

    fn signs_of_life(&mut self, silence: Duration) -> Vec<Part> {
        let mut events = vec![AnthropicEvent::Ping];
        events.extend(self.blocks.wait(silence));
        parts(events)
    }

    fn progress(&mut self, _: Stage, _: Duration) -> Option<Part> {
        None
    }
}

fn parts(events: Vec<AnthropicEvent>) -> Vec<Part> {
    let part = |event: &AnthropicEvent| Part::named(event.name(), event);
    events.iter().map(part).collect()
}
