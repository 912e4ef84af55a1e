//! The gRPC service: messages in, engine calls out.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use engine::{EngineHandle, GenerateStream, ParkingLease};
use generation::{GenerateError, GenerateRequest, MemoryStats, ParkError, WorkerStats};
use kernels::Device;
use models::LoadProgress;
use proto::target::v1 as wire;
use proto::target::v1::target_server::Target;
use service::HeldStream;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use worker_api::{
    SpeculationDescription, description_to_proto, event_to_proto, park_status, request_from_proto,
    session_from_proto, session_status, stats_to_proto, to_status,
};

use crate::attach::{attach, until_lost};
use crate::grammars::GrammarReader;
use crate::watch::{Rounds, rounds};

/// How long the weights may be away for one who wants that: longer than any prompt takes to be scored.
const MOST_PARKED: Duration = Duration::from_secs(600);

/// What is there once the model is loaded.
pub(crate) struct Served {
    pub engine: EngineHandle,
    pub speculates: SpeculationDescription,
    pub grammars: GrammarReader,
    pub device: Arc<dyn Device>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.name();
        f.debug_struct("Served")
            .field("engine", &self.engine)
            .field("speculates", &self.speculates)
            .field("grammars", &self.grammars)
            .field("device", &device)
            .finish()
    }
}

impl Served {
    /// Hands a request to the engine, its grammar read before.
    async fn generate(&self, request: GenerateRequest) -> Result<GenerateStream, GenerateError> {
        let Some(grammar) = &request.grammar else {
            return self.engine.generate(request);
        };
        request.check(self.engine.description())?;
        let matcher = self.grammars.read(grammar.clone()).await?;
        self.engine.generate_within(request, matcher)
    }
}

/// The service, there from the first moment: until the model is loaded it says how far loading is.
#[derive(Debug)]
pub(crate) struct TargetServer {
    served: OnceLock<Served>,
    loaded_bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// Lets go of the draft and of those who watch, whose streams would never end by themselves.
    stop: CancellationToken,
}

impl TargetServer {
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self {
            served: OnceLock::new(),
            loaded_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            stop,
        }
    }

    pub(crate) fn note_progress(&self, progress: LoadProgress) {
        // Relaxed: figures for people, nothing is ordered by them.
        self.loaded_bytes
            .store(progress.bytes_done, Ordering::Relaxed);
        self.total_bytes
            .store(progress.bytes_total, Ordering::Relaxed);
    }

    pub(crate) fn set_engine(&self, served: Served) {
        // Called once, by the role.
        let _first = self.served.set(served);
    }

    fn engine(&self) -> Result<&EngineHandle, Status> {
        Ok(&self.loaded()?.engine)
    }

    /// Refuses where weights that were parked do not come back.
    fn ready(&self) -> Result<&Served, Status> {
        let served = self.loaded()?;
        match served.engine.away() {
            Some(why) => Err(to_status(&GenerateError::Away(why))),
            None => Ok(served),
        }
    }

    fn loaded(&self) -> Result<&Served, Status> {
        self.served.get().ok_or_else(|| {
            let loaded = self.loaded_bytes.load(Ordering::Relaxed);
            let total = self.total_bytes.load(Ordering::Relaxed).max(1);
            Status::unavailable(format!("loading the model, {} %", loaded * 100 / total))
        })
    }
}

#[tonic::async_trait]
impl Target for TargetServer {
    type GenerateStream = Events;
    type AttachStream = HeldStream<wire::AttachEvent>;
    type ParkStream = HeldStream<wire::ParkEvent>;
    type WatchStream = Rounds;

    async fn describe(
        &self,
        _request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::ModelDescription>, Status> {
        let served = self.ready()?;
        let description = description_to_proto(served.engine.description(), &served.speculates);
        Ok(Response::new(description))
    }

    async fn attach(
        &self,
        request: Request<wire::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let Served {
            engine,
            speculates,
            device,
            ..
        } = self.loaded()?;
        let session = request.into_inner().session.unwrap_or_default();
        let session = session_from_proto(session).map_err(|error| session_status(&error))?;
        let lease = attach(engine, speculates, device, &session).await;
        let lease = lease.map_err(|error| {
            tracing::debug!(draft = session.draft.name, %error, "draft refused");
            session_status(&error)
        })?;
        let transport = session.transport();
        tracing::debug!(draft = session.draft.name, %transport, "draft attached");
        let attached = wire::AttachEvent {
            event: Some(wire::attach_event::Event::Attached(wire::Attached {})),
        };
        let end = until_lost(lease, self.stop.clone());
        Ok(Response::new(HeldStream::new(attached, end)))
    }

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<Events>, Status> {
        let served = self.loaded()?;
        let request = request_from_proto(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let request_id = request.request_id.clone();
        let prompt_tokens = request.prompt.len();
        let answer = served.generate(request).await.map_err(|error| {
            tracing::debug!(request_id, prompt_tokens, %error, "refused");
            to_status(&error)
        })?;
        tracing::debug!(request_id, prompt_tokens, "accepted");
        Ok(Response::new(Events(answer)))
    }

    async fn park(
        &self,
        request: Request<wire::ParkRequest>,
    ) -> Result<Response<Self::ParkStream>, Status> {
        let at_most = Duration::from_millis(request.into_inner().at_most_ms).min(MOST_PARKED);
        let parked = self.engine()?.park(at_most).await;
        let lease = parked.map_err(park_status)?;
        let parked = wire::ParkEvent {
            event: Some(wire::park_event::Event::Parked(wire::Parked {})),
        };
        let end = until_called_back(lease, self.stop.clone());
        Ok(Response::new(HeldStream::new(parked, end)))
    }

    async fn unpark(
        &self,
        _request: Request<wire::UnparkRequest>,
    ) -> Result<Response<wire::Unparked>, Status> {
        self.engine()?.unpark().await.map_err(park_status)?;
        Ok(Response::new(wire::Unparked {}))
    }

    async fn stats(
        &self,
        _request: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::WorkerStats>, Status> {
        let Served { engine, device, .. } = self.loaded()?;
        Ok(Response::new(stats_to_proto(WorkerStats {
            memory: MemoryStats {
                resident_bytes: service::resident_bytes(),
                device_free_bytes: device.free_memory(),
            },
            ..engine.stats()
        })))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Rounds>, Status> {
        let stream = self.engine()?.watch();
        let max_per_second = request.into_inner().max_per_second;
        Ok(Response::new(rounds(
            stream,
            max_per_second,
            self.stop.clone(),
        )))
    }
}

/// Waits until the weights were called back, or the worker stops.
async fn until_called_back(mut lease: ParkingLease, stop: CancellationToken) -> Status {
    let error = tokio::select! {
        () = lease.ended() => ParkError::CalledBack,
        () = stop.cancelled() => ParkError::ShuttingDown,
    };
    park_status(error)
}

/// An answer on its way. Dropped when the caller leaves, which cancels the request in the engine.
#[derive(Debug)]
pub(crate) struct Events(GenerateStream);

impl Stream for Events {
    type Item = Result<wire::GenerateEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|event| {
            Some(match event? {
                Ok(event) => Ok(event_to_proto(event)),
                Err(error) => Err(to_status(&error)),
            })
        })
    }
}
