//! Whether a worker serves.

use service::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::connect::{self, CONTROL_TIMEOUT};
use crate::error::WorkerError;

/// Asks a worker of any role whether it takes calls, by the standard health service.
///
/// # Errors
/// It is not there, does not answer in time, is loading or ending, or its weights do not come back to their device.
pub async fn check_health(endpoint: &Endpoint) -> Result<(), WorkerError> {
    let mut client = HealthClient::new(connect::channel(endpoint)?);
    // Without a name: the whole process.
    let request = HealthCheckRequest::default();
    let answer = tokio::time::timeout(CONTROL_TIMEOUT, client.check(request)).await;
    let unavailable = |reason: &str| Err(WorkerError::Unavailable(reason.to_owned()));
    match answer {
        Err(_) => unavailable("the worker does not answer"),
        Ok(answer) => match answer?.into_inner().status() {
            ServingStatus::Serving => Ok(()),
            _ => unavailable("the worker is loading or ending, or its weights do not come back"),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use proto::stage::v1::stage_server::{Stage, StageServer};
    use proto::stage::v1::{OpenRequest, SessionEvent};
    use service::{GrpcListener, HeldStream, serve_grpc};
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;
    use tonic::{Request, Response, Status};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    struct Refusing;

    #[tonic::async_trait]
    impl Stage for Refusing {
        type OpenStream = HeldStream<SessionEvent>;

        async fn open(
            &self,
            _: Request<OpenRequest>,
        ) -> Result<Response<Self::OpenStream>, Status> {
            Err(Status::unavailable("nobody asks"))
        }
    }

    /// The report follows what it is made from; it needs no longer than the patience for that.
    async fn until(endpoint: &Endpoint, is_healthy: bool) {
        let reported = async {
            while check_health(endpoint).await.is_ok() != is_healthy {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reported).await.unwrap();
    }

    #[tokio::test]
    async fn a_worker_is_healthy_while_it_is_ready_however_often_that_changes() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::Unix(dir.path().join("stage.sock"));
        assert!(check_health(&endpoint).await.is_err(), "nobody is there");
        let listener = GrpcListener::bind(&endpoint).await.unwrap();
        let (ready, shutdown) = (watch::Sender::new(false), CancellationToken::new());
        let service = StageServer::new(Refusing);
        let (receiver, stop) = (ready.subscribe(), shutdown.clone());
        let served = tokio::spawn(serve_grpc(listener, service, receiver, stop, PATIENCE));
        let refused = check_health(&endpoint).await.unwrap_err().to_string();
        assert!(refused.contains("loading or ending"), "{refused}");
        for is_ready in [true, false, true] {
            ready.send_replace(is_ready);
            until(&endpoint, is_ready).await;
        }
        drop(ready);
        assert!(check_health(&endpoint).await.is_ok());
        shutdown.cancel();
        served.await.unwrap().unwrap();
        assert!(check_health(&endpoint).await.is_err());
    }
}
