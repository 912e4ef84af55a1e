//! The caller's side of a draft worker.

use proto::draft::v1 as wire;
use proto::draft::v1::draft_client::DraftClient as WireClient;
use service::Endpoint;
use tensor_channel::Transport;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::connect::{self, CONTROL_TIMEOUT};
use crate::convert::{
    draft_from_proto, draft_stats_from_proto, session_from_proto, transports_to_proto,
};
use crate::error::{SessionError, WorkerError};
use crate::session::{DraftDescription, DraftSession, DraftStats};
use crate::status::{session_error, worker_error};

/// A draft worker somewhere. Connects when first used, and again whenever the connection is lost. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DraftClient {
    wire: WireClient<Channel>,
}

impl DraftClient {
    /// A client of the worker at `endpoint`, which need not be there yet.
    ///
    /// # Errors
    /// `endpoint` cannot be an address.
    pub fn new(endpoint: &Endpoint) -> Result<Self, WorkerError> {
        Ok(Self {
            wire: WireClient::new(connect::channel(endpoint)?),
        })
    }

    /// What is loaded. Answers only when the worker is ready.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn describe(&self) -> Result<DraftDescription, WorkerError> {
        let mut request = tonic::Request::new(wire::DescribeRequest {});
        request.set_timeout(CONTROL_TIMEOUT);
        let answer = self.wire.clone().describe(request).await;
        let answer = answer.map_err(|status| worker_error(&status, "draft"))?;
        Ok(draft_from_proto(answer.into_inner()))
    }

    /// Counters since the worker's start.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn stats(&self) -> Result<DraftStats, WorkerError> {
        let mut request = tonic::Request::new(wire::StatsRequest {});
        request.set_timeout(CONTROL_TIMEOUT);
        let answer = self.wire.clone().stats(request).await;
        let answer = answer.map_err(|status| worker_error(&status, "draft"))?;
        Ok(draft_stats_from_proto(answer.into_inner()))
    }

    /// Has it give the device's memory back, and returns when it has. Its sessions end.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn park(&self) -> Result<(), WorkerError> {
        let parked = self.wire.clone().park(wire::ParkRequest {}).await;
        parked
            .map(drop)
            .map_err(|status| worker_error(&status, "draft"))
    }

    /// Has it come back to its device, and returns when sessions can begin.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn unpark(&self) -> Result<(), WorkerError> {
        let unparked = self.wire.clone().unpark(wire::UnparkRequest {}).await;
        unparked
            .map(drop)
            .map_err(|status| worker_error(&status, "draft"))
    }

    /// Has it offer a tensor channel to a target that can do `transports`.
    ///
    /// # Errors
    /// There is no way between the two, or the worker is not available.
    pub async fn open(&self, transports: &[Transport]) -> Result<OpenSession, SessionError> {
        let request = wire::OpenRequest {
            transports: transports_to_proto(transports),
        };
        let open = async {
            let mut events = self.wire.clone().open(request).await?.into_inner();
            Ok((events.message().await?, events))
        };
        let opened = tokio::time::timeout(CONTROL_TIMEOUT, open).await;
        let opened = opened.map_err(|_| SessionError::silent("draft"))?;
        let (event, events) = opened.map_err(|status| session_error(&status))?;
        let Some(wire::session_event::Event::Opened(opened)) = event.and_then(|event| event.event)
        else {
            return Err(SessionError::silent("draft"));
        };
        let missing = || SessionError::Invalid("Opened.session is missing".to_owned());
        let session = session_from_proto(opened.session.ok_or_else(missing)?)?;
        Ok(OpenSession { session, events })
    }
}

/// A session of a draft. Dropping it frees everything that the draft holds for it.
#[derive(Debug)]
pub struct OpenSession {
    session: DraftSession,
    events: Streaming<wire::SessionEvent>,
}

impl OpenSession {
    /// What a target needs to attach.
    #[must_use]
    pub fn session(&self) -> &DraftSession {
        &self.session
    }

    /// Returns when the draft has ended the session, with the reason. Cancel-safe.
    pub async fn ended(&mut self) -> SessionError {
        loop {
            match self.events.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return SessionError::Gone("the draft ended the session".to_owned()),
                Err(status) => return session_error(&status),
            }
        }
    }
}
