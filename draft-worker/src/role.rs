//! The life of a draft worker: listen, load, serve.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gguf::GgufFile;
use models::{DraftFile, LoadProgress};
use proto::draft::v1::draft_server::DraftServer as Wire;
use service::{GrpcListener, serve_grpc};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accept::Sessions;
use crate::config::Config;
use crate::counters::Counters;
use crate::load::{self, Loaded};
use crate::proposer::{Command, Proposer};
use crate::server::{DraftServer, Residency};

/// Loads `draft` for `target` and serves it until `shutdown`. `progress` is called while loading.
///
/// # Errors
/// A setting cannot be, the socket cannot be opened, the model cannot be loaded, or the device thread broke.
pub async fn run(
    config: Config,
    draft: DraftFile,
    target: GgufFile,
    progress: impl FnMut(LoadProgress) + Send + 'static,
    shutdown: CancellationToken,
) -> Result<()> {
    config.check()?;
    remove_left_behind();
    let listener = GrpcListener::bind(&config.listen).await?;
    tracing::info!(listen = %config.listen, "draft worker listens");
    let ready = watch::Sender::new(false);
    // Ends the gRPC server: at shutdown, and when the device thread is gone.
    let stop = shutdown.child_token();
    let counters = Arc::new(Counters::default());
    let server = Arc::new(DraftServer::new(Arc::clone(&counters), stop.clone()));
    let serving = tokio::spawn(serve_grpc(
        listener,
        Wire::from_arc(Arc::clone(&server)),
        ready.subscribe(),
        stop.clone(),
        Duration::from_secs(config.drain_seconds),
    ));
    let _stopped = stop.clone().drop_guard();
    let files = Arc::new(Files {
        config,
        draft,
        target,
    });
    let progress: Progress = Arc::new(Mutex::new(progress));
    let mut has_been_ready = false;
    while !shutdown.is_cancelled() {
        let loaded = load_model(&files, &progress, &server, &shutdown).await;
        let loaded = match loaded {
            Ok(Some(loaded)) => loaded,
            Ok(None) => break,
            Err(error) if has_been_ready => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the draft does not come back; trying again"
                );
                ready.send_replace(false);
                // Who parks it meanwhile does not wait for what may never come.
                tokio::select! {
                    () = tokio::time::sleep(RELOAD_PAUSE) => {}
                    () = shutdown.cancelled() => {}
                    () = server.until_wanted(false) => {
                        // Away as it should be.
                        ready.send_replace(true);
                        stay_parked(&server, &shutdown).await;
                    }
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        has_been_ready = true;
        serve(loaded, &files.config, &counters, &server, &ready, &shutdown).await?;
        if shutdown.is_cancelled() {
            break;
        }
        tracing::info!("the draft is parked: its device memory is free");
        stay_parked(&server, &shutdown).await;
    }
    Ok(serving.await??)
}

/// Until the model is wanted on its device again, or the worker ends.
async fn stay_parked(server: &DraftServer, shutdown: &CancellationToken) {
    server.set_residency(Residency::Parked);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = server.until_wanted(true) => server.set_residency(Residency::Loading),
    }
}

/// Between tries to bring a parked draft back.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// What the model is loaded from, each time.
struct Files {
    config: Config,
    draft: DraftFile,
    target: GgufFile,
}

type Progress = Arc<Mutex<dyn FnMut(LoadProgress) + Send>>;

/// Sessions with the model on its device, until it is to be parked or the worker ends; then nothing of it is left there.
async fn serve(
    loaded: Loaded,
    config: &Config,
    counters: &Arc<Counters>,
    server: &DraftServer,
    ready: &watch::Sender<bool>,
    shutdown: &CancellationToken,
) -> Result<()> {
    let description = &loaded.description;
    tracing::info!(
        draft = description.name,
        block_size = description.block_size,
        capture_layers = ?description.capture_layers,
        device = description.device,
        "draft worker is ready"
    );
    let (description, device) = (description.clone(), Arc::clone(&loaded.device));
    let thread = DeviceThread::start(loaded, Arc::clone(counters))?;
    let waiting = TaskTracker::new();
    server.set_residency(Residency::Resident(Arc::new(Sessions {
        description,
        device,
        options: config.offer_options()?,
        commands: thread.commands.clone(),
        waiting: waiting.clone(),
        next_id: AtomicU64::new(0),
    })));
    ready.send_replace(true);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = server.until_wanted(false) => {}
        () = thread.ended.cancelled() => bail!("the device thread stopped"),
    }
    server.set_residency(Residency::Loading);
    // What still waits for a target has channels to take back.
    waiting.close();
    waiting.wait().await;
    thread.stop().await
}

/// Removes the shared memory that killed workers of this user could not take back themselves. A worker does so at its
/// start; who kills one may do it right away.
pub fn remove_left_behind() {
    match tensor_channel::remove_left_behind("") {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => tracing::info!(?removed, "removed what killed processes left behind"),
        Err(error) => tracing::debug!(%error, "shared memory is not looked through"),
    }
}

/// `None` where the shutdown came first.
async fn load_model(
    files: &Arc<Files>,
    progress: &Progress,
    server: &Arc<DraftServer>,
    shutdown: &CancellationToken,
) -> Result<Option<Loaded>> {
    let (files, progress) = (Arc::clone(files), Arc::clone(progress));
    let server = Arc::clone(server);
    let loading = tokio::task::spawn_blocking(move || {
        // Nobody else shows progress, and a panic of who did is no reason to show none.
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        load::load(&files.config, &files.draft, &files.target, &mut |so_far| {
            server.note_progress(so_far);
            progress(so_far);
        })
    });
    tokio::select! {
        loaded = loading => loaded.context("loading the draft")?.map(Some),
        () = shutdown.cancelled() => Ok(None),
    }
}

/// The thread that owns the model.
#[derive(Debug)]
struct DeviceThread {
    commands: Sender<Command>,
    /// Cancelled when the thread has ended, however it did.
    ended: CancellationToken,
    thread: JoinHandle<()>,
}

impl DeviceThread {
    fn start(loaded: Loaded, counters: Arc<Counters>) -> Result<Self> {
        let (commands, receiver) = channel();
        let ended = CancellationToken::new();
        let ending = ended.clone().drop_guard();
        let thread = std::thread::Builder::new()
            .name("draft".to_owned())
            .spawn(move || {
                let _ending = ending;
                Proposer::new(loaded.model, loaded.landing, receiver, counters).run();
            });
        Ok(Self {
            commands,
            ended,
            thread: thread.context("starting the device thread")?,
        })
    }

    /// Waits for one pass at most.
    async fn stop(self) -> Result<()> {
        // Fails where the thread has ended already.
        let _ = self.commands.send(Command::Stop);
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        match joined.context("stopping the device thread")? {
            Ok(()) => Ok(()),
            Err(_) => bail!("the device thread panicked"),
        }
    }
}
