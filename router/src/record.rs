//! What is known of a request, told to the log and to the metrics when its last holder lets go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::{Method, StatusCode};
use tracing::{debug, info};

use crate::metrics::Metrics;

/// The status of requests whose client left before an answer.
const CLIENT_LEFT: u16 = 499;

/// One request.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    pub id: String,
    pub started: Instant,
    method: Method,
    pub route: String,
    metrics: Arc<Metrics>,
    facts: Mutex<Facts>,
}

/// How far the answers of a request are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SoFar {
    pub phase: Phase,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub completion_tokens: u32,
}

/// What is done for a request now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Its prompt is made shorter, or it is on its way to the target.
    #[default]
    Preparing,
    /// The target has it, and has not begun.
    Queued,
    /// The target reads the prompt.
    Prefill,
    /// Tokens come.
    Decode,
}

impl Phase {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Whether the target works for it.
    pub fn is_processing(self) -> bool {
        matches!(self, Self::Prefill | Self::Decode)
    }
}

#[derive(Debug, Clone, Default)]
struct Facts {
    status: Option<u16>,
    so_far: SoFar,
    outcome: Option<Outcome>,
}

/// How the answers of a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Complete,
    Failed,
    Cancelled,
}

impl RequestRecord {
    pub fn new(id: String, method: Method, route: String, metrics: Arc<Metrics>) -> Self {
        Self {
            id,
            started: Instant::now(),
            method,
            route,
            metrics,
            facts: Mutex::default(),
        }
    }

    pub fn responded(&self, status: StatusCode) {
        self.facts().status = Some(status.as_u16());
    }

    pub fn answered(&self, outcome: Outcome, prompt_tokens: u32, completion_tokens: u32) {
        let mut facts = self.facts();
        facts.outcome = Some(outcome);
        facts.so_far.prompt_tokens = prompt_tokens;
        facts.so_far.completion_tokens = completion_tokens;
    }

    /// Takes note of how far it is.
    pub fn progressed(&self, note: impl FnOnce(&mut SoFar)) {
        note(&mut self.facts().so_far);
    }

    pub fn so_far(&self) -> SoFar {
        self.facts().so_far
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        // The facts are plain values: whoever panicked left them whole.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let facts = self.facts().clone();
        let status = facts.status.unwrap_or(CLIENT_LEFT);
        let cancelled = status == CLIENT_LEFT || facts.outcome == Some(Outcome::Cancelled);
        self.metrics.request_ended(&self.route, status);
        if status == StatusCode::TOO_MANY_REQUESTS {
            self.metrics.rejected.increment(1);
        }
        if cancelled {
            self.metrics.cancelled.increment(1);
        } else if facts.outcome == Some(Outcome::Failed) {
            self.metrics.failed.increment(1);
        }
        if facts.outcome.is_some() {
            self.metrics.request_took(self.started.elapsed());
        }
        let elapsed_ms = self.started.elapsed().as_millis() as u64;
        if self.method != Method::POST {
            // Polls for health and metrics would drown the rest.
            let Self {
                id, method, route, ..
            } = self;
            debug!(request_id = %id, %method, %route, status, elapsed_ms, "request");
            return;
        }
        info!(
            request_id = %self.id,
            method = %self.method,
            route = %self.route,
            status,
            cancelled,
            failed = facts.outcome == Some(Outcome::Failed),
            prompt_tokens = facts.so_far.prompt_tokens,
            completion_tokens = facts.so_far.completion_tokens,
            elapsed_ms,
            "request"
        );
    }
}
