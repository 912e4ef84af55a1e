//! A target that leaves its device for prompts that are made shorter, played, and a prefill worker that finds no room beside it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api_types::CompressionMode;
use proto::target::v1 as wire;
use proto::target::v1::target_server::{Target, TargetServer};
use router::TargetResidency;
use serde_json::Value;
use service::{Endpoint, GrpcListener, HeldStream, serve_grpc};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use worker_api::TargetClient;

use crate::client::{WATCHDOG, connect, request};
use crate::compression::{CHAT, Set, TOKEN_LIST, chat, config, haystack, off, says};
use crate::prefill::{Play, PlayedWorker};
use crate::server::TOKENIZER;

/// Leaves and comes back.
#[derive(Clone, Default)]
struct Played {
    /// It refuses to leave.
    stays: bool,
    is_away: Arc<AtomicBool>,
    parks: Arc<AtomicUsize>,
    unparks: Arc<AtomicUsize>,
}

/// Back when dropped.
struct Away(Arc<AtomicBool>);

impl Drop for Away {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn unasked<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the script answers"))
}

#[tonic::async_trait]
impl Target for Played {
    type GenerateStream = HeldStream<wire::GenerateEvent>;
    type AttachStream = HeldStream<wire::AttachEvent>;
    type ParkStream = HeldStream<wire::ParkEvent>;
    type WatchStream = HeldStream<wire::Round>;

    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::ModelDescription>, Status> {
        unasked()
    }

    async fn generate(
        &self,
        _: Request<wire::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        unasked()
    }

    async fn stats(
        &self,
        _: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::WorkerStats>, Status> {
        unasked()
    }

    async fn watch(
        &self,
        _: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        unasked()
    }

    async fn attach(
        &self,
        _: Request<wire::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        unasked()
    }

    async fn park(
        &self,
        request: Request<wire::ParkRequest>,
    ) -> Result<Response<Self::ParkStream>, Status> {
        self.parks.fetch_add(1, Ordering::SeqCst);
        if self.stays {
            return Err(Status::unimplemented("split over devices"));
        }
        // As long as a prompt may take to be made shorter.
        assert_eq!(request.into_inner().at_most_ms, 30_000);
        self.is_away.store(true, Ordering::SeqCst);
        let away = Away(Arc::clone(&self.is_away));
        let parked = wire::ParkEvent {
            event: Some(wire::park_event::Event::Parked(wire::Parked {})),
        };
        let end = async move {
            let _away = away;
            std::future::pending().await
        };
        Ok(Response::new(HeldStream::new(parked, end)))
    }

    async fn unpark(
        &self,
        _: Request<wire::UnparkRequest>,
    ) -> Result<Response<wire::Unparked>, Status> {
        self.unparks.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(wire::Unparked {}))
    }
}

impl Played {
    /// A router before it, and a prefill worker.
    fn set(&self, residency: TargetResidency) -> Set {
        let worker = PlayedWorker::new(Arc::clone(&TOKENIZER), *TOKEN_LIST);
        Set::with(config(CompressionMode::Always), worker, |worker, dir| {
            let endpoint = Endpoint::Unix(dir.join("target.sock"));
            let target = TargetClient::new(&endpoint).unwrap();
            let played = TargetServer::new(self.clone());
            tokio::spawn(async move {
                let listener = GrpcListener::bind(&endpoint).await.unwrap();
                let (ready, never) = (watch::channel(true).1, CancellationToken::new());
                let served = serve_grpc(listener, played, ready, never, Duration::ZERO);
                served.await.unwrap();
            });
            worker.prefill(dir).in_turn_with_target(target, residency)
        })
    }

    fn parks(&self) -> usize {
        self.parks.load(Ordering::SeqCst)
    }

    fn wait_until_back(&self) {
        wait_until(|| !self.is_away.load(Ordering::SeqCst));
    }
}

fn wait_until(holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < WATCHDOG);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn question(name: &str) -> Value {
    chat(&[says("user", &haystack(name, 90, "plover"))])
}

fn trouble(set: &Set) -> Option<String> {
    let trouble = set.server.get("/props").json()["compression"]["trouble"].take();
    trouble.as_str().map(str::to_owned)
}

/// Asks, and says whether the prompt was made shorter.
fn is_cut(set: &Set, name: &str) -> bool {
    let (_, _, reply) = set.prompt(&question(name));
    reply.json()["usage"].get("compression").is_some()
}

