//! Rounds for those who watch: a few a second, and nothing is made of a round where nobody does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use generation::RoundReport;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Time between two rounds that are told: more than 20 a second no eye follows.
const PAUSE: Duration = Duration::from_millis(50);
/// Rounds kept for a watcher that is behind; it misses older ones.
const KEPT: usize = 16;

/// The engine thread's side.
#[derive(Debug)]
pub(crate) struct RoundTeller {
    watchers: Watchers,
    /// When the next one may be told.
    due: Instant,
}

/// Where watchers come in.
#[derive(Clone, Debug)]
pub(crate) struct Watchers(broadcast::Sender<Arc<RoundReport>>);

impl Default for Watchers {
    fn default() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }
}

impl Watchers {
    pub(crate) fn watch(&self) -> RoundStream {
        RoundStream(self.0.subscribe())
    }
}

impl RoundTeller {
    pub(crate) fn new(watchers: Watchers) -> Self {
        let due = Instant::now();
        Self { watchers, due }
    }

    /// Tells a round, where somebody watches and the last one is long enough ago.
    pub(crate) fn tell(&mut self, report: impl FnOnce() -> RoundReport) {
        if self.watchers.0.receiver_count() == 0 {
            return;
        }
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + PAUSE;
        // The last watcher may have left meanwhile.
        let _ = self.watchers.0.send(Arc::new(report()));
    }
}

/// Some of an engine's rounds, the newest ones: who is slow misses more. Dropping it ends the watch.
#[derive(Debug)]
pub struct RoundStream(broadcast::Receiver<Arc<RoundReport>>);

impl RoundStream {
    /// The next round; `None` when the engine is gone. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Arc<RoundReport>> {
        loop {
            match self.0.recv().await {
                Ok(report) => return Some(report),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teller() -> (RoundTeller, Watchers) {
        let watchers = Watchers::default();
        (RoundTeller::new(watchers.clone()), watchers)
    }

    #[test]
    fn nothing_is_made_of_a_round_that_nobody_watches() {
        let (mut teller, watchers) = teller();
        drop(watchers.watch());
        teller.tell(|| unreachable!("nobody watches"));
    }

    #[test]
    fn rounds_in_quick_succession_are_left_out() {
        let (mut teller, watchers) = teller();
        let mut stream = watchers.watch();
        teller.tell(RoundReport::default);
        teller.tell(|| unreachable!("too soon"));
        assert!(stream.0.try_recv().is_ok());
        assert!(stream.0.try_recv().is_err());
        teller.due = Instant::now();
        teller.tell(RoundReport::default);
        assert!(stream.0.try_recv().is_ok());
    }

    #[tokio::test]
    async fn one_who_is_behind_gets_the_newest_rounds() {
        let (mut teller, watchers) = teller();
        let mut stream = watchers.watch();
        let last = 3 * KEPT as u64;
        for sequence in 1..=last {
            teller.due = Instant::now();
            teller.tell(|| RoundReport {
                sequence,
                ..RoundReport::default()
            });
        }
        let mut seen = Vec::new();
        while let Ok(Some(report)) = tokio::time::timeout(Duration::ZERO, stream.recv()).await {
            seen.push(report.sequence);
        }
        assert_eq!(seen.len(), KEPT);
        assert_eq!(seen.last(), Some(&last));
    }
}
