//! The life of a target worker: listen, load, serve, drain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use engine::EngineHandle;
use gguf::GgufFile;
use models::LoadProgress;
use proto::target::v1::target_server::TargetServer as Wire;
use service::{GrpcListener, ServiceError, serve_grpc};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use worker_api::OpenStage;

use crate::config::Config;
use crate::earlier::{attach_earlier, lost};
use crate::load::{Started, load_stage, start_engine};
use crate::server::{Served, TargetServer};
use crate::split::split;

/// What the engine gets to find out by itself that a stage is gone, and the calls to hear of it.
const LAST_STEP: Duration = Duration::from_secs(1);

/// Loads `file` and serves it until `shutdown`, then lets running answers end. `progress` is called while loading.
///
/// # Errors
/// A setting cannot be, the socket cannot be opened, the model cannot be loaded, or the engine broke.
pub async fn run(
    config: Config,
    file: GgufFile,
    progress: impl FnMut(LoadProgress) + Send + 'static,
    shutdown: CancellationToken,
) -> Result<()> {
    config.check()?;
    let listener = GrpcListener::bind(&config.listen).await?;
    tracing::info!(listen = %config.listen, "target worker listens");
    let ready = watch::Sender::new(false);
    // Ends the gRPC server: at shutdown, and when the engine is gone.
    let stop = shutdown.child_token();
    let server = Arc::new(TargetServer::new(stop.clone()));
    let drain = Duration::from_secs(config.drain_seconds);
    let serving = tokio::spawn(serve_grpc(
        listener,
        Wire::from_arc(Arc::clone(&server)),
        ready.subscribe(),
        stop.clone(),
        drain,
    ));
    let _stopped = stop.clone().drop_guard();
    let Some(Loaded {
        started:
            Started {
                engine,
                speculates,
                grammars,
                device,
            },
        mut earlier,
    }) = load(config, file, progress, &server, &shutdown).await?
    else {
        return Ok(serving.await??);
    };
    let handle = engine.handle();
    let description = handle.description();
    tracing::info!(
        model = description.name,
        architecture = description.architecture,
        context_length = description.context_length,
        device = description.device,
        speculation = speculates.mode,
        "target worker is ready"
    );
    server.set_engine(Served {
        engine: handle.clone(),
        speculates,
        grammars,
        device,
    });
    ready.send_replace(true);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = follow_weights(&handle, &ready) => {}
        () = handle.closed() => {
            hang_up(&stop, serving).await;
            bail!("the engine stopped");
        }
        error = lost(&mut earlier) => {
            give_up(&handle).await;
            hang_up(&stop, serving).await;
            return Err(anyhow!(error).context("an earlier stage is gone"));
        }
    }
    let deadline = Instant::now() + drain;
    serving.await??;
    // Whatever still runs then outlived the drain. What is left of it is for prefixes that are to outlive the process.
    let left = deadline.saturating_duration_since(Instant::now());
    tokio::task::spawn_blocking(move || engine.shutdown(left))
        .await
        .context("stopping the engine")
}

/// Says that the worker is not ready while parked weights do not come back. Never returns.
async fn follow_weights(handle: &EngineHandle, ready: &watch::Sender<bool>) {
    loop {
        handle.until_away(true).await;
        ready.send_replace(false);
        handle.until_away(false).await;
        ready.send_replace(true);
    }
}

/// An engine that computes finds out by itself, and tells its callers why.
async fn give_up(engine: &EngineHandle) {
    // One that is idle has nobody to tell.
    let _idle = tokio::time::timeout(LAST_STEP, engine.closed()).await;
}

/// Lets the calls say how they ended.
async fn hang_up(stop: &CancellationToken, serving: JoinHandle<Result<(), ServiceError>>) {
    stop.cancel();
    // One that takes longer is cut off.
    let _late = tokio::time::timeout(LAST_STEP, serving).await;
}

/// A worker that can answer.
struct Loaded {
    started: Started,
    /// Holds the stages before this one.
    earlier: Option<OpenStage>,
}

/// `None` where the shutdown came first.
async fn load(
    config: Config,
    file: GgufFile,
    mut progress: impl FnMut(LoadProgress) + Send + 'static,
    server: &Arc<TargetServer>,
    shutdown: &CancellationToken,
) -> Result<Option<Loaded>> {
    let server = Arc::clone(server);
    let load = async {
        let endpoint = config.stages.last().cloned();
        let loading = tokio::task::spawn_blocking(move || {
            let stages = split(&config, &file)?;
            let own = stages.last().context("no stages")?;
            let loaded = load_stage(&config, &file, own, &mut |so_far| {
                server.note_progress(so_far);
                progress(so_far);
            });
            anyhow::Ok((loaded?, config, file))
        });
        let (mut loaded, config, file) = loading.await.context("loading the model")??;
        let earlier = match endpoint {
            Some(endpoint) => Some(attach_earlier(&mut loaded, &endpoint).await?),
            None => None,
        };
        let earlier_stages = earlier.iter().flat_map(|open| &open.session().stages);
        let mut stages: Vec<_> = earlier_stages.cloned().collect();
        stages.push(loaded.description);
        let starting =
            tokio::task::spawn_blocking(move || start_engine(&config, file, loaded.model, &stages));
        let started = starting.await.context("starting the engine")??;
        Ok(Loaded { started, earlier })
    };
    tokio::select! {
        loaded = load => loaded.map(Some),
        () = shutdown.cancelled() => Ok(None),
    }
}
