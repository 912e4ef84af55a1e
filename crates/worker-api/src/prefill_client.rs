//! The caller's side of a prefill worker.

use std::pin::Pin;
use std::task::{Context, Poll};

use proto::prefill::v1 as wire;
use proto::prefill::v1::prefill_client::PrefillClient as WireClient;
use service::Endpoint;
use tokio_stream::Stream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::connect::{self, CONTROL_TIMEOUT};
use crate::convert::{
    compress_event_from_proto, compress_request_to_proto, prefill_from_proto,
    prefill_stats_from_proto,
};
use crate::error::WorkerError;
use crate::prefill::{CompressEvent, CompressRequest, PrefillDescription, PrefillStats};
use crate::status::worker_error;

/// A prefill worker somewhere. Connects when first used, and again whenever the connection is lost. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PrefillClient {
    wire: WireClient<Channel>,
}

impl PrefillClient {
    /// A client of the worker at `endpoint`, which need not be there yet.
    ///
    /// # Errors
    /// `endpoint` cannot be an address.
    pub fn new(endpoint: &Endpoint) -> Result<Self, WorkerError> {
        Ok(Self {
            wire: WireClient::new(connect::channel(endpoint)?),
        })
    }

    /// What scores prompts there.
    ///
    /// # Errors
    /// The worker is not available, or what it says cannot be.
    pub async fn describe(&self) -> Result<PrefillDescription, WorkerError> {
        let mut request = tonic::Request::new(wire::DescribeRequest {});
        request.set_timeout(CONTROL_TIMEOUT);
        let answer = self.wire.clone().describe(request).await;
        prefill_from_proto(answer.map_err(error)?.into_inner())
    }

    /// Counters since the worker's start.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn stats(&self) -> Result<PrefillStats, WorkerError> {
        let mut request = tonic::Request::new(wire::StatsRequest {});
        request.set_timeout(CONTROL_TIMEOUT);
        let answer = self.wire.clone().stats(request).await;
        Ok(prefill_stats_from_proto(
            answer.map_err(error)?.into_inner(),
        ))
    }

    /// Has it give the device's memory back, and returns when it has. Requests that came before are answered first, so
    /// that this can take as long as they do.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn park(&self) -> Result<(), WorkerError> {
        let parked = self.wire.clone().park(wire::ParkRequest {}).await;
        parked.map(drop).map_err(error)
    }

    /// Asks which parts of a prompt are worth keeping. Dropping the stream cancels.
    ///
    /// # Errors
    /// The worker refuses the request or is not available.
    pub async fn compress(&self, request: CompressRequest) -> Result<CompressStream, WorkerError> {
        let request = compress_request_to_proto(request)?;
        let answer = self.wire.clone().compress(request).await;
        Ok(CompressStream(answer.map_err(error)?.into_inner()))
    }
}

fn error(status: Status) -> WorkerError {
    worker_error(&status, "prefill")
}

/// Progress, and at the end the compression.
#[derive(Debug)]
pub struct CompressStream(Streaming<wire::CompressEvent>);

impl Stream for CompressStream {
    type Item = Result<CompressEvent, WorkerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = Pin::new(&mut self.0).poll_next(cx);
        event.map(|event| Some(event?.map_err(error).and_then(compress_event_from_proto)))
    }
}
