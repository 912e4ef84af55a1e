//! Whether the target has a draft, for people and `/props`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use worker_api::{DraftClient, DraftSession, DraftStats, SessionError};

/// Whether the target has a draft.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum DraftState {
    /// None is configured.
    #[default]
    Unwanted,
    /// It is not there, or does not fit.
    Waiting {
        /// Why, once it is known.
        reason: String,
    },
    /// The target speculates with it.
    Attached(Box<DraftSession>),
}

/// The state, written by the keeper and read by anyone.
#[derive(Debug, Default)]
pub(crate) struct DraftStatus {
    state: Mutex<DraftState>,
    /// None is configured.
    worker: Option<DraftClient>,
}

impl DraftStatus {
    /// A draft is configured.
    pub fn wanted(worker: DraftClient) -> Self {
        let reason = "not asked for yet".to_owned();
        Self {
            state: Mutex::new(DraftState::Waiting { reason }),
            worker: Some(worker),
        }
    }

    /// What the worker counts, where it is there.
    pub async fn stats(&self) -> Option<DraftStats> {
        self.worker.as_ref()?.stats().await.ok()
    }

    pub fn get(&self) -> DraftState {
        self.lock().clone()
    }

    pub fn attached(&self, session: DraftSession) {
        tracing::info!(
            draft = session.draft.name,
            transport = %session.transport(),
            block_size = session.draft.block_size,
            "draft attached"
        );
        *self.lock() = DraftState::Attached(Box::new(session));
    }

    /// A draft that worked does not any more.
    pub fn lost(&self, reason: &SessionError) {
        tracing::warn!(%reason, "draft lost; going on without");
        let reason = reason.to_string();
        *self.lock() = DraftState::Waiting { reason };
    }

    /// An attempt failed. Each reason is told once: what passes by itself quietly.
    pub fn waiting(&self, error: &SessionError) {
        let reason = error.to_string();
        let state = DraftState::Waiting {
            reason: reason.clone(),
        };
        if std::mem::replace(&mut *self.lock(), state.clone()) == state {
            return;
        }
        match error {
            SessionError::Gone(_) => tracing::debug!(reason, "no draft yet"),
            _ => tracing::warn!(reason, "no draft"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, DraftState> {
        // A state is whole whatever happens elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
