//! The bounds of one proxy, and how it looks names up.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::pass::Pass;

/// How allowed names are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolver {
    /// The machine's hosts file and the name servers of its resolver configuration.
    System,
    /// Only this name server.
    Nameserver(SocketAddr),
    /// Only this table, by canonical name.
    Static(HashMap<String, Vec<IpAddr>>),
}

/// The bounds of one proxy. Nothing here permits anything; that is for [`crate::Rules`].
#[derive(Debug, Clone)]
pub struct Options {
    /// How allowed names are looked up.
    pub resolver: Resolver,
    /// Connections served at once; more wait unaccepted.
    pub max_connections: usize,
    /// Bytes of one HTTP head or one ClientHello.
    pub max_head_bytes: usize,
    /// Queries the DNS stub answers before it refuses.
    pub max_dns_queries: u64,
    /// Names the DNS stub remembers.
    pub max_names: usize,
    /// Different allowed destinations that are reported; a further one is refused, because it could
    /// not be recorded.
    pub max_decisions: usize,
    /// Different blocked destinations that are reported apart; further ones are only counted.
    pub max_blocked: usize,
    /// Time to look a name up and connect.
    pub connect_timeout: Duration,
    /// Time to send a whole head, a SOCKS request or a ClientHello.
    pub head_timeout: Duration,
    /// Time without a byte either way.
    pub idle_timeout: Duration,
    /// Time for one connection altogether.
    pub total_timeout: Duration,
    /// What clients of the explicit listener must show; absent where only the run can reach it.
    pub pass: Option<Pass>,
    /// Certificates (DER) that the in-process client trusts beside the usual roots.
    pub extra_roots: Vec<Vec<u8>>,
}

impl Options {
    /// Returns the bounds of an ordinary run, with the machine's own resolver.
    #[must_use]
    pub fn bounded() -> Self {
        Self {
            resolver: Resolver::System,
            max_connections: 256,
            max_head_bytes: 32 * 1024,
            max_dns_queries: 100_000,
            max_names: 4096,
            max_decisions: 4096,
            max_blocked: 16_384,
            connect_timeout: Duration::from_secs(15),
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(300),
            total_timeout: Duration::from_secs(24 * 3600),
            pass: None,
            extra_roots: Vec::new(),
        }
    }
}
