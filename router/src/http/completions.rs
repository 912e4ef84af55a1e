//! Completions of plain text.

use std::sync::Arc;
use std::time::Duration;

use api_types::{
    Completion, CompletionChoice, CompletionLogprobs, CompletionRequest, Prompt, ThinkingOptions,
};
use axum::extract::{Request, State as Shared};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use generation::FinishReason;

use crate::answer::{AnswerPlan, Piece, Tally};
use crate::answers::{Answers, admit};
use crate::error::RouterError;
use crate::http::sse::{Part, Source};
use crate::http::usage::{FINGERPRINT, finish_reason, timings, usage};
use crate::http::{body, error, sse};
use crate::logprob::TokenLogprob;
use crate::plan::{AnswersPlan, AskedGrammar};
use crate::progress::{Progress, Stage};
use crate::random;
use crate::record::RequestRecord;
use crate::state::{State, offload, unix_seconds};
use crate::target::Target;

/// Continues texts.
pub(super) async fn complete<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    request: Request,
) -> Result<Response, RouterError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, state.config.max_body_bytes).await?;
    let (plan, echoes) = {
        let state = Arc::clone(&state);
        offload(body.len(), move || plan(&state, &body)).await??
    };
    let options = plan.options.clone();
    let shape = Shape {
        id: random::name("cmpl-"),
        created: unix_seconds(),
        model: state.words.model_name.clone(),
        echoes,
        logprobs: plan.top_logprobs.is_some(),
        include_usage: options.include_usage,
    };
    let progress = Progress::default();
    if options.stream {
        let source = Source::begin(&state, plan, record, &progress).await?;
        let keep_alive = state.config.keep_alive;
        return Ok(sse::response(source, shape, progress, keep_alive));
    }
    let held = admit(&state, &plan)?;
    let mut answers = Answers::start(&state, plan, held, record, &progress).await?;
    let whole = answers.complete().await?;
    Ok(Json(shape.whole(whole, &answers)).into_response())
}

/// From a body to token ids, and the texts that the answers begin with, if any.
fn plan<T: Target>(
    state: &State<T>,
    body: &[u8],
) -> Result<(AnswersPlan, Vec<String>), RouterError> {
    let request = CompletionRequest::from_body(body)?;
    state.check_model(request.options.model.as_deref())?;
    let words = &state.words;
    let mut echoes = Vec::new();
    let mut prompts = Vec::with_capacity(request.prompts.len());
    for prompt in request.prompts {
        let ids = match &prompt {
            Prompt::Text(text) => words.encode_prompt(text),
            Prompt::Tokens(ids) => ids.clone(),
        };
        if request.echo {
            let echo = match prompt {
                Prompt::Text(text) => text,
                Prompt::Tokens(ids) => words.tokenizer.decode(&ids, false),
            };
            let n = request.options.n as usize;
            echoes.extend(std::iter::repeat_n(echo, n));
        }
        let answer = AnswerPlan {
            stop: request.options.stop.clone(),
            include_stop: request.options.include_stop,
            stop_ids: words.stop_ids(request.options.ignore_eos),
            reasoning: None,
            calls: None,
            logprobs: request.top_logprobs.is_some(),
        };
        prompts.push((ids, answer));
    }
    let plan = AnswersPlan {
        prompts,
        history_tokens: 0,
        grammar: request.response_format.map(AskedGrammar::from),
        // Nothing says which part of a text is the question.
        compression: None,
        options: request.options,
        thinking: ThinkingOptions::default(),
        top_logprobs: request.top_logprobs,
    };
    Ok((plan, echoes))
}

/// What is the same in all parts of an answer.
struct Shape {
    id: String,
    created: u64,
    model: String,
    /// What each answer begins with; empty if nothing is echoed.
    echoes: Vec<String>,
    logprobs: bool,
    include_usage: bool,
}

impl Shape {
    fn whole(self, whole: Vec<(Piece, FinishReason)>, answers: &Answers) -> Completion {
        let choices = whole.into_iter().enumerate();
        let choices = choices.map(|(index, (piece, reason))| {
            let echo = self.echoes.get(index).map_or("", String::as_str);
            CompletionChoice {
                index,
                text: format!("{echo}{}", piece.content),
                logprobs: self.logprobs.then(|| logprobs(&piece.logprobs)),
                finish_reason: Some(finish_reason(reason)),
            }
        });
        Completion {
            usage: Some(usage(answers)),
            timings: Some(timings(answers.total())),
            ..self.part(choices.collect())
        }
    }

    fn part(&self, choices: Vec<CompletionChoice>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: FINGERPRINT.to_owned(),
            choices,
            usage: None,
            timings: None,
        }
    }

    fn text(&self, index: usize, text: String) -> Completion {
        self.part(vec![CompletionChoice {
            index,
            text,
            logprobs: None,
            finish_reason: None,
        }])
    }
}

impl sse::Parts for Shape {
    fn opening(&mut self) -> Vec<Part> {
        let echoes = self.echoes.iter().enumerate();
        let echoes = echoes.map(|(index, echo)| Part::data(&self.text(index, echo.clone())));
        echoes.collect()
    }

    fn piece(&mut self, index: usize, piece: Piece, tally: Tally) -> Vec<Part> {
        let mut part = self.text(index, piece.content);
        let choice = &mut part.choices[0];
        choice.logprobs = self.logprobs.then(|| logprobs(&piece.logprobs));
        if let Some(reason) = piece.finish {
            choice.finish_reason = Some(finish_reason(reason));
            part.timings = Some(timings(tally));
        }
        vec![Part::data(&part)]
    }

    fn closing(&mut self, answers: &Answers) -> Vec<Part> {
        let mut parts = Vec::new();
        if self.include_usage {
            parts.push(Part::data(&Completion {
                usage: Some(usage(answers)),
                timings: Some(timings(answers.total())),
                ..self.part(Vec::new())
            }));
        }
        parts.push(Part::done());
        parts
    }

    fn failing(&mut self, failure: &RouterError) -> Vec<Part> {
        vec![Part::data(&error::openai(failure)), Part::done()]
    }

    fn signs_of_life(&mut self, _: Duration) -> Vec<Part> {
        vec![Part::data(&self.text(0, String::new()))]
    }

    fn progress(&mut self, _: Stage, _: Duration) -> Option<Part> {
        None
    }
}

fn logprobs(entries: &[TokenLogprob]) -> CompletionLogprobs {
    let mut lists = CompletionLogprobs::default();
    for entry in entries {
        lists.tokens.push(entry.chosen.text());
        lists.token_logprobs.push(entry.chosen.logprob);
        let top = entry.top.iter();
        let top = top.map(|token| (token.text(), token.logprob.into()));
        lists.top_logprobs.push(top.collect());
        lists.text_offset.push(entry.text_offset);
    }
    lists
}
