//! Signals that end a role.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::ServiceError;

/// SIGINT and SIGTERM, caught from the moment this is made.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Catches the signals.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn install() -> Result<Self, ServiceError> {
        let install = |kind, name| {
            signal(kind).map_err(|source| ServiceError::Signal {
                signal: name,
                source,
            })
        };
        Ok(Self {
            interrupt: install(SignalKind::interrupt(), "SIGINT")?,
            terminate: install(SignalKind::terminate(), "SIGTERM")?,
        })
    }

    /// Waits for the next one. Cancel-safe.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Cancels the token that it returns at the first SIGINT or SIGTERM. A second one ends the process at once.
///
/// # Errors
/// The system refuses the handlers.
pub fn cancel_on_signal() -> Result<CancellationToken, ServiceError> {
    let mut signals = StopSignals::install()?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    // Lives as long as the process, which the second signal ends.
    tokio::spawn(async move {
        signals.recv().await;
        cancelled.cancel();
        signals.recv().await;
        std::process::exit(130);
    });
    Ok(token)
}
