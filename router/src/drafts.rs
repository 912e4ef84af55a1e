//! Brings a draft to the target and keeps it there.
//!
//! A session is opened at the draft and handed to the target; while both streams live, the two speak to each other and
//! the router has no part in it. When either ends, both are dropped and it begins anew. Requests never wait for any of
//! this: without a draft the target decodes plainly.

mod status;

use std::time::Instant;

use worker_api::{DraftClient, Joined, SessionError, TargetClient, join};

use crate::back_off::BackOff;
pub(crate) use crate::drafts::status::{DraftState, DraftStatus};

/// The two workers that speculate together.
#[derive(Clone, Debug)]
pub struct Drafts {
    target: TargetClient,
    draft: DraftClient,
}

impl Drafts {
    /// A draft for a target; neither needs to be there yet.
    #[must_use]
    pub fn new(target: TargetClient, draft: DraftClient) -> Self {
        Self { target, draft }
    }

    pub(crate) fn status(&self) -> DraftStatus {
        DraftStatus::wanted(self.draft.clone())
    }

    /// Attaches the draft whenever it is not; never ends.
    pub(crate) async fn keep(&self, status: &DraftStatus) {
        let mut back_off = BackOff::default();
        loop {
            match join(&self.target, &self.draft).await {
                Ok(joined) => {
                    let attached = Instant::now();
                    status.attached(joined.open.session().clone());
                    let reason = ended(joined).await;
                    status.lost(&reason);
                    back_off.note_session(attached.elapsed());
                }
                Err(reason) => status.waiting(&reason),
            }
            tokio::time::sleep(back_off.next()).await;
        }
    }
}

/// Waits for the first of the two to let go.
async fn ended(mut joined: Joined) -> SessionError {
    tokio::select! {
        reason = joined.open.ended() => reason,
        reason = joined.attachment.lost() => reason,
    }
}
