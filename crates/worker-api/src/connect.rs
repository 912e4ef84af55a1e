//! The way to a worker.

use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use service::Endpoint;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint as Remote};

use crate::error::WorkerError;

/// Connecting to a worker of this host or network takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Questions about the worker itself are answered at once, whatever it computes.
pub(crate) const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that answers no ping for this long is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Connects when first used, and again whenever the connection is lost.
pub(crate) fn channel(endpoint: &Endpoint) -> Result<Channel, WorkerError> {
    Ok(match endpoint {
        Endpoint::Tcp(address) => remote(format!("http://{address}"))?.connect_lazy(),
        Endpoint::Unix(path) => {
            let path = path.clone();
            // The name goes nowhere: the connector knows the way.
            remote("http://worker.invalid".to_owned())?
                .connect_with_connector_lazy(tower::service_fn(move |_| connect(path.clone())))
        }
    })
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
