//! A streamed answer that stands for something held: it says one thing, then nothing until that ends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::Status;

/// A stream of one event that ends with a status. What the end owns is freed when the caller drops the stream.
pub struct HeldStream<Event> {
    event: Option<Event>,
    /// `None` once it has ended.
    end: Option<Pin<Box<dyn Future<Output = Status> + Send>>>,
}

impl<Event> HeldStream<Event> {
    /// Says `event` at once, and what `end` comes to at the end.
    pub fn new(event: Event, end: impl Future<Output = Status> + Send + 'static) -> Self {
        Self {
            event: Some(event),
            end: Some(Box::pin(end)),
        }
    }
}

impl<Event> fmt::Debug for HeldStream<Event> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldStream").finish_non_exhaustive()
    }
}

impl<Event: Unpin> Stream for HeldStream<Event> {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(event) = self.event.take() {
            return Poll::Ready(Some(Ok(event)));
        }
        let Some(end) = &mut self.end else {
            return Poll::Ready(None);
        };
        let ended = end.as_mut().poll(cx);
        if ended.is_ready() {
            // Frees what it owns before the caller hears of it.
            self.end = None;
        }
        ended.map(|status| Some(Err(status)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio_stream::StreamExt;
    use tonic::{Code, Status};

    use super::HeldStream;

    #[tokio::test]
    async fn it_says_its_event_then_how_it_ended_then_no_more() {
        let mut stream = HeldStream::new(7, async { Status::unavailable("gone") });
        assert_eq!(stream.next().await.unwrap().unwrap(), 7);
        let end = stream.next().await.unwrap().unwrap_err();
        assert_eq!(end.code(), Code::Unavailable);
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn dropping_it_frees_what_it_holds() {
        let (held, freed) = oneshot::channel::<()>();
        let stream = HeldStream::new((), async {
            let _held = held;
            std::future::pending().await
        });
        drop(stream);
        assert!(freed.await.is_err());
    }
}
