//! Rounds on their way to who watches.

use std::pin::Pin;
use std::time::Duration;

use engine::RoundStream;
use futures_util::stream::unfold;
use proto::target::v1 as wire;
use tokio::time::Instant;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use worker_api::round_to_proto;

/// Rounds a second; the engine tells no more.
const MAX_PER_SECOND: u32 = 20;

/// Rounds until the caller leaves or the worker ends.
pub(crate) type Rounds = Pin<Box<dyn Stream<Item = Result<wire::Round, Status>> + Send>>;

/// Some of `rounds`, until `stop`.
pub(crate) fn rounds(rounds: RoundStream, max_per_second: u32, stop: CancellationToken) -> Rounds {
    let watch = Watch {
        rounds,
        stop,
        pause: Duration::from_secs(1) / max_per_second.clamp(1, MAX_PER_SECOND),
        due: Instant::now(),
    };
    let next = |mut watch: Watch| async move { Some((Ok(watch.next().await?), watch)) };
    Box::pin(unfold(watch, next))
}

struct Watch {
    rounds: RoundStream,
    stop: CancellationToken,
    /// Between two rounds.
    pause: Duration,
    due: Instant,
}

impl Watch {
    async fn next(&mut self) -> Option<wire::Round> {
        loop {
            let round = tokio::select! {
                round = self.rounds.recv() => round?,
                () = self.stop.cancelled() => return None,
            };
            let now = Instant::now();
            if now >= self.due {
                // As many as are wanted, where each comes a moment late.
                self.due = (self.due + self.pause).max(now);
                return Some(round_to_proto(round.as_ref().clone()));
            }
        }
    }
}
