//! The caller's side of a target worker.

use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use generation::{GenerateEvent, GenerateRequest, ModelDescription, WorkerStats};
use hyper_util::rt::TokioIo;
use proto::target::v1 as wire;
use proto::target::v1::target_client::TargetClient as WireClient;
use service::Endpoint;
use tokio::net::UnixStream;
use tokio_stream::Stream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint as Remote};

use crate::convert::{
    description_from_proto, event_from_proto, request_to_proto, stats_from_proto,
};
use crate::error::WorkerError;

/// Connecting to a worker of this host or network takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Questions about the worker itself are answered at once, whatever it computes.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that answers no ping for this long is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

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
        let channel = match endpoint {
            Endpoint::Tcp(address) => remote(format!("http://{address}"))?.connect_lazy(),
            Endpoint::Unix(path) => {
                let path = path.clone();
                // The name goes nowhere: the connector knows the way.
                remote("http://worker.invalid".to_owned())?
                    .connect_with_connector_lazy(tower::service_fn(move |_| connect(path.clone())))
            }
        };
        Ok(Self {
            wire: WireClient::new(channel),
        })
    }

    /// What is loaded. Answers only when the worker is ready.
    ///
    /// # Errors
    /// The worker is not available.
    pub async fn describe(&self) -> Result<ModelDescription, WorkerError> {
        let mut request = tonic::Request::new(wire::DescribeRequest {});
        request.set_timeout(CONTROL_TIMEOUT);
        let answer = self.wire.clone().describe(request).await?;
        Ok(description_from_proto(answer.into_inner()))
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

fn remote(uri: String) -> Result<Remote, WorkerError> {
    let remote = Remote::from_shared(uri)
        .map_err(|error| WorkerError::Invalid(error.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    Ok(remote)
}

async fn connect(path: PathBuf) -> std::io::Result<TokioIo<UnixStream>> {
    Ok(TokioIo::new(UnixStream::connect(path).await?))
}
