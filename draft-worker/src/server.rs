//! The gRPC service: sessions are set up here, and held by their streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use models::LoadProgress;
use proto::draft::v1 as wire;
use proto::draft::v1::draft_server::Draft;
use service::HeldStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use worker_api::{
    SessionError, draft_stats_to_proto, draft_to_proto, session_status, session_to_proto,
    transports_from_proto,
};

use crate::accept::Sessions;
use crate::counters::Counters;

/// The service, there from the first moment: until the model is loaded it says how far loading is.
#[derive(Debug)]
pub(crate) struct DraftServer {
    sessions: OnceLock<Sessions>,
    counters: Arc<Counters>,
    loaded_bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// Ends the sessions, which would not end by themselves.
    stop: CancellationToken,
}

impl DraftServer {
    pub fn new(counters: Arc<Counters>, stop: CancellationToken) -> Self {
        Self {
            sessions: OnceLock::new(),
            counters,
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
            Status::unavailable(format!("loading the draft, {} %", loaded * 100 / total))
        })
    }
}

#[tonic::async_trait]
impl Draft for DraftServer {
    type OpenStream = HeldStream<wire::SessionEvent>;

    async fn describe(
        &self,
        _request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DraftDescription>, Status> {
        Ok(Response::new(draft_to_proto(&self.sessions()?.description)))
    }

    async fn open(
        &self,
        request: Request<wire::OpenRequest>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let transports = transports_from_proto(&request.into_inner().transports);
        let offered = self.sessions()?.offer(&transports);
        let offered = offered.map_err(|error| session_status(&error))?;
        let opened = wire::Opened {
            session: Some(session_to_proto(&offered.session)),
        };
        let event = wire::SessionEvent {
            event: Some(wire::session_event::Event::Opened(opened)),
        };
        let stop = self.stop.clone();
        let end = async move {
            let error = tokio::select! {
                error = offered.ended() => error,
                () = stop.cancelled() => {
                    SessionError::Gone("the draft worker is shutting down".to_owned())
                }
            };
            session_status(&error)
        };
        Ok(Response::new(HeldStream::new(event, end)))
    }

    async fn stats(
        &self,
        _request: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::DraftStats>, Status> {
        Ok(Response::new(draft_stats_to_proto(self.counters.stats())))
    }
}
