//! Logs on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging at `filter` (as `RUST_LOG`, for example `info,router=debug`). A second call changes nothing.
pub fn init_telemetry(filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(true);
    // Refused where a subscriber is set already: the first one wins.
    let _already_set = subscriber.try_init();
}
