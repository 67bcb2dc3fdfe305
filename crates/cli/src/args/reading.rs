//! Arguments of the commands that read runs and bundles.

use std::path::PathBuf;

use clap::Args;

pub(super) const VERIFY_HELP: &str = "\
A run of this machine is checked against this machine's own keys.
Keys inside a bundle file are never trusted. Name the keys you trust with --trust.
A key is trusted for one role: the one you write before it (plane=, runner=, approver=), else
the one its file name starts with (plane.pub.pem), else the one in which the bundle uses it.

Exit codes: 0 verified, 6 not verified, 2 usage.

Example:
  warrant verify run.bundle.json --trust plane.pub.pem --trust runner.pub.pem";

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A run (run_…), a bundle file, or - for standard input
    #[arg(value_name = "RUN|FILE")]
    pub(crate) subject: PathBuf,
    /// A public key you trust, as a PEM file (can be repeated)
    #[arg(long = "trust", value_name = "[ROLE=]KEYFILE")]
    pub(crate) trust: Vec<PathBuf>,
    /// Further keys you trust, after a --trust
    #[arg(value_name = "KEYFILE", requires = "trust")]
    pub(crate) more_trust: Vec<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Runs {
    /// How many at the most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Only those older than this page's cursor
    #[arg(long, value_name = "CURSOR")]
    pub(crate) before: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Bundle {
    /// The run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Write here instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON: with --out where the bundle is, else the bundle, which is JSON anyway
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// The run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Print one JSON object: its digest and its text, with bytes that are no UTF-8 replaced
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the bytes as they are, also on a terminal, where escape codes are otherwise shown
    /// and not obeyed
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// The run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The repository or folder [default: the current directory]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(crate) repo: PathBuf,
    /// Put the change on a branch even where it would apply cleanly
    #[arg(long)]
    pub(crate) branch: bool,
    /// Take this held-back path along: you looked at it (can be repeated)
    #[arg(long = "release", value_name = "PATH")]
    pub(crate) released: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Undo {
    /// The workspace [default: the current directory]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(crate) workspace: PathBuf,
    /// Put it back even where files changed since
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// JSON lines, the only format
    #[arg(long, visible_alias = "json")]
    pub(crate) jsonl: bool,
    /// Only events since this time (2026-01-31T00:00:00.000Z)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
}