#[test]
fn a_target_leaves_for_a_prompt_that_finds_no_room_and_for_no_other() {
    let target = Played::default();
    let set = target.set(TargetResidency::Auto);
    assert!(is_cut(&set, "first book"));
    assert_eq!(target.parks(), 0);
    set.worker.set(Play::Crowded(Arc::clone(&target.is_away)));
    for parks in 1..3 {
        assert!(is_cut(&set, &format!("book {parks}")));
        assert_eq!(target.parks(), parks);
        target.wait_until_back();
        let moved = |how: &str| {
            let line = format!("tandem_target_moves_total{{move=\"{how}\"}} {parks}");
            set.server.wait_for_metric(&line);
        };
        moved("parked");
        moved("unparked");
        assert_eq!(target.unparks.load(Ordering::SeqCst), parks);
    }
    let metrics = set.server.get("/metrics");
    assert!(
        metrics
            .text()
            .contains("tandem_target_move_seconds{move=\"unparked\"}")
    );
    assert_eq!(trouble(&set), None);
}

#[test]
fn a_target_that_makes_no_room_leaves_once() {
    let target = Played::default();
    let set = target.set(TargetResidency::Auto);
    let whole = set.prompt(&off(question("book"))).0;
    set.worker.set(Play::Crowded(Arc::default()));
    assert_eq!(set.prompt(&question("book")).0, whole);
    target.wait_until_back();
    let skipped = |times: usize| {
        let line = format!("tandem_compressions_skipped_total{{reason=\"no_room\"}} {times}");
        set.server.wait_for_metric(&line);
    };
    skipped(1);
    assert!(trouble(&set).unwrap().contains("2 GiB of 1"));
    // The worker is asked again, after a while. The answers do not stand still for it again.
    let asked = set.worker.asked().len();
    assert_eq!(asked, 2);
    let started = Instant::now();
    while set.worker.asked().is_empty() {
        assert!(started.elapsed() < WATCHDOG);
        assert_eq!(set.prompt(&question("book")).0, whole);
    }
    skipped(2);
    assert_eq!(target.parks(), 1);
    // A shorter prompt may find room.
    set.worker.set(Play::Crowded(Arc::clone(&target.is_away)));
    let short = || chat(&[says("user", &haystack("note", 60, "plover"))]);
    let started = Instant::now();
    while set.prompt(&short()).2.json()["usage"]
        .get("compression")
        .is_none()
    {
        assert!(started.elapsed() < WATCHDOG);
    }
    assert_eq!(target.parks(), 2);
}

#[test]
fn a_target_that_does_not_leave_costs_no_request_more_than_its_compression() {
    let split = Played {
        stays: true,
        ..Played::default()
    };
    for (target, residency, parks) in [
        (split, TargetResidency::Auto, 1),
        (Played::default(), TargetResidency::Persistent, 0),
    ] {
        let set = target.set(residency);
        let whole = set.prompt(&off(question("book"))).0;
        set.worker.set(Play::Crowded(Arc::clone(&target.is_away)));
        assert_eq!(set.prompt(&question("book")).0, whole);
        assert_eq!(target.parks(), parks);
        let trouble = trouble(&set).unwrap();
        assert!(trouble.contains("2 GiB of 1"), "{trouble}");
        assert_eq!(trouble.contains("split over devices"), parks == 1);
    }
}

#[test]
fn a_target_that_leaves_for_every_prompt_is_away_as_long_as_one_is_scored() {
    let target = Played::default();
    let set = target.set(TargetResidency::RequestScoped);
    assert!(is_cut(&set, "book"));
    assert_eq!(target.parks(), 1);
    target.wait_until_back();
    // What is remembered is not asked for.
    assert!(is_cut(&set, "book"));
    assert_eq!(target.parks(), 1);
    set.worker.set(Play::Hang);
    // Who leaves brings it back.
    let body = question("another book").to_string();
    let mut stream = connect(set.server.address);
    stream
        .write_all(&request("POST", CHAT, "", body.as_bytes()))
        .unwrap();
    wait_until(|| target.is_away.load(Ordering::SeqCst));
    drop(stream);
    target.wait_until_back();
    assert_eq!(target.parks(), 2);
}
