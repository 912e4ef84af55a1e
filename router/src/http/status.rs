//! How the set is doing: once, or as it goes on.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use generation::RoundReport;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::StreamExt;
use worker_api::WorkerError;

use crate::error::RouterError;
use crate::state::State;
use crate::status;
use crate::target::Target;

/// How often the figures are told.
const TICK: Duration = Duration::from_secs(1);
/// Rounds a second that are told at most.
const ROUNDS_PER_SECOND: u32 = 8;
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The figures now.
pub(super) async fn once<T: Target>(Shared(state): Shared<Arc<State<T>>>) -> Json<Value> {
    Json(status::status(&state).await)
}

/// `status` events each second and `round` events as rounds happen, until the client leaves.
pub(super) async fn events<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
) -> Result<Response, RouterError> {
    let place = Arc::clone(&state.watchers).try_acquire_owned();
    let place = place.map_err(|_| RouterError::TooManyWatchers)?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let feed = Feed {
        state,
        ticks,
        rounds: None,
        _place: place,
    };
    let next = |mut feed: Feed<T>| async move {
        let event = feed.next().await?;
        Some((Ok::<_, Infallible>(event), feed))
    };
    let mut response = Sse::new(unfold(feed, next)).into_response();
    let headers = response.headers_mut();
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

struct Feed<T: Target> {
    state: Arc<State<T>>,
    ticks: Interval,
    /// `None` while the target is not there.
    rounds: Option<Pin<Box<T::Rounds>>>,
    _place: OwnedSemaphorePermit,
}

impl<T: Target> Feed<T> {
    /// `None` when the server ends.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let round = tokio::select! {
                () = self.state.shutdown.cancelled() => return None,
                _ = self.ticks.tick() => return Some(self.status().await),
                round = next_round(&mut self.rounds) => round,
            };
            match round {
                Ok(report) => return Some(self.round(&report)),
                // The next tick asks again.
                Err(_) => self.rounds = None,
            }
        }
    }

    async fn status(&mut self) -> Event {
        if self.rounds.is_none() {
            let rounds = self.state.target.watch(ROUNDS_PER_SECOND).await;
            self.rounds = rounds.ok().map(Box::pin);
        }
        event("status", &status::status(&self.state).await)
    }

    fn round(&self, report: &RoundReport) -> Event {
        let tokenizer = &self.state.words.tokenizer;
        let tokenizer = self.state.config.status_text.then_some(&**tokenizer);
        event("round", &status::round(report, tokenizer))
    }
}

/// Waits forever where there is no target.
async fn next_round<R>(rounds: &mut Option<Pin<Box<R>>>) -> Result<RoundReport, WorkerError>
where
    R: tokio_stream::Stream<Item = Result<RoundReport, WorkerError>>,
{
    let Some(stream) = rounds else {
        return pending().await;
    };
    let ended = || Err(WorkerError::Unavailable("the target ended".to_owned()));
    stream.next().await.unwrap_or_else(ended)
}

fn event(name: &str, value: &Value) -> Event {
    Event::default().event(name).data(value.to_string())
}
