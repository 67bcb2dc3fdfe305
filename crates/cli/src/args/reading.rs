//! Arguments of the commands that read runs and bundles.

use std::path::PathBuf;

use clap::Args;

pub(super) const VERIFY_HELP: &str = "\
Keys inside a bundle file are never trusted. Name the keys you trust with --trust.
A key is trusted for one role: the one you write before it (plane=, runner=, approver=), else
the one its file name starts with (plane.pub.pem), else the one in which the bundle uses it.

Exit codes: 0 verified, 6 not verified, 2 usage.

Example:
  warrant verify run.bundle.json --trust plane.pub.pem --trust runner.pub.pem";

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A bundle file, or - for standard input
    #[arg(value_name = "FILE")]
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
