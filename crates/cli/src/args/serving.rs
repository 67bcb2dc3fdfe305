//! Arguments of the commands that serve others.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::logs::LogArguments;

/// What `warrant plane --help` says at its end.
pub(crate) const PLANE_HELP: &str = "\
The first start makes config.json in the home (readable by you alone) with the token of the
principal `admin` and the token that lets runners in. Each is also in a file of its own in the
home, admin.token and enroll.token; the first lines name them, and no token is ever printed.
Its `limits` (requestsPerSecond, requestBurst, authFailuresPerMinute, blobBytes) say how much callers
may ask for; the arguments here go before them. Commands on the same home need no token meanwhile.

  warrant plane start
  warrant login --plane http://127.0.0.1:7172 --token-file HOME/admin.token";

#[derive(Debug, Subcommand)]
pub(crate) enum Plane {
    /// Serve this home's plane to clients and runners until told to stop
    #[command(after_help = PLANE_HELP)]
    Start(PlaneStart),
}

const DEV_HELP: &str = "\
One process for a laptop: the plane of this home, a runner for it, and the page. The first lines say
where the page is; its address logs you in, once. Commands that use the same home need no token:

  warrant dev
  warrant run --plane http://127.0.0.1:7172 'echo hello'

Ctrl-C drains: no more claims, what runs may finish until --drain, then it is cancelled with
receipts. Other people's runners may enroll too; this one is only the first.

Exit codes: 0 drained, 1 failed, 2 usage.";

#[derive(Debug, Args)]
#[command(after_help = DEV_HELP)]
pub(crate) struct Dev {
    /// Address and port to listen on, of this machine alone [default: port of config.json]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// The pool the runner works for
    #[arg(long, value_name = "P", default_value = "default")]
    pub(crate) pool: String,
    /// How many runs at a time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) concurrency: u16,
    /// Open the doors for E2B, Daytona, OpenSandbox and HELM clients; see warrant doors issue --help
    #[arg(long)]
    pub(crate) doors: bool,
    /// How long runs may go on after the drain began: 30s, 5m
    #[arg(long, value_name = "D", default_value = "10s", value_parser = super::super::duration::parse)]
    pub(crate) drain: u64,
    #[command(flatten)]
    pub(crate) logging: LogArguments,
    /// Print one JSON object when it is ready and one at the end
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlaneStart {
    /// The policy that a new home starts with: default, strict, dev, ci or reference
    ///
    /// With `reference`, runners and clients of the reference implementation work here: its own
    /// policy document, the process tier, and blobs that are read without a token while it serves.
    #[arg(long, value_name = "PRESET")]
    pub(crate) preset: Option<String>,
    /// Address and port to listen on [default: host and port of config.json]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Certificate chain, PEM; serves TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authority that must have signed the certificates of clients, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Serve without TLS on an address that others can reach
    #[arg(long)]
    pub(crate) insecure_plaintext: bool,
    /// Open the doors for E2B, Daytona, OpenSandbox, HELM and MCP clients; see warrant doors issue
    /// --help
    #[arg(long)]
    pub(crate) doors: bool,
    /// A name under which MCP clients reach this machine, besides localhost (can be repeated)
    #[arg(long, value_name = "NAME", requires = "doors")]
    pub(crate) door_host: Vec<String>,
    /// Requests per second that one principal may make [default: config.json, else 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests_per_second: Option<u32>,
    /// Requests that one principal may make at once [default: config.json, else 4000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) request_burst: Option<u32>,
    /// Wrong tokens per minute before their address is told to back off [default: config.json, else 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) auth_failures: Option<u32>,
    #[command(flatten)]
    pub(crate) logging: LogArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
