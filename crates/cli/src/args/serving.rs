//! Arguments of the commands that serve others.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What `warrant plane --help` says at its end.
pub(crate) const PLANE_HELP: &str = "\
The first start makes config.json in the home (readable by you alone) with the token of the
principal `admin` and the token that lets runners in, and shows both once.

  warrant plane start
  curl -H \"Authorization: Bearer $TOKEN\" http://127.0.0.1:7172/v1/runs";

#[derive(Debug, Subcommand)]
pub(crate) enum Plane {
    /// Serve this home's plane to clients and runners until told to stop
    #[command(after_help = PLANE_HELP)]
    Start(PlaneStart),
}

#[derive(Debug, Args)]
pub(crate) struct PlaneStart {
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
    /// How much to log to stderr, as JSON lines: error, warn, info, debug or off
    #[arg(long, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "warn")]
    pub(crate) log: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
