//! The life of a target worker: listen, load, serve, drain.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::Engine;
use gguf::GgufFile;
use models::LoadProgress;
use proto::target::v1::target_server::TargetServer as Wire;
use service::{GrpcListener, serve_grpc};
use tokio_util::sync::CancellationToken;
use worker_api::SpeculationDescription;

use crate::config::Config;
use crate::load::start_engine;
use crate::server::TargetServer;

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
    let ready = CancellationToken::new();
    // Ends the gRPC server: at shutdown, and when the engine is gone.
    let stop = shutdown.child_token();
    let server = Arc::new(TargetServer::new(stop.clone()));
    let drain = Duration::from_secs(config.drain_seconds);
    let serving = tokio::spawn(serve_grpc(
        listener,
        Wire::from_arc(Arc::clone(&server)),
        ready.clone(),
        stop.clone(),
        drain,
    ));
    let _stopped = stop.clone().drop_guard();
    let Some((engine, speculation)) = load(config, file, progress, &server, &shutdown).await?
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
        speculation = speculation.mode,
        "target worker is ready"
    );
    server.set_engine(handle.clone(), speculation);
    ready.cancel();
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = handle.closed() => bail!("the engine stopped"),
    }
    serving.await??;
    // Whatever still runs now outlived the drain.
    tokio::task::spawn_blocking(move || engine.shutdown(Duration::ZERO))
        .await
        .context("stopping the engine")
}

/// `None` where the shutdown came first.
async fn load(
    config: Config,
    file: GgufFile,
    mut progress: impl FnMut(LoadProgress) + Send + 'static,
    server: &Arc<TargetServer>,
    shutdown: &CancellationToken,
) -> Result<Option<(Engine, SpeculationDescription)>> {
    let server = Arc::clone(server);
    let loading = tokio::task::spawn_blocking(move || {
        start_engine(&config, &file, &mut |so_far| {
            server.note_progress(so_far);
            progress(so_far);
        })
    });
    tokio::select! {
        engine = loading => engine.context("loading the model")?.map(Some),
        () = shutdown.cancelled() => Ok(None),
    }
}
