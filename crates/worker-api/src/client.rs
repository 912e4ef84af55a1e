//! The caller's side of a target worker.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use generation::{GenerateEvent, GenerateRequest, ModelDescription, RoundReport, WorkerStats};
use proto::target::v1 as wire;
use proto::target::v1::target_client::TargetClient as WireClient;
use service::Endpoint;
use tokio_stream::Stream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::connect::{self, CONTROL_TIMEOUT};
use crate::convert::{
    description_from_proto, event_from_proto, request_to_proto, round_from_proto, session_to_proto,
    speculation_from_proto, stats_from_proto,
};
use crate::error::{SessionError, WorkerError};
use crate::session::{DraftSession, SpeculationDescription};
use crate::status::session_error;

/// A target worker somewhere. Connects when first used, and again whenever the connection is lost. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TargetClient {
    wire: WireClient<Channel>,
}

impl TargetClient {
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
    pub async fn describe(&self) -> Result<ModelDescription, WorkerError> {
        Ok(description_from_proto(self.ask_description().await?))
    }

    /// How it speculates. Answers only when the worker is ready.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn describe_speculation(&self) -> Result<SpeculationDescription, WorkerError> {
        Ok(speculation_from_proto(&self.ask_description().await?))
    }

    async fn ask_description(&self) -> Result<wire::ModelDescription, WorkerError> {
        let mut request = tonic::Request::new(wire::DescribeRequest {});
        request.set_timeout(CONTROL_TIMEOUT);
        Ok(self.wire.clone().describe(request).await?.into_inner())
    }

    /// Counters since the worker's start.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn stats(&self) -> Result<WorkerStats, WorkerError> {
        let mut request = tonic::Request::new(wire::StatsRequest {});
        request.set_timeout(CONTROL_TIMEOUT);
        let answer = self.wire.clone().stats(request).await?;
        Ok(stats_from_proto(answer.into_inner()))
    }

    /// Has it speculate with the draft of `session`, until the attachment is dropped.
    ///
    /// # Errors
    /// The two do not go together, the channel cannot be opened from there, or the worker is not available.
    pub async fn attach(&self, session: &DraftSession) -> Result<Attachment, SessionError> {
        let request = wire::AttachRequest {
            session: Some(session_to_proto(session)),
        };
        let attach = async {
            let mut events = self.wire.clone().attach(request).await?.into_inner();
            Ok((events.message().await?, events))
        };
        let attached = tokio::time::timeout(CONTROL_TIMEOUT, attach).await;
        let attached = attached.map_err(|_| SessionError::silent("target"))?;
        let (event, events) = attached.map_err(|status| session_error(&status))?;
        match event.and_then(|event| event.event) {
            Some(wire::attach_event::Event::Attached(_)) => Ok(Attachment(events)),
            None => Err(SessionError::silent("target")),
        }
    }

    /// Has its weights leave their device, and returns when they have. It answers nothing meanwhile; requests wait. They come back
    /// when the parking is dropped, and after `at_most` however that goes.
    ///
    /// # Errors
    /// It cannot be parked, or the worker is not available.
    pub async fn park(&self, at_most: Duration) -> Result<Parking, WorkerError> {
        let at_most_ms = u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX);
        let request = wire::ParkRequest { at_most_ms };
        let mut events = self.wire.clone().park(request).await?.into_inner();
        match events.message().await?.and_then(|event| event.event) {
            Some(wire::park_event::Event::Parked(_)) => Ok(Parking { _events: events }),
            None => Err(WorkerError::Internal(
                "the target did not say that it is parked".to_owned(),
            )),
        }
    }

    /// Has its weights come back to their device, whoever parked them, and returns when it computes again.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn unpark(&self) -> Result<(), WorkerError> {
        self.wire.clone().unpark(wire::UnparkRequest {}).await?;
        Ok(())
    }

    /// Some of the rounds from now on, `max_per_second` at most. Nobody watches any more when the stream is dropped.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn watch(&self, max_per_second: u32) -> Result<RoundStream, WorkerError> {
        let request = wire::WatchRequest { max_per_second };
        let watch = async { self.wire.clone().watch(request).await };
        let answer = tokio::time::timeout(CONTROL_TIMEOUT, watch).await;
        let answer =
            answer.map_err(|_| WorkerError::Unavailable("no answer in time".to_owned()))?;
        Ok(RoundStream(answer?.into_inner()))
    }

    /// Continues a prompt. Dropping the stream frees everything that the request holds in the worker.
    ///
    /// # Errors
    /// The worker refuses the request or is not available.
    pub async fn generate(&self, request: GenerateRequest) -> Result<GenerateStream, WorkerError> {
        let answer = self
            .wire
            .clone()
            .generate(request_to_proto(request))
            .await?;
        Ok(GenerateStream(answer.into_inner()))
    }
}

/// A target's weights are away from their device while this lives.
#[derive(Debug)]
pub struct Parking {
    _events: Streaming<wire::ParkEvent>,
}

/// The events of one answer.
#[derive(Debug)]
pub struct GenerateStream(Streaming<wire::GenerateEvent>);

impl Stream for GenerateStream {
    type Item = Result<GenerateEvent, WorkerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0)
            .poll_next(cx)
            .map(|event| Some(event?.map_err(WorkerError::from).and_then(event_from_proto)))
    }
}

/// Rounds of a target as they happen.
#[derive(Debug)]
pub struct RoundStream(Streaming<wire::Round>);

impl Stream for RoundStream {
    type Item = Result<RoundReport, WorkerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0)
            .poll_next(cx)
            .map(|round| Some(round?.map_err(WorkerError::from).and_then(round_from_proto)))
    }
}

/// A draft that a target speculates with. Dropping it takes the draft away.
#[derive(Debug)]
pub struct Attachment(Streaming<wire::AttachEvent>);

impl Attachment {
    /// Returns when the target has let go of the draft, with the reason. Cancel-safe.
    pub async fn lost(&mut self) -> SessionError {
        loop {
            match self.0.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return SessionError::Gone("the target took it away".to_owned()),
                Err(status) => return session_error(&status),
            }
        }
    }
}
