//! Whether the prefill worker is of use, so that nobody waits for one that is not and the log has each trouble once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use worker_api::WorkerError;

use crate::back_off::BackOff;
use crate::compression::skip::Skip;

#[derive(Debug, Default)]
pub(super) struct Presence(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    back_off: BackOff,
    /// Since the last answer.
    trouble: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    reason: String,
    next_try: Instant,
}

impl Presence {
    /// Whether it is worth asking. After a failure not at once.
    pub fn may_try(&self) -> bool {
        let state = self.lock();
        let trouble = state.trouble.as_ref();
        trouble.is_none_or(|trouble| trouble.next_try <= Instant::now())
    }

    /// What keeps it from being of use, as far as is known.
    pub fn trouble(&self) -> Option<String> {
        let state = self.lock();
        state.trouble.as_ref().map(|trouble| trouble.reason.clone())
    }

    pub fn answered(&self) {
        let mut state = self.lock();
        state.back_off = BackOff::default();
        if state.trouble.take().is_some() {
            tracing::info!("the prefill worker is of use again");
        }
    }

    /// The first failure since the last answer is told.
    pub fn failed(&self, reason: &str) {
        let mut state = self.lock();
        let next_try = Instant::now() + state.back_off.next();
        let trouble = Trouble {
            reason: reason.to_owned(),
            next_try,
        };
        if state.trouble.replace(trouble).is_none() {
            tracing::warn!(reason, "no help of the prefill worker; prompts stay whole");
        }
    }

    /// What a refusal means for the prompt, and for those to come.
    pub fn refused(&self, error: &WorkerError) -> Skip {
        match error {
            // It is there, and says so.
            WorkerError::PromptTooLong(_) => return Skip::TooLong,
            WorkerError::QueueFull(_) => return Skip::Busy,
            _ => self.failed(&error.to_string()),
        }
        match error {
            WorkerError::Unavailable(_) => Skip::Absent,
            WorkerError::NoRoom(_) => Skip::NoRoom,
            _ => Skip::Failed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is plain values: whoever panicked left them whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
