//! Answers as server-sent events, whatever the API calls them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;

use crate::answer::{Piece, Tally};
use crate::answers::{Answers, admit};
use crate::compression::Job;
use crate::error::RouterError;
use crate::plan::AnswersPlan;
use crate::progress::{Progress, Stage};
use crate::record::{Outcome, RequestRecord};
use crate::state::State;
use crate::target::Target;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const DONE: &str = "[DONE]";

/// How often one who wants progress hears of it.
const PROGRESS: Duration = Duration::from_millis(500);

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// What stands in its `event:` line, for APIs that name their events.
    pub name: Option<&'static str>,
    pub data: String,
}

impl Part {
    /// An event without a name.
    pub fn data(body: &impl Serialize) -> Self {
        Self {
            name: None,
            data: to_json(body),
        }
    }

    /// An event with a name.
    pub fn named(name: &'static str, body: &impl Serialize) -> Self {
        Self {
            name: Some(name),
            data: to_json(body),
        }
    }

    /// What ends a stream of the older OpenAI APIs.
    pub fn done() -> Self {
        Self {
            name: None,
            data: DONE.to_owned(),
        }
    }
}

/// What an API makes of an answer. It is told of everything in order, so it may remember what it has said.
pub(super) trait Parts: Send + Unpin + 'static {
    /// What goes out at once, before anything is known of the answers.
    fn opening(&mut self) -> Vec<Part>;

    /// A piece of answer `index`, and what the answer took so far.
    fn piece(&mut self, index: usize, piece: Piece, tally: Tally) -> Vec<Part>;

    /// The end, after the last piece.
    fn closing(&mut self, answers: &Answers) -> Vec<Part>;

    /// The end, when there will be no last piece.
    fn failing(&mut self, error: &RouterError) -> Vec<Part>;

    /// What tells that somebody is still there, after nothing but signs of life for `silence`.
    fn signs_of_life(&mut self, silence: Duration) -> Vec<Part>;

    /// A part that tells how far the request is, if that is wanted.
    fn progress(&mut self, stage: Stage, elapsed: Duration) -> Option<Part>;
}

/// Answers, or what they will come of.
pub(super) enum Source {
    Coming(Pin<Box<dyn Future<Output = Result<Answers, RouterError>> + Send>>),
    Running(Box<Answers>),
}

impl Source {
    /// Has `plan` answered. A stream's headers do not wait until the prompt has been made shorter.
    pub async fn begin<T: Target>(
        state: &Arc<State<T>>,
        plan: AnswersPlan,
        record: Arc<RequestRecord>,
        progress: &Progress,
    ) -> Result<Self, RouterError> {
        let held = admit(state, &plan)?;
        if !plan.compression.as_ref().is_some_and(Job::asks) {
            let answers = Answers::start(state, plan, held, record, progress).await?;
            return Ok(Self::Running(Box::new(answers)));
        }
        let (state, progress) = (Arc::clone(state), progress.clone());
        Ok(Self::Coming(Box::pin(async move {
            record.answered(Outcome::Cancelled, 0, 0);
            let started = Answers::start(&state, plan, held, Arc::clone(&record), &progress).await;
            if started.is_err() {
                record.answered(Outcome::Failed, 0, 0);
            }
            started
        })))
    }
}

/// The answers as an event stream. After `keep_alive` of silence come signs of life, unless it is zero.
pub(super) fn response(
    source: Source,
    mut parts: impl Parts,
    progress: Progress,
    keep_alive: Duration,
) -> Response {
    let queue = parts.opening().into_iter().map(event).collect();
    let now = Instant::now();
    let stream = EventStream {
        source,
        parts,
        queue,
        ended: false,
        silence: Silence {
            keep_alive,
            progress,
            told: None,
            started: now,
            last_event: now,
            last_word: now,
            alarm: Box::pin(sleep_until(now)),
        },
    };
    let mut response = Sse::new(stream).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
}

struct EventStream<P> {
    source: Source,
    parts: P,
    /// Events that are ready to go.
    queue: VecDeque<Event>,
    ended: bool,
    silence: Silence,
}

/// What is said when there is nothing to say.
struct Silence {
    keep_alive: Duration,
    progress: Progress,
    /// The stage that was told last.
    told: Option<Stage>,
    started: Instant,
    last_event: Instant,
    /// The last event that was no sign of life.
    last_word: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Silence {
    /// Waits until something is to be said.
    fn poll(&mut self, parts: &mut impl Parts, cx: &mut Context<'_>) -> Poll<Vec<Event>> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            let stage = self.progress.get();
            if let Some(stage) = stage.filter(|_| stage != self.told)
                && let Some(part) = parts.progress(stage, now - self.started)
            {
                self.told = Some(stage);
                return Poll::Ready(vec![event(part)]);
            }
            let is_silent = !self.keep_alive.is_zero() && now - self.last_event >= self.keep_alive;
            let next = if is_silent || self.keep_alive.is_zero() {
                now + PROGRESS
            } else {
                (self.last_event + self.keep_alive).min(now + PROGRESS)
            };
            self.alarm.as_mut().reset(next);
            if is_silent {
                let said = stage.map_or_else(|| "keep-alive".to_owned(), |stage| stage.to_string());
                let comment = Event::default().comment(said);
                let mut signs = parts.signs_of_life(now - self.last_word).into_iter();
                let first = match signs.next() {
                    Some(part) => fill(comment, part),
                    None => comment,
                };
                return Poll::Ready(std::iter::once(first).chain(signs.map(event)).collect());
            }
        }
    }
}

impl<P: Parts> EventStream<P> {
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let answers = match &mut self.source {
            Source::Running(answers) => answers,
            Source::Coming(coming) => {
                match ready!(coming.as_mut().poll(cx)) {
                    Ok(answers) => self.source = Source::Running(Box::new(answers)),
                    Err(failure) => self.fail(&failure),
                }
                return Poll::Ready(());
            }
        };
        match ready!(Pin::new(&mut **answers).poll_next(cx)) {
            Some(Ok((index, piece))) => {
                let tally = answers.tally(index);
                let parts = self.parts.piece(index, piece, tally);
                self.say(parts);
            }
            Some(Err(failure)) => self.fail(&failure),
            None => {
                let parts = self.parts.closing(answers);
                self.say(parts);
                self.ended = true;
            }
        }
        Poll::Ready(())
    }

    fn fail(&mut self, failure: &RouterError) {
        tracing::warn!(error = %failure, "a stream breaks off");
        let parts = self.parts.failing(failure);
        self.say(parts);
        self.ended = true;
    }

    fn say(&mut self, parts: Vec<Part>) {
        if !parts.is_empty() {
            self.silence.last_word = Instant::now();
        }
        self.queue.extend(parts.into_iter().map(event));
    }
}

impl<P: Parts> Stream for EventStream<P> {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.queue.is_empty() && !this.ended {
            if this.poll_source(cx).is_pending() {
                let events = ready!(this.silence.poll(&mut this.parts, cx));
                this.queue.extend(events);
            }
        }
        let event = this.queue.pop_front();
        this.silence.last_event = Instant::now();
        Poll::Ready(event.map(Ok))
    }
}

fn event(part: Part) -> Event {
    fill(Event::default(), part)
}

fn fill(event: Event, part: Part) -> Event {
    match part.name {
        Some(name) => event.event(name).data(part.data),
        None => event.data(part.data),
    }
}

fn to_json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("strings and finite numbers are always JSON")
}
