//! Target, draft and prefill drafter on one device that has no room for all: the others leave it while a prompt is scored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;
use worker_api::{DraftClient, Parking, TargetClient, WorkerError};

use crate::metrics::Metrics;

/// What a worker gets to come back before the next prompt may ask it to leave again: it goes on trying by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// When the target leaves its device for a prompt that is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetResidency {
    /// When the prefill worker finds no room else.
    Auto,
    /// Never.
    Persistent,
    /// Always.
    RequestScoped,
}

/// Who leaves.
#[derive(Debug)]
pub(super) struct Others {
    /// `None`: it stays.
    pub draft: Option<DraftClient>,
    /// `None`: it stays.
    pub target: Option<(TargetClient, TargetResidency)>,
}

/// Who is on the device. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    others: Others,
    /// How long a target stays away, whatever becomes of the prompt.
    at_most: Duration,
    metrics: Arc<Metrics>,
    /// Prompts that want the others away.
    prompts: AtomicUsize,
    /// Held while somebody moves.
    away: Mutex<Away>,
    /// Tokens of the shortest prompt that found no room although all were away.
    least_in_vain: AtomicUsize,
}

#[derive(Debug, Default)]
struct Away {
    draft: bool,
    target: Option<Parking>,
}

/// The others are away until the last of these is dropped.
#[derive(Debug)]
pub(super) struct Turn(Turns);

impl Turns {
    pub fn new(others: Others, at_most: Duration, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Shared {
            others,
            at_most,
            metrics,
            prompts: AtomicUsize::new(0),
            away: Mutex::default(),
            least_in_vain: AtomicUsize::new(usize::MAX),
        }))
    }

    /// Sends those away that leave for every prompt. One that is not there is away already.
    pub async fn take(&self) -> Turn {
        let shared = &self.0;
        shared.prompts.fetch_add(1, Ordering::SeqCst);
        // Whoever gives up here still brings them back.
        let turn = Turn(self.clone());
        let mut away = shared.away.lock().await;
        if let Some(draft) = shared.others.draft.as_ref().filter(|_| !away.draft) {
            let started = Instant::now();
            match draft.park().await {
                Ok(()) => {
                    away.draft = true;
                    shared.metrics.compression.draft.parked(started.elapsed());
                }
                Err(error) => tracing::debug!(%error, "the draft does not leave its device"),
            }
        }
        if let Some((target, TargetResidency::RequestScoped)) = &shared.others.target
            && away.target.is_none()
            && let Err(error) = shared.park(target, &mut away).await
        {
            tracing::debug!(%error, "the target does not leave its device");
        }
        turn
    }

    async fn bring_back(&self) {
        let shared = &self.0;
        let mut away = shared.away.lock().await;
        if shared.prompts.load(Ordering::SeqCst) > 0 {
            return;
        }
        // First who answers requests.
        if let Some((target, _)) = &shared.others.target
            && away.target.take().is_some()
        {
            let moves = &shared.metrics.compression.target;
            let started = Instant::now();
            if is_back("target", target.unpark()).await {
                moves.unparked(started.elapsed());
            }
        }
        if let Some(draft) = &shared.others.draft
            && std::mem::take(&mut away.draft)
        {
            let started = Instant::now();
            if is_back("draft", draft.unpark()).await {
                shared.metrics.compression.draft.unparked(started.elapsed());
            }
        }
    }
}

impl Shared {
    async fn park(&self, target: &TargetClient, away: &mut Away) -> Result<(), WorkerError> {
        let started = Instant::now();
        let parking = target.park(self.at_most).await?;
        // One that was there before may have been over.
        if away.target.replace(parking).is_none() {
            self.metrics.compression.target.parked(started.elapsed());
        }
        Ok(())
    }
}

/// Whether a worker has come back.
async fn is_back(worker: &str, unparked: impl Future<Output = Result<(), WorkerError>>) -> bool {
    match tokio::time::timeout(PATIENCE, unparked).await {
        Ok(Ok(())) => return true,
        // One that was started anew is on its device, and one that is gone comes back so.
        Ok(Err(error)) => tracing::warn!(worker, %error, "it does not come back to its device"),
        Err(_) => tracing::warn!(worker, ?PATIENCE, "it is not back on its device yet"),
    }
    false
}

impl Turn {
    /// Has the target leave too, for a prompt of so many tokens that found no room; whether it is worth asking for it again.
    ///
    /// # Errors
    /// The target does not leave.
    pub async fn make_room(&self, tokens: usize) -> Result<bool, WorkerError> {
        let shared = &self.0.0;
        let Some((target, residency)) = &shared.others.target else {
            return Ok(false);
        };
        // It may be on another device, and then all answers would stand still for nothing, again and again.
        let is_in_vain = tokens >= shared.least_in_vain.load(Ordering::Relaxed);
        if *residency == TargetResidency::Auto && is_in_vain {
            return Ok(false);
        }
        let mut away = shared.away.lock().await;
        shared.park(target, &mut away).await?;
        Ok(true)
    }

    /// A prompt of so many tokens found no room although all were away.
    pub fn note_in_vain(&self, tokens: usize) {
        let least = &self.0.0.least_in_vain;
        least.fetch_min(tokens, Ordering::Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.0.0.prompts.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let turns = self.0.clone();
        // Without a runtime the process ends, and a target comes back by itself.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { turns.bring_back().await });
        }
    }
}
