//! Chat completions.

use std::sync::Arc;

use api_types::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprob, ChatLogprobs,
    ChatMessage, ChatRequest, ChatTopLogprob,
};
use axum::extract::{Request, State as Shared};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use chat::{ReasoningStart, RenderInput};
use generation::FinishReason;

use crate::answer::{AnswerPlan, Piece, Tally};
use crate::answers::Answers;
use crate::error::RouterError;
use crate::http::usage::{FINGERPRINT, finish_reason, timings, usage};
use crate::http::{body, sse};
use crate::logprob::TokenLogprob;
use crate::plan::AnswersPlan;
use crate::random;
use crate::record::RequestRecord;
use crate::state::{State, Words, offload, unix_seconds};
use crate::target::Target;

/// Answers a conversation.
pub(super) async fn complete<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    request: Request,
) -> Result<Response, RouterError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, state.config.max_body_bytes).await?;
    let plan = {
        let state = Arc::clone(&state);
        offload(body.len(), move || plan(&state, &body)).await??
    };
    let options = plan.options.clone();
    let shape = Shape {
        id: random::name("chatcmpl-"),
        created: unix_seconds(),
        model: state.words.model_name.clone(),
        reasoning: plan.prompts.iter().any(|(_, p)| p.reasoning.is_some()),
        logprobs: plan.top_logprobs.is_some(),
        include_usage: options.include_usage,
    };
    let mut answers = Answers::start(&state, plan, record).await?;
    if options.stream {
        return Ok(sse::response(answers, shape, state.config.keep_alive));
    }
    let whole = answers.complete().await?;
    Ok(Json(shape.whole(whole, &answers)).into_response())
}

/// From a body to token ids.
fn plan<T: Target>(state: &State<T>, body: &[u8]) -> Result<AnswersPlan, RouterError> {
    let request = ChatRequest::from_body(body)?;
    state.check_model(request.options.model.as_deref())?;
    let mut kwargs = state.config.template_kwargs.clone();
    kwargs.extend(request.template_kwargs);
    let words: &Words = &state.words;
    let mut input = RenderInput {
        messages: request.messages,
        tools: request.tools,
        add_generation_prompt: request.add_generation_prompt,
        kwargs,
    };
    let prompt = words.render(&input)?;
    let ids = words.encode_prompt(&prompt);
    input.add_generation_prompt = false;
    // Where a template refuses that, nothing is known of the next turn.
    let history = words.render(&input).unwrap_or_default();
    let history_tokens = words.tokens_of_beginning(&ids, &prompt, &history);
    let start = ReasoningStart::of_prompt(&prompt);
    let splits = start == ReasoningStart::Inside || words.tokenizer.token_id("</think>").is_some();
    let answer = AnswerPlan {
        stop: request.options.stop.clone(),
        include_stop: request.options.include_stop,
        stop_ids: words.stop_ids(request.options.ignore_eos),
        reasoning: splits.then_some(start),
        logprobs: request.top_logprobs.is_some(),
    };
    Ok(AnswersPlan {
        prompts: vec![(ids, answer)],
        history_tokens,
        options: request.options,
        top_logprobs: request.top_logprobs,
    })
}

/// What is the same in all parts of an answer.
struct Shape {
    id: String,
    created: u64,
    model: String,
    reasoning: bool,
    logprobs: bool,
    include_usage: bool,
}

impl Shape {
    fn whole(self, whole: Vec<(Piece, FinishReason)>, answers: &Answers) -> ChatCompletion {
        let choices = whole.into_iter().enumerate();
        let choices = choices.map(|(index, (piece, reason))| ChatChoice {
            index,
            logprobs: self.logprobs.then(|| logprobs(&piece.logprobs)),
            message: ChatMessage {
                role: "assistant",
                content: piece.content,
                reasoning_content: Some(piece.reasoning)
                    .filter(|text| self.reasoning && !text.is_empty()),
                refusal: None,
            },
            finish_reason: finish_reason(reason),
        });
        ChatCompletion {
            choices: choices.collect(),
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model,
            system_fingerprint: FINGERPRINT.to_owned(),
            usage: usage(answers.prompt_tokens(), answers.total()),
            timings: timings(answers.total()),
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
        }
    }

    fn delta(&self, index: usize, delta: ChatDelta) -> ChatChunk {
        self.chunk(vec![ChatChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
        }])
    }
}

impl sse::Parts for Shape {
    type Part = ChatChunk;

    fn opening(&self, index: usize) -> Option<ChatChunk> {
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
            reasoning_content: None,
        };
        Some(self.delta(index, delta))
    }

    fn pieces(&self, index: usize, piece: Piece, tally: Tally) -> Vec<ChatChunk> {
        let mut parts = Vec::new();
        if !piece.reasoning.is_empty() {
            let delta = ChatDelta {
                reasoning_content: Some(piece.reasoning),
                ..ChatDelta::default()
            };
            parts.push(self.delta(index, delta));
        }
        if !piece.content.is_empty() || !piece.logprobs.is_empty() {
            let delta = ChatDelta {
                content: Some(piece.content),
                ..ChatDelta::default()
            };
            let mut part = self.delta(index, delta);
            part.choices[0].logprobs = self.logprobs.then(|| logprobs(&piece.logprobs));
            parts.push(part);
        }
        if let Some(reason) = piece.finish {
            let mut part = self.delta(index, ChatDelta::default());
            part.choices[0].finish_reason = Some(finish_reason(reason));
            part.timings = Some(timings(tally));
            parts.push(part);
        }
        parts
    }

    fn closing(&self, prompt_tokens: u32, total: Tally) -> Option<ChatChunk> {
        self.include_usage.then(|| ChatChunk {
            usage: Some(usage(prompt_tokens, total)),
            timings: Some(timings(total)),
            ..self.chunk(Vec::new())
        })
    }

    fn sign_of_life(&self) -> Option<ChatChunk> {
        Some(self.delta(0, ChatDelta::default()))
    }
}

fn logprobs(entries: &[TokenLogprob]) -> ChatLogprobs {
    let top = |entry: &TokenLogprob| {
        let tops = entry.top.iter().map(|token| ChatTopLogprob {
            token: token.text(),
            logprob: token.logprob,
            bytes: token.bytes.clone(),
        });
        tops.collect()
    };
    let content = entries.iter().map(|entry| ChatLogprob {
        token: entry.chosen.text(),
        logprob: entry.chosen.logprob,
        bytes: entry.chosen.bytes.clone(),
        top_logprobs: top(entry),
    });
    ChatLogprobs {
        content: content.collect(),
        refusal: None,
    }
}
