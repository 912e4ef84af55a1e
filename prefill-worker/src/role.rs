//! The life of a prefill worker: listen, look at the device, serve.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gguf::GgufFile;
use proto::prefill::v1::prefill_server::PrefillServer as Wire;
use service::{GrpcListener, serve_grpc};
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::compressor::{Command, Compressor};
use crate::config::Config;
use crate::counters::Counters;
use crate::drafter::Drafter;
use crate::handle::Handle;
use crate::server::PrefillServer;

/// Serves the drafter in `file` until `shutdown`. Its weights come to the device with the first prompt.
///
/// # Errors
/// A setting cannot be, the socket cannot be opened, no scorer can be made of the file, the device is not there, or its
/// thread broke.
pub async fn run(config: Config, file: GgufFile, shutdown: CancellationToken) -> Result<()> {
    config.check()?;
    let listener = GrpcListener::bind(&config.listen).await?;
    tracing::info!(listen = %config.listen, "prefill worker listens");
    let ready = watch::Sender::new(false);
    // Ends the gRPC server: at shutdown, and when the device thread is gone.
    let stop = shutdown.child_token();
    let counters = Arc::new(Counters::default());
    let server = Arc::new(PrefillServer::new(Arc::clone(&counters)));
    let serving = tokio::spawn(serve_grpc(
        listener,
        Wire::from_arc(Arc::clone(&server)),
        ready.subscribe(),
        stop.clone(),
        Duration::from_secs(config.drain_seconds),
    ));
    let _stopped = stop.clone().drop_guard();
    let (queue_len, keeps_weights) = (config.queue_len, config.keeps_weights()?);
    let opening = tokio::task::spawn_blocking(move || Drafter::new(&config, file));
    let (drafter, description) = tokio::select! {
        opened = opening => opened.context("opening the device")??,
        () = shutdown.cancelled() => return Ok(serving.await??),
    };
    tracing::info!(
        drafter = description.name,
        context_length = description.context_length,
        device = description.device,
        keeps_weights,
        "prefill worker is ready"
    );
    let compressor = Compressor {
        drafter,
        keeps_weights,
        counters: Arc::clone(&counters),
        abandoned: CancellationToken::new(),
    };
    let thread = DeviceThread::start(compressor, queue_len)?;
    server.set_handle(Handle {
        description,
        commands: thread.commands.clone(),
        counters,
        stop: stop.clone(),
    });
    ready.send_replace(true);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = thread.ended.cancelled() => bail!("the device thread stopped"),
    }
    serving.await??;
    thread.stop().await
}

/// The thread that owns the drafter.
#[derive(Debug)]
struct DeviceThread {
    commands: Sender<Command>,
    abandoned: CancellationToken,
    /// Cancelled when the thread has ended, however it did.
    ended: CancellationToken,
    thread: JoinHandle<()>,
}

impl DeviceThread {
    fn start(mut compressor: Compressor, queue_len: usize) -> Result<Self> {
        let (commands, receiver) = channel(queue_len);
        let abandoned = compressor.abandoned.clone();
        let ended = CancellationToken::new();
        let ending = ended.clone().drop_guard();
        let thread = std::thread::Builder::new()
            .name("prefill".to_owned())
            .spawn(move || {
                let _ending = ending;
                compressor.run(receiver);
            });
        Ok(Self {
            commands,
            abandoned,
            ended,
            thread: thread.context("starting the device thread")?,
        })
    }

    /// Gives up what is left of the prompts, and waits for a part of one pass at most.
    async fn stop(self) -> Result<()> {
        self.abandoned.cancel();
        // Fails where the thread has ended already.
        let _ = self.commands.send(Command::Stop).await;
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        match joined.context("stopping the device thread")? {
            Ok(()) => Ok(()),
            Err(_) => bail!("the device thread panicked"),
        }
    }
}
