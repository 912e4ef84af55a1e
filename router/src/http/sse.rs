//! Answers as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio_stream::Stream;

use crate::answer::{Piece, Tally};
use crate::answers::Answers;
use crate::http::error;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const DONE: &str = "[DONE]";

/// What the parts of an answer look like.
pub(super) trait Parts: Send + Unpin + 'static {
    /// A part of an answer.
    type Part: Serialize;

    /// What comes before the first piece of answer `index`, if anything.
    fn opening(&self, index: usize) -> Option<Self::Part>;

    /// A piece of answer `index`, and what the answer took if it is the last one.
    fn pieces(&self, index: usize, piece: Piece, tally: Tally) -> Vec<Self::Part>;

    /// What comes after the last piece, if anything.
    fn closing(&self, prompt_tokens: u32, total: Tally) -> Option<Self::Part>;

    /// A part that says nothing, for clients that count parts as signs of life.
    fn sign_of_life(&self) -> Option<Self::Part>;
}

/// The answers as an event stream.
pub(super) fn response(answers: Answers, parts: impl Parts, keep_alive: Duration) -> Response {
    let mut sign = Event::default().comment("keep-alive");
    if let Some(part) = parts.sign_of_life() {
        sign = sign.data(to_json(&part));
    }
    let mut queue = VecDeque::new();
    queue.extend(
        (0..answers.len())
            .filter_map(|i| parts.opening(i))
            .map(|p| event(&p)),
    );
    let stream = EventStream {
        answers,
        parts,
        queue,
        ended: false,
    };
    let keep_alive = KeepAlive::new().interval(keep_alive).event(sign);
    let mut response = Sse::new(stream).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
}

struct EventStream<P> {
    answers: Answers,
    parts: P,
    /// Events that are ready to go.
    queue: VecDeque<Event>,
    ended: bool,
}

impl<P: Parts> Stream for EventStream<P> {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.answers).poll_next(cx)) {
                Some(Ok((index, piece))) => {
                    let tally = self.answers.tally(index);
                    let parts = self.parts.pieces(index, piece, tally);
                    self.queue.extend(parts.iter().map(event));
                }
                Some(Err(failure)) => {
                    tracing::warn!(error = %failure, "a stream breaks off");
                    // Without a [DONE], so that nobody takes what came so far for the whole.
                    self.queue
                        .push_back(Event::default().data(error::event_json(&failure)));
                    self.ended = true;
                }
                None => {
                    let (prompt_tokens, total) =
                        (self.answers.prompt_tokens(), self.answers.total());
                    let closing = self.parts.closing(prompt_tokens, total);
                    self.queue.extend(closing.iter().map(event));
                    self.queue.push_back(Event::default().data(DONE));
                    self.ended = true;
                }
            }
        }
    }
}

fn event(part: &impl Serialize) -> Event {
    Event::default().data(to_json(part))
}

fn to_json(part: &impl Serialize) -> String {
    serde_json::to_string(part).expect("strings and finite numbers are always JSON")
}
