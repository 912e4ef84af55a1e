//! The gRPC service: sessions are set up here, and held by their streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use models::LoadProgress;
use proto::draft::v1 as wire;
use proto::draft::v1::draft_server::Draft;
use service::HeldStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use worker_api::{
    MemoryStats, SessionError, draft_stats_to_proto, draft_to_proto, session_status,
    session_to_proto, transports_from_proto,
};

use crate::accept::Sessions;
use crate::counters::Counters;

/// Where the model is.
#[derive(Debug)]
pub(crate) enum Residency {
    /// On its way to the device.
    Loading,
    /// On the device.
    Resident(Arc<Sessions>),
    /// Nowhere but in its file.
    Parked,
}

/// The service, there from the first moment: until the model is loaded it says how far loading is.
#[derive(Debug)]
pub(crate) struct DraftServer {
    residency: watch::Sender<Residency>,
    /// Whether the model is to be on the device.
    wanted: watch::Sender<bool>,
    counters: Arc<Counters>,
    loaded_bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// Ends the sessions, which would not end by themselves.
    stop: CancellationToken,
}

impl DraftServer {
    pub fn new(counters: Arc<Counters>, stop: CancellationToken) -> Self {
        Self {
            residency: watch::Sender::new(Residency::Loading),
            wanted: watch::Sender::new(true),
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

    /// Said by the role.
    pub fn set_residency(&self, residency: Residency) {
        self.residency.send_replace(residency);
    }

    /// Returns when the model is to be on the device, or is not to be. Cancel-safe.
    pub async fn until_wanted(&self, wanted: bool) {
        // The sender is here, so that nothing ends the wait but the value.
        let _ = self.wanted.subscribe().wait_for(|is| *is == wanted).await;
    }

    fn sessions(&self) -> Result<Arc<Sessions>, Status> {
        match &*self.residency.borrow() {
            Residency::Resident(sessions) => Ok(Arc::clone(sessions)),
            Residency::Parked => Err(Status::unavailable("the draft is parked")),
            Residency::Loading => {
                let loaded = self.loaded_bytes.load(Ordering::Relaxed);
                let total = self.total_bytes.load(Ordering::Relaxed).max(1);
                let so_far = loaded * 100 / total;
                Err(Status::unavailable(format!(
                    "loading the draft, {so_far} %"
                )))
            }
        }
    }

    /// Wants the model on the device, or not, and waits until it is so. A later wish to the contrary wins, as does the shutdown.
    async fn move_model(&self, wanted: bool) -> Result<(), Status> {
        self.wanted.send_replace(wanted);
        let (mut residency, mut wish) = (self.residency.subscribe(), self.wanted.subscribe());
        let is_there = |residency: &Residency| match residency {
            Residency::Resident(_) => wanted,
            Residency::Parked => !wanted,
            Residency::Loading => false,
        };
        tokio::select! {
            biased;
            _ = residency.wait_for(is_there) => Ok(()),
            _ = wish.wait_for(|wish| *wish != wanted) => {
                Err(Status::aborted("the draft was asked for the contrary meanwhile"))
            }
            () = self.stop.cancelled() => {
                Err(Status::unavailable("the draft worker is shutting down"))
            }
        }
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

    async fn park(
        &self,
        _request: Request<wire::ParkRequest>,
    ) -> Result<Response<wire::Parked>, Status> {
        self.move_model(false).await?;
        Ok(Response::new(wire::Parked {}))
    }

    async fn unpark(
        &self,
        _request: Request<wire::UnparkRequest>,
    ) -> Result<Response<wire::Unparked>, Status> {
        self.move_model(true).await?;
        Ok(Response::new(wire::Unparked {}))
    }

    async fn stats(
        &self,
        _request: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::DraftStats>, Status> {
        let device_free_bytes = match &*self.residency.borrow() {
            Residency::Resident(sessions) => sessions.device.free_memory(),
            Residency::Loading | Residency::Parked => None,
        };
        let stats = self.counters.stats(MemoryStats {
            resident_bytes: service::resident_bytes(),
            device_free_bytes,
        });
        Ok(Response::new(draft_stats_to_proto(stats)))
    }
}
