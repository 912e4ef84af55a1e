//! The draft and the prefill drafter on one device that has no room for both: the draft leaves it while a prompt is scored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;
use worker_api::DraftClient;

use crate::metrics::Metrics;

/// What the draft gets to come back before the next prompt may ask it to leave again: it goes on trying by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who is on the device. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    draft: DraftClient,
    metrics: Arc<Metrics>,
    /// Prompts that want the draft away.
    prompts: AtomicUsize,
    /// Whether it is. Held while it moves.
    is_parked: Mutex<bool>,
}

/// The draft is away until the last of these is dropped.
#[derive(Debug)]
pub(super) struct Turn(Turns);

impl Turns {
    pub fn new(draft: DraftClient, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Shared {
            draft,
            metrics,
            prompts: AtomicUsize::new(0),
            is_parked: Mutex::new(false),
        }))
    }

    /// Sends the draft away. One that is not there is away already; then the target decodes plainly, as it does now.
    pub async fn take(&self) -> Turn {
        let shared = &self.0;
        shared.prompts.fetch_add(1, Ordering::SeqCst);
        // Whoever gives up here still brings it back.
        let turn = Turn(self.clone());
        let mut is_parked = shared.is_parked.lock().await;
        if !*is_parked {
            let started = Instant::now();
            match shared.draft.park().await {
                Ok(()) => {
                    *is_parked = true;
                    shared.metrics.compression.parked(started.elapsed());
                }
                Err(error) => tracing::debug!(%error, "the draft does not leave its device"),
            }
        }
        turn
    }

    async fn bring_back(&self) {
        let shared = &self.0;
        let mut is_parked = shared.is_parked.lock().await;
        if !*is_parked || shared.prompts.load(Ordering::SeqCst) > 0 {
            return;
        }
        let started = Instant::now();
        match tokio::time::timeout(PATIENCE, shared.draft.unpark()).await {
            Ok(Ok(())) => shared.metrics.compression.unparked(started.elapsed()),
            // One that was started anew is on its device, and one that is gone comes back so.
            Ok(Err(error)) => tracing::warn!(%error, "the draft does not come back to its device"),
            Err(_) => tracing::warn!(?PATIENCE, "the draft is not back on its device yet"),
        }
        *is_parked = false;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.0.0.prompts.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let turns = self.0.clone();
        // Without a runtime the process ends.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { turns.bring_back().await });
        }
    }
}
