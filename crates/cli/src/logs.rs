//! Logs of the long-running commands: lines on stderr, for operators, never evidence.

use std::io;

use tracing_subscriber::EnvFilter;

/// Starts logging: at the level of `WARRANT_LOG`, `info` without it.
pub(crate) fn begin() {
    let filter = EnvFilter::try_from_env("WARRANT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Somebody who logs already goes on.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .try_init();
}
