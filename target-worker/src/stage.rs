//! A stage of a split target, but for the last one: embedding or earlier layers, some layers, and no head.
//!
//! It loads its layers at once and serves one session at a time: what it holds of a session is gone with it, its weights stay.

mod server;
mod session;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gguf::GgufFile;
use models::LoadProgress;
use proto::stage::v1::stage_server::StageServer as Wire;
use service::{Endpoint, GrpcListener, serve_grpc};
use tensor_channel::OfferOptions;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::load::{LoadedStage, load_stage};
use crate::split::{Stage, split};
use server::StageServer;
use session::{Session, Sessions, serve_all};

/// Loads the layers of stage `number` (from 1 on) of `file` and serves them until `shutdown`. `progress` is called while
/// loading.
///
/// # Errors
/// A setting cannot be, there is no such stage, the socket cannot be opened, the layers cannot be loaded, or the device broke.
pub async fn run_stage(
    config: Config,
    number: usize,
    file: GgufFile,
    progress: impl FnMut(LoadProgress) + Send + 'static,
    shutdown: CancellationToken,
) -> Result<()> {
    config.check()?;
    let place = number.wrapping_sub(1);
    let Some(listen) = config.stages.get(place).cloned() else {
        let most = config.stages.len();
        bail!(
            "stage is {number}, expected 1 to {most}: the last of target-devices is the target worker's"
        );
    };
    let before = place
        .checked_sub(1)
        .map(|place| config.stages[place].clone());
    let stage = split(&config, &file)?.swap_remove(place);
    let listener = GrpcListener::bind(&listen).await?;
    tracing::info!(%listen, %stage, "stage listens");
    let ready = watch::Sender::new(false);
    // Ends the gRPC server: at shutdown, and when the device thread is gone.
    let stop = shutdown.child_token();
    let server = Arc::new(StageServer::new(stop.clone()));
    let serving = tokio::spawn(serve_grpc(
        listener,
        Wire::from_arc(Arc::clone(&server)),
        ready.subscribe(),
        stop.clone(),
        Duration::from_secs(config.drain_seconds),
    ));
    let _stopped = stop.clone().drop_guard();
    let options = OfferOptions {
        instance: config.instance.clone(),
        tcp_bind: channel_address(&listen),
        tcp_host: None,
    };
    let loaded = load(config, file, stage.clone(), progress, &server, &shutdown).await?;
    let Some(loaded) = loaded else {
        return Ok(serving.await??);
    };
    tracing::info!(%stage, device = loaded.description.device, "stage is ready");
    let waiting = TaskTracker::new();
    let (description, later) = (loaded.description.clone(), loaded.later.clone());
    let device = DeviceThread::start(loaded, stage.to_string(), stop.clone())?;
    server.set_loaded(Sessions {
        description,
        own: later,
        before,
        options,
        sessions: device.sessions.clone(),
        waiting: waiting.clone(),
        is_taken: Arc::default(),
    });
    ready.send_replace(true);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = device.ended.cancelled() => bail!("{stage}: the device thread stopped"),
    }
    serving.await??;
    // What still waits for a peer has channels to take back.
    waiting.close();
    waiting.wait().await;
    device.join().await
}

/// Where channels over TCP listen.
fn channel_address(listen: &Endpoint) -> String {
    let host = match listen {
        Endpoint::Tcp(address) => address.rsplit_once(':').map(|(host, _)| host),
        Endpoint::Unix(_) => None,
    };
    format!("{}:0", host.unwrap_or("127.0.0.1"))
}

/// `None` where the shutdown came first.
async fn load(
    config: Config,
    file: GgufFile,
    stage: Stage,
    mut progress: impl FnMut(LoadProgress) + Send + 'static,
    server: &Arc<StageServer>,
    shutdown: &CancellationToken,
) -> Result<Option<LoadedStage>> {
    let server = Arc::clone(server);
    let loading = tokio::task::spawn_blocking(move || {
        load_stage(&config, &file, &stage, &mut |so_far| {
            server.note_progress(so_far);
            progress(so_far);
        })
    });
    tokio::select! {
        loaded = loading => loaded.context("loading the layers")?.map(Some),
        () = shutdown.cancelled() => Ok(None),
    }
}

/// The thread that owns the layers.
#[derive(Debug)]
struct DeviceThread {
    sessions: Sender<Session>,
    /// Cancelled when the thread has ended, however it did.
    ended: CancellationToken,
    thread: JoinHandle<()>,
}

impl DeviceThread {
    /// `stop` ends it.
    fn start(loaded: LoadedStage, name: String, stop: CancellationToken) -> Result<Self> {
        let (sessions, receiver) = channel();
        let ended = CancellationToken::new();
        let ending = ended.clone().drop_guard();
        let thread = std::thread::Builder::new()
            .name("stage".to_owned())
            .spawn(move || {
                let _ending = ending;
                serve_all(loaded.model, &name, &receiver, &stop);
            });
        Ok(Self {
            sessions,
            ended,
            thread: thread.context("starting the device thread")?,
        })
    }

    /// Waits for one step at most; it was told to stop.
    async fn join(self) -> Result<()> {
        let Self {
            sessions, thread, ..
        } = self;
        drop(sessions);
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        let joined = joined.context("stopping the device thread")?;
        ensure!(joined.is_ok(), "the device thread panicked");
        Ok(())
    }
}
