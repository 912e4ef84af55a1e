//! The draft that the router keeps at its target, with both workers played.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proto::draft::v1 as draft;
use proto::draft::v1::draft_server::{Draft, DraftServer};
use proto::target::v1 as target;
use proto::target::v1::target_server::{Target, TargetServer};
use router::Drafts;
use serde_json::{Value, json};
use service::{Endpoint, GrpcListener, GrpcService, HeldStream, serve_grpc};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use worker_api::{DraftClient, SessionError, TargetClient, session_status};

use crate::client::WATCHDOG;
use crate::script::Script;
use crate::server::{Server, TOKENIZER};

const IPC: i32 = draft::Transport::CudaIpc as i32;
const SHM: i32 = draft::Transport::Shm as i32;
const TCP: i32 = draft::Transport::Tcp as i32;

type Verdict = dyn Fn(&draft::Session) -> Result<(), SessionError> + Send + Sync;

/// Both workers: sessions are held until their end is called for.
#[derive(Clone)]
struct Workers {
    /// Transports of each session that was asked for.
    opened: Arc<Mutex<Vec<Vec<i32>>>>,
    /// What the target says to a session.
    verdict: Arc<Verdict>,
    /// Ends the session that stands.
    end: Arc<Mutex<CancellationToken>>,
}

impl Workers {
    fn new(
        verdict: impl Fn(&draft::Session) -> Result<(), SessionError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            opened: Arc::default(),
            verdict: Arc::new(verdict),
            end: Arc::default(),
        }
    }

    fn opened(&self) -> Vec<Vec<i32>> {
        self.opened.lock().unwrap().clone()
    }

    /// A router before them, whose answers are a script's.
    fn serve(&self) -> (Server, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = |name: &str| Endpoint::Unix(dir.path().join(name));
        let target = TargetServer::new(self.clone());
        let draft = DraftServer::new(self.clone());
        let drafts = || {
            tokio::spawn(serve(endpoint("target.sock"), target));
            tokio::spawn(serve(endpoint("draft.sock"), draft));
            let target = TargetClient::new(&endpoint("target.sock")).unwrap();
            Drafts::new(target, DraftClient::new(&endpoint("draft.sock")).unwrap())
        };
        let server = Server::drafting(Script::says(&TOKENIZER, "hello"), drafts);
        (server, dir)
    }

    async fn until_end(end: CancellationToken) -> Status {
        end.cancelled().await;
        session_status(&SessionError::Gone("the test ends it".to_owned()))
    }
}

/// Ends with the runtime.
async fn serve(endpoint: Endpoint, service: impl GrpcService) {
    let listener = GrpcListener::bind(&endpoint).await.unwrap();
    let (ready, never) = (watch::channel(true).1, CancellationToken::new());
    let served = serve_grpc(listener, service, ready, never, Duration::ZERO);
    served.await.unwrap();
}

#[tonic::async_trait]
impl Draft for Workers {
    type OpenStream = HeldStream<draft::SessionEvent>;

    async fn describe(
        &self,
        _: Request<draft::DescribeRequest>,
    ) -> Result<Response<draft::DraftDescription>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn stats(
        &self,
        _: Request<draft::StatsRequest>,
    ) -> Result<Response<draft::DraftStats>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn park(
        &self,
        _: Request<draft::ParkRequest>,
    ) -> Result<Response<draft::Parked>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn unpark(
        &self,
        _: Request<draft::UnparkRequest>,
    ) -> Result<Response<draft::Unparked>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn open(
        &self,
        request: Request<draft::OpenRequest>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let transports = request.into_inner().transports;
        let way = if transports.contains(&IPC) {
            draft::channel::Way::DeviceMemory(draft::DeviceMemory {
                transport: IPC,
                segments: Some(draft::SharedMemory::default()),
                device: vec![0; 16],
                ..draft::DeviceMemory::default()
            })
        } else if transports.contains(&SHM) {
            draft::channel::Way::SharedMemory(draft::SharedMemory::default())
        } else {
            draft::channel::Way::Tcp(draft::Tcp {
                address: "127.0.0.1:1".to_owned(),
                secret: vec![0; 16],
            })
        };
        self.opened.lock().unwrap().push(transports);
        let session = draft::Session {
            channel: Some(draft::Channel { way: Some(way) }),
            draft: Some(draft::DraftDescription {
                name: "played".to_owned(),
                ..draft::DraftDescription::default()
            }),
        };
        let opened = draft::Opened {
            session: Some(session),
        };
        let event = draft::SessionEvent {
            event: Some(draft::session_event::Event::Opened(opened)),
        };
        let end = CancellationToken::new();
        *self.end.lock().unwrap() = end.clone();
        Ok(Response::new(HeldStream::new(event, Self::until_end(end))))
    }
}

