//! Logs of the long-running commands: lines on stderr, for operators, never evidence.
//!
//! One setting for all of them: `--log` and `WARRANT_LOG` say how much, `--log-format` and
//! `WARRANT_LOG_FORMAT` say how it is written.

use std::io;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::exit::Misuse;

/// How much is logged, and how it is written.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogArguments {
    /// How much to log to stderr: error, warn, info, debug or off, or for one part of the program
    /// (warn,warrant_plane=debug) [default: info; warrant dev: warn]
    #[arg(long, value_name = "FILTER", env = "WARRANT_LOG")]
    pub(crate) log: Option<String>,
    /// How log lines are written
    #[arg(long, value_name = "FORMAT", env = "WARRANT_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Reads a filter. A lone word must be a level: the library would take a misspelled one for the name
/// of a part and log nothing.
fn parse_filter(text: &str) -> anyhow::Result<EnvFilter> {
    for word in text.split(',').filter(|word| !word.contains('=')) {
        word.trim().parse::<LevelFilter>().with_context(|| format!("`{word}` is no level"))?;
    }
    Ok(EnvFilter::try_new(text)?)
}

/// Starts logging, as the arguments say; `default` is how much without any.
pub(crate) fn begin(arguments: &LogArguments, default: &str) -> anyhow::Result<()> {
    let filter = arguments.log.as_deref().filter(|filter| !filter.is_empty()).unwrap_or(default);
    let filter = parse_filter(filter).with_context(|| {
        format!("--log {filter}: write error, warn, info, debug, off, or warn,warrant_plane=debug")
    });
    let filter = filter.map_err(Misuse::of)?;
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    // Somebody who logs already goes on.
    let _ = match arguments.log_format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
