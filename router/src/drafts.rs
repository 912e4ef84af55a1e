//! Brings a draft to the target and keeps it there.
//!
//! A session is opened at the draft and handed to the target; while both streams live, the two speak to each other and
//! the router has no part in it. When either ends, both are dropped and it begins anew. Requests never wait for any of
//! this: without a draft the target decodes plainly.

mod back_off;
mod status;

use std::time::Instant;

use worker_api::{
    Attachment, DraftClient, OpenSession, SessionError, TargetClient, Transport, WorkerError,
};

use crate::drafts::back_off::BackOff;
pub(crate) use crate::drafts::status::{DraftState, DraftStatus};

/// The two workers that speculate together.
#[derive(Clone, Debug)]
pub struct Drafts {
    target: TargetClient,
    draft: DraftClient,
}

/// A draft that its target speculates with. Dropping it takes the draft away.
struct Working {
    open: OpenSession,
    attachment: Attachment,
}

impl Drafts {
    /// A draft for a target; neither needs to be there yet.
    #[must_use]
    pub fn new(target: TargetClient, draft: DraftClient) -> Self {
        Self { target, draft }
    }

    /// Attaches the draft whenever it is not; never ends.
    pub(crate) async fn keep(&self, status: &DraftStatus) {
        let mut back_off = BackOff::default();
        let mut tcp_only = false;
        loop {
            match self.attach(tcp_only).await {
                Ok(working) => {
                    let attached = Instant::now();
                    status.attached(working.open.session().clone());
                    let reason = working.ended().await;
                    status.lost(&reason);
                    back_off.note_session(attached.elapsed());
                    // Another draft, or the same one elsewhere.
                    tcp_only = false;
                }
                Err(SessionError::Unreachable(reason)) if !tcp_only => {
                    tracing::warn!(
                        reason,
                        "the draft's channel is out of the target's reach; taking TCP"
                    );
                    tcp_only = true;
                    continue;
                }
                Err(reason) => status.waiting(&reason),
            }
            tokio::time::sleep(back_off.next()).await;
        }
    }

    async fn attach(&self, tcp_only: bool) -> Result<Working, SessionError> {
        let speculation = self.target.describe_speculation().await.map_err(gone)?;
        if speculation.mode == "off" {
            let words = "the target runs with speculation off".to_owned();
            return Err(SessionError::Mismatch(words));
        }
        let mut transports = speculation.transports;
        transports.retain(|&transport| !tcp_only || transport == Transport::Tcp);
        let open = self.draft.open(&transports).await?;
        let attachment = self.target.attach(open.session()).await?;
        Ok(Working { open, attachment })
    }
}

impl Working {
    /// Waits for the first of the two to let go.
    async fn ended(mut self) -> SessionError {
        tokio::select! {
            reason = self.open.ended() => reason,
            reason = self.attachment.lost() => reason,
        }
    }
}

fn gone(error: WorkerError) -> SessionError {
    SessionError::Gone(error.to_string())
}
