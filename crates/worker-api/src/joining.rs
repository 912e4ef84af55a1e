//! Bringing a draft and a target together.

use tensor_channel::Transport;

use crate::client::{Attachment, TargetClient};
use crate::draft_client::{DraftClient, OpenSession};
use crate::error::{SessionError, WorkerError};

/// A target and a draft that speculate together. Dropping it takes the draft away.
#[derive(Debug)]
pub struct Joined {
    /// The session at the draft.
    pub open: OpenSession,
    /// The same at the target.
    pub attachment: Attachment,
}

/// Opens a session at the draft and hands it to the target, by the best way that both have. Where that turns out to lead
/// out of the target's reach, as memory of devices and shared memory do between containers, by the next one.
///
/// # Errors
/// One of them is not there, they do not go together, or no way leads from one to the other.
pub async fn join(target: &TargetClient, draft: &DraftClient) -> Result<Joined, SessionError> {
    let speculation = target.describe_speculation().await.map_err(gone)?;
    if speculation.mode == "off" {
        let words = "the target runs with speculation off".to_owned();
        return Err(SessionError::Mismatch(words));
    }
    let mut transports = speculation.transports;
    loop {
        let open = draft.open(&transports).await?;
        let tried = open.session().transport();
        match target.attach(open.session()).await {
            Ok(attachment) => return Ok(Joined { open, attachment }),
            Err(SessionError::Unreachable(reason)) if tried != Transport::Tcp => {
                tracing::warn!(
                    reason,
                    transport = %tried,
                    "the draft's channel is out of the target's reach; taking another way"
                );
                transports.retain(|&transport| transport > tried);
            }
            Err(error) => return Err(error),
        }
    }
}

fn gone(error: WorkerError) -> SessionError {
    SessionError::Gone(error.to_string())
}
