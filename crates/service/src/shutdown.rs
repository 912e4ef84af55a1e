//! Signals that end a role.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::ServiceError;

/// Cancels the token that it returns at the first SIGINT or SIGTERM. A second one ends the process at once.
///
/// # Errors
/// The system refuses the handlers.
pub fn cancel_on_signal() -> Result<CancellationToken, ServiceError> {
    let install = |kind, name| {
        signal(kind).map_err(|source| ServiceError::Signal {
            signal: name,
            source,
        })
    };
    let mut interrupt = install(SignalKind::interrupt(), "SIGINT")?;
    let mut terminate = install(SignalKind::terminate(), "SIGTERM")?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    // Lives as long as the process, which the second signal ends.
    tokio::spawn(async move {
        for is_first in [true, false] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if is_first {
                cancelled.cancel();
            }
        }
        std::process::exit(130);
    });
    Ok(token)
}
