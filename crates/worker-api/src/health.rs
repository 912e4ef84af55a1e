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
/// It is not there, does not answer in time, or is loading or ending.
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
            _ => unavailable("the worker is loading or ending"),
        },
    }
}