#[tonic::async_trait]
impl Target for Workers {
    type GenerateStream = HeldStream<target::GenerateEvent>;
    type AttachStream = HeldStream<target::AttachEvent>;
    type ParkStream = HeldStream<target::ParkEvent>;
    type WatchStream = HeldStream<target::Round>;

    async fn describe(
        &self,
        _: Request<target::DescribeRequest>,
    ) -> Result<Response<target::ModelDescription>, Status> {
        Ok(Response::new(target::ModelDescription {
            speculation: "tree".to_owned(),
            transports: vec![IPC, SHM, TCP],
            ..target::ModelDescription::default()
        }))
    }

    async fn generate(
        &self,
        _: Request<target::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        Err(Status::unimplemented("the script answers"))
    }

    async fn stats(
        &self,
        _: Request<target::StatsRequest>,
    ) -> Result<Response<target::WorkerStats>, Status> {
        Err(Status::unimplemented("the script answers"))
    }

    async fn watch(
        &self,
        _: Request<target::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("the script answers"))
    }

    async fn park(
        &self,
        _: Request<target::ParkRequest>,
    ) -> Result<Response<Self::ParkStream>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn unpark(
        &self,
        _: Request<target::UnparkRequest>,
    ) -> Result<Response<target::Unparked>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn attach(
        &self,
        request: Request<target::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let session = request.into_inner().session.unwrap();
        (self.verdict)(&session).map_err(|error| session_status(&error))?;
        let attached = target::AttachEvent {
            event: Some(target::attach_event::Event::Attached(target::Attached {})),
        };
        let end = std::future::pending();
        Ok(Response::new(HeldStream::new(attached, end)))
    }
}

/// Waits until `/props` says so of the draft.
fn wait_for(server: &Server, holds: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let draft = server.get("/props").json()["speculative"]["draft"].take();
        if holds(&draft) {
            return draft;
        }
        assert!(started.elapsed() < WATCHDOG, "{draft}");
    }
}

fn way(session: &draft::Session) -> Option<&draft::channel::Way> {
    session.channel.as_ref().and_then(|way| way.way.as_ref())
}

#[test]
fn a_channel_out_of_the_targets_reach_is_offered_again_the_next_best_way() {
    let unreachable = || Err(SessionError::Unreachable("not from here".to_owned()));
    let no_memory = Workers::new(move |session| match way(session) {
        Some(draft::channel::Way::DeviceMemory(_)) => unreachable(),
        _ => Ok(()),
    });
    let only_tcp = Workers::new(move |session| match way(session) {
        Some(draft::channel::Way::Tcp(_)) => Ok(()),
        _ => unreachable(),
    });
    let all = [vec![IPC, SHM, TCP], vec![SHM, TCP], vec![TCP]];
    for (workers, transport, tries) in [(no_memory, "shm", 2), (only_tcp, "tcp", 3)] {
        let (server, _dir) = workers.serve();
        let draft = wait_for(&server, |draft| draft["state"] == "attached");
        assert_eq!(draft["transport"], transport);
        assert_eq!(draft["model"], "played");
        assert_eq!(workers.opened(), all[..tries]);
    }
}

#[test]
fn when_the_draft_ends_a_session_the_next_one_is_opened() {
    let workers = Workers::new(|_| Ok(()));
    let (server, _dir) = workers.serve();
    for sessions in 1..4 {
        wait_for(&server, |draft| {
            draft["state"] == "attached" && workers.opened().len() == sessions
        });
        workers.end.lock().unwrap().cancel();
    }
}

#[test]
fn a_draft_that_does_not_fit_is_told_of_and_requests_are_answered() {
    let workers = Workers::new(|_| {
        let words = "the draft is made for a target of hidden size 7, this target has 8";
        Err(SessionError::Mismatch(words.to_owned()))
    });
    let (server, _dir) = workers.serve();
    let draft = wait_for(&server, |draft| draft["reason"] != "not asked for yet");
    assert_eq!(draft["state"], "waiting");
    let reason = draft["reason"].as_str().unwrap();
    assert!(reason.contains("hidden size 7"), "{reason}");
    let body = json!({ "prompt": "x" });
    assert_eq!(server.post("/v1/completions", &body).status, 200);
}

#[test]
fn without_workers_requests_are_answered_too() {
    let nobody = |name| Endpoint::Unix(Path::new("/nonexistent").join(name));
    let drafts = || {
        let target = TargetClient::new(&nobody("target.sock")).unwrap();
        Drafts::new(target, DraftClient::new(&nobody("draft.sock")).unwrap())
    };
    let server = Server::drafting(Script::says(&TOKENIZER, "hello"), drafts);
    let body = json!({ "prompt": "x" });
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    wait_for(&server, |draft| draft["state"] == "waiting");
}
