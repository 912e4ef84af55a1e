//! The gRPC service of a stage: sessions are set up here, and held by their streams.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use models::LoadProgress;
use proto::stage::v1 as wire;
use proto::stage::v1::stage_server::Stage;
use service::HeldStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use worker_api::{SessionError, later_stage_from_proto, session_status, stage_session_to_proto};

use crate::stage::session::Sessions;

/// The service, there from the first moment: until the layers are loaded it says how far loading is.
#[derive(Debug)]
pub(super) struct StageServer {
    sessions: OnceLock<Sessions>,
    loaded_bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// Ends the session, which would not end by itself.
    stop: CancellationToken,
}

impl StageServer {
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            sessions: OnceLock::new(),
            loaded_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            stop,
        }
    }

    pub fn note_progress(&self, progress: LoadProgress) {
        // Relaxed: figures for people, nothing is ordered by them.
        self.loaded_bytes
            .store(progress.bytes_done, Ordering::Relaxed);
        self.total_bytes
            .store(progress.bytes_total, Ordering::Relaxed);
    }

    pub fn set_loaded(&self, sessions: Sessions) {
        // Called once, by the role.
        let _first = self.sessions.set(sessions);
    }

    fn sessions(&self) -> Result<&Sessions, Status> {
        self.sessions.get().ok_or_else(|| {
            let loaded = self.loaded_bytes.load(Ordering::Relaxed);
            let total = self.total_bytes.load(Ordering::Relaxed).max(1);
            Status::unavailable(format!("loading the layers, {} %", loaded * 100 / total))
        })
    }
}

#[tonic::async_trait]
impl Stage for StageServer {
    type OpenStream = HeldStream<wire::SessionEvent>;

    async fn open(
        &self,
        request: Request<wire::OpenRequest>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let later = later_stage_from_proto(&request.into_inner());
        let offered = self.sessions()?.offer(&later).await;
        let offered = offered.map_err(|error| session_status(&error))?;
        let opened = stage_session_to_proto(&offered.session);
        let event = wire::SessionEvent {
            event: Some(wire::session_event::Event::Opened(opened)),
        };
        let stop = self.stop.clone();
        let end = async move {
            let error = tokio::select! {
                error = offered.ended() => error,
                () = stop.cancelled() => {
                    SessionError::Gone("the stage is shutting down".to_owned())
                }
            };
            session_status(&error)
        };
        Ok(Response::new(HeldStream::new(event, end)))
    }
}
