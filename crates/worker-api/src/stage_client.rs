//! The caller's side of a stage of a split target.

use proto::stage::v1 as wire;
use proto::stage::v1::stage_client::StageClient as WireClient;
use service::Endpoint;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::connect::{self, CONTROL_TIMEOUT};
use crate::convert::{later_stage_to_proto, stage_session_from_proto};
use crate::error::{SessionError, WorkerError};
use crate::stage::{LaterStage, StageSession};
use crate::status::session_error;

/// A stage somewhere. Connects when first used, and again whenever the connection is lost. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StageClient {
    wire: WireClient<Channel>,
}

impl StageClient {
    /// A client of the stage at `endpoint`, which need not be there yet.
    ///
    /// # Errors
    /// `endpoint` cannot be an address.
    pub fn new(endpoint: &Endpoint) -> Result<Self, WorkerError> {
        Ok(Self {
            wire: WireClient::new(connect::channel(endpoint)?),
        })
    }

    /// Has it offer a tensor channel to `later`, the stage after it.
    ///
    /// # Errors
    /// The two do not go together, or it or a stage before it is not available.
    pub async fn open(&self, later: &LaterStage) -> Result<OpenStage, SessionError> {
        let request = later_stage_to_proto(later);
        let open = async {
            let mut events = self.wire.clone().open(request).await?.into_inner();
            Ok((events.message().await?, events))
        };
        let opened = tokio::time::timeout(CONTROL_TIMEOUT, open).await;
        let opened = opened.map_err(|_| SessionError::silent("stage"))?;
        let (event, events) = opened.map_err(|status| session_error(&status))?;
        let Some(wire::session_event::Event::Opened(opened)) = event.and_then(|event| event.event)
        else {
            return Err(SessionError::silent("stage"));
        };
        let session = stage_session_from_proto(opened)?;
        Ok(OpenStage { session, events })
    }
}

/// A session of a stage. Dropping it frees everything that the stage holds for it.
#[derive(Debug)]
pub struct OpenStage {
    session: StageSession,
    events: Streaming<wire::SessionEvent>,
}

impl OpenStage {
    /// What the stage after needs to attach.
    #[must_use]
    pub fn session(&self) -> &StageSession {
        &self.session
    }

    /// Returns when the stage has ended the session, with the reason. Cancel-safe.
    pub async fn ended(&mut self) -> SessionError {
        loop {
            match self.events.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return SessionError::Gone("the stage ended the session".to_owned()),
                Err(status) => return session_error(&status),
            }
        }
    }
}
