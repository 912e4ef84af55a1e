//! Connections: taken as they come, bounded in what the heads of requests may be and take, and let go at the shutdown.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::debug;

use crate::http::Service;

/// Longest head of a request that is read at all; what is longer is answered with 431 and no body.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// Serves until `shutdown`, and what runs then to its end. A head may take `head_time`; zero: as long as it likes.
pub(crate) async fn serve(
    mut listener: impl Listener<Io = TcpStream, Addr = SocketAddr>,
    service: Service,
    head_time: Duration,
    shutdown: CancellationToken,
) {
    let mut server = http1::Builder::new();
    server
        .max_buf_size(MAX_HEAD_BYTES)
        .timer(TokioTimer::new())
        .header_read_timeout((!head_time.is_zero()).then_some(head_time));
    let graceful = GracefulShutdown::new();
    // Dropped with what still runs, where nobody waits for it any more.
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            (stream, _) = listener.accept() => stream,
            Some(_) = connections.join_next() => continue,
            () = shutdown.cancelled() => break,
        };
        let service = service
            .clone()
            .map_request(|request: Request<Incoming>| request.map(Body::new));
        let service = TowerToHyperService::new(service);
        let connection = graceful.watch(server.serve_connection(TokioIo::new(stream), service));
        connections.spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection broke off");
            }
        });
    }
    // New connections are refused, not left waiting.
    drop(listener);
    graceful.shutdown().await;
}
