//! Answers as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;

use crate::answer::{Piece, Tally};
use crate::answers::Answers;
use crate::error::RouterError;
use crate::http::error;
use crate::progress::{Progress, Stage};

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const DONE: &str = "[DONE]";

/// How often one who wants progress hears of it.
const PROGRESS: Duration = Duration::from_millis(500);

/// What the parts of an answer look like.
pub(super) trait Parts: Send + Unpin + 'static {
    /// A part of an answer.
    type Part: Serialize;

    /// What comes before the first piece of answer `index`, if anything.
    fn opening(&self, index: usize) -> Option<Self::Part>;

    /// A piece of answer `index`, and what the answer took if it is the last one.
    fn pieces(&self, index: usize, piece: Piece, tally: Tally) -> Vec<Self::Part>;

    /// What comes after the last piece, if anything.
    fn closing(&self, answers: &Answers) -> Option<Self::Part>;

    /// A part that says nothing, for clients that count parts as signs of life.
    fn sign_of_life(&self) -> Option<Self::Part>;

    /// A part that tells how far the request is, if that is wanted.
    fn progress(&self, stage: Stage, elapsed: Duration) -> Option<Self::Part>;
}

/// Answers, or what they will come of.
pub(super) enum Source {
    Coming(Pin<Box<dyn Future<Output = Result<Answers, RouterError>> + Send>>),
    Running(Answers),
}

/// `count` answers as an event stream. After `keep_alive` of silence comes a sign of life, unless it is zero.
pub(super) fn response(
    source: Source,
    count: usize,
    parts: impl Parts,
    progress: Progress,
    keep_alive: Duration,
) -> Response {
    let openings = (0..count).filter_map(|index| parts.opening(index));
    let queue = openings.map(|part| event(&part)).collect();
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
    alarm: Pin<Box<Sleep>>,
}

impl Silence {
    /// Waits until something is to be said.
    fn poll(&mut self, parts: &impl Parts, cx: &mut Context<'_>) -> Poll<Event> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            let stage = self.progress.get();
            if let Some(stage) = stage.filter(|_| stage != self.told)
                && let Some(part) = parts.progress(stage, now - self.started)
            {
                self.told = Some(stage);
                return Poll::Ready(event(&part));
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
                let sign = Event::default().comment(said);
                let part = parts.sign_of_life();
                return Poll::Ready(match part {
                    Some(part) => sign.data(to_json(&part)),
                    None => sign,
                });
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
                    Ok(answers) => self.source = Source::Running(answers),
                    Err(failure) => self.fail(&failure),
                }
                return Poll::Ready(());
            }
        };
        match ready!(Pin::new(&mut *answers).poll_next(cx)) {
            Some(Ok((index, piece))) => {
                let parts = self.parts.pieces(index, piece, answers.tally(index));
                self.queue.extend(parts.iter().map(event));
            }
            Some(Err(failure)) => self.fail(&failure),
            None => {
                let closing = self.parts.closing(answers);
                self.queue.extend(closing.iter().map(event));
                self.queue.push_back(Event::default().data(DONE));
                self.ended = true;
            }
        }
        Poll::Ready(())
    }

    fn fail(&mut self, failure: &RouterError) {
        tracing::warn!(error = %failure, "a stream breaks off");
        // Without a [DONE], so that nobody takes what came so far for the whole.
        self.queue
            .push_back(Event::default().data(error::event_json(failure)));
        self.ended = true;
    }
}

impl<P: Parts> Stream for EventStream<P> {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.queue.is_empty() && !this.ended {
            if this.poll_source(cx).is_pending() {
                let event = ready!(this.silence.poll(&this.parts, cx));
                this.queue.push_back(event);
            }
        }
        let event = this.queue.pop_front();
        this.silence.last_event = Instant::now();
        Poll::Ready(event.map(Ok))
    }
}

fn event(part: &impl Serialize) -> Event {
    Event::default().data(to_json(part))
}

fn to_json(part: &impl Serialize) -> String {
    serde_json::to_string(part).expect("strings and finite numbers are always JSON")
}
