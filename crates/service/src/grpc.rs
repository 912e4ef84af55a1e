//! A gRPC server over a Unix socket or TCP, with the standard health service.

use std::convert::Infallible;
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::endpoint::Endpoint;
use crate::error::ServiceError;

/// A peer that answers no ping for this long is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Name under which the health service answers for all that a process serves.
const WHOLE_PROCESS: &str = "";

/// What [`serve_grpc`] takes: a service that tonic generated.
pub trait GrpcService:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Future + Send>
    + NamedService
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> GrpcService for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Future + Send>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// A bound socket. A socket file is removed when this is dropped.
#[derive(Debug)]
pub enum GrpcListener {
    /// A socket file, open to its owner only.
    Unix(UnixListener, SocketFile),
    /// TCP.
    Tcp(TcpListener),
}

/// Removes a socket file when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have cleaned up already.
        let _gone = fs::remove_file(&self.0);
    }
}

impl GrpcListener {
    /// Binds. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// Another process listens there, or the system refuses.
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, ServiceError> {
        let refused = |source| ServiceError::Listen {
            endpoint: endpoint.clone(),
            source,
        };
        match endpoint {
            Endpoint::Tcp(address) => Ok(Self::Tcp(
                TcpListener::bind(address).await.map_err(refused)?,
            )),
            Endpoint::Unix(path) => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(ServiceError::InUse {
                        endpoint: endpoint.clone(),
                    });
                }
                let listener = bind_unix(path).map_err(refused)?;
                Ok(Self::Unix(listener, SocketFile(path.clone())))
            }
        }
    }
}

/// The permissions follow the bind, so the folder should be private too.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves until `shutdown`, then lets running calls finish for at most `drain`. The health service says that `S`, and so the
/// whole process, serves while `ready` is true, until `shutdown`.
///
/// # Errors
/// The server broke.
pub async fn serve_grpc<S: GrpcService>(
    listener: GrpcListener,
    service: S,
    ready: watch::Receiver<bool>,
    shutdown: CancellationToken,
    drain: Duration,
) -> Result<(), ServiceError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    report::<S>(&reporter, false).await;
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(health)
        .add_service(service);
    let stop = {
        let shutdown = shutdown.clone();
        async move {
            tokio::select! {
                () = follow::<S>(&reporter, ready) => {}
                () = shutdown.cancelled() => {}
            }
            report::<S>(&reporter, false).await;
        }
    };
    let too_long = async {
        shutdown.cancelled().await;
        tokio::time::sleep(drain).await;
    };
    let serve = async {
        match listener {
            GrpcListener::Unix(listener, _file) => {
                let incoming = UnixListenerStream::new(listener);
                router.serve_with_incoming_shutdown(incoming, stop).await
            }
            GrpcListener::Tcp(listener) => {
                let incoming = TcpListenerStream::new(listener);
                router.serve_with_incoming_shutdown(incoming, stop).await
            }
        }
    };
    tokio::select! {
        served = serve => Ok(served?),
        () = too_long => {
            tracing::warn!(drain_ms = drain.as_millis(), "calls cut off at the end of the drain");
            Ok(())
        }
    }
}

/// Reports what `ready` is, again and again.
async fn follow<S: NamedService>(reporter: &HealthReporter, mut ready: watch::Receiver<bool>) {
    loop {
        let is_ready = *ready.borrow_and_update();
        report::<S>(reporter, is_ready).await;
        if ready.changed().await.is_err() {
            // Whoever said it is gone: it stays as it is.
            return std::future::pending().await;
        }
    }
}

/// Tells those who ask for the service and those who ask for the whole process.
async fn report<S: NamedService>(reporter: &HealthReporter, is_ready: bool) {
    let status = match is_ready {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    };
    for name in [S::NAME, WHOLE_PROCESS] {
        reporter.set_service_status(name, status).await;
    }
}
