//! The way back from the engine thread to a caller.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use generation::{GenerateError, GenerateEvent};
use tokio::sync::mpsc;

/// Where the engine thread puts the events of a request.
///
/// The channel has no bound of its own, so that a slow reader never holds up the thread; it holds an event
/// for each new token and each step of the prompt and two more at most, and the context bounds both.
pub(crate) type EventSender = mpsc::UnboundedSender<Result<GenerateEvent, GenerateError>>;

/// The events of a request. Dropping it cancels the request: its place is free within a step.
#[derive(Debug)]
pub struct GenerateStream {
    events: mpsc::UnboundedReceiver<Result<GenerateEvent, GenerateError>>,
    ended: bool,
}

impl GenerateStream {
    pub(crate) fn new() -> (EventSender, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        let stream = Self {
            events,
            ended: false,
        };
        (sender, stream)
    }

    /// The next event; `None` after [`GenerateEvent::Finished`] or an error. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Result<GenerateEvent, GenerateError>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// As [`GenerateStream::recv`], for those who implement a stream.
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<GenerateEvent, GenerateError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // The thread says how each request ends, so a silent end means that the thread is gone.
        let event = ready!(self.events.poll_recv(cx)).unwrap_or_else(|| Err(stopped()));
        self.ended = matches!(event, Err(_) | Ok(GenerateEvent::Finished { .. }));
        Poll::Ready(Some(event))
    }
}

/// What callers of a broken engine are told.
pub(crate) fn stopped() -> GenerateError {
    GenerateError::Model("the engine stopped".to_owned())
}
