//! The thread that owns a model.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use generation::ModelDescription;
use models::Model;

use crate::config::{DiskCacheConfig, EngineConfig};
use crate::disk::DiskTier;
use crate::handle::EngineHandle;
use crate::runner::Runner;
use crate::shared::Shared;

/// A running engine. Dropping it is [`Engine::shutdown`] without grace.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    /// `None` once joined.
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread. With `disk` prefixes outlive it.
    ///
    /// # Errors
    /// A [`crate::ConfigError`] as [`io::ErrorKind::InvalidInput`]; a folder that cannot be had; the system gives no thread.
    pub fn start(
        model: Model,
        description: ModelDescription,
        config: EngineConfig,
        disk: Option<DiskCacheConfig>,
    ) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        config.check(&model, &description).map_err(invalid)?;
        if disk.is_some() {
            config.check_disk(&model).map_err(invalid)?;
        }
        let shared = Arc::new(Shared::new(description, &config, model.can_park()));
        let disk = disk.map(|disk| DiskTier::open(disk, &model, &shared));
        let disk = disk.transpose().map_err(io::Error::other)?;
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    // Declared first, so dropped last: callers learn of the end when all else is gone.
                    let _closing = Closing(Arc::clone(&shared));
                    Runner::new(model, shared, config, disk).run();
                }
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The async side.
    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        EngineHandle::new(Arc::clone(&self.shared))
    }

    /// Takes no more requests, gives those taken `grace` to end, ends the rest with
    /// [`generation::GenerateError::ShuttingDown`], writes prefixes to files in what is left of `grace`, and joins the thread.
    ///
    /// Blocks for `grace` and one step at most; not to be called on an async runtime's own threads.
    pub fn shutdown(mut self, grace: Duration) {
        self.stop(grace);
    }

    fn stop(&mut self, grace: Duration) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.shared.drain(grace);
        if thread.join().is_err() {
            tracing::error!("the engine thread panicked");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Closes the queue when the thread ends, however it does.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}
