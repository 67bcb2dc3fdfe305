//! What is reported: one decision about one destination, and why.

use std::net::SocketAddr;
use std::time::SystemTime;

use crate::model::ModelCall;

/// A decision about a destination, or several equal ones counted together.
///
/// The first of its kind is reported at once, with `count` 1 and no bytes. What follows of the same
/// kind is counted and reported once more at the end: `count` is then how many came after the first
/// (it may be 0) and the bytes are those of all of them. Sums over all reports are the whole truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The canonical host; where the text named none, the text with odd characters replaced.
    pub host: String,
    /// The port; 53 for a name asked of the DNS stub.
    pub port: u16,
    /// Whether the rules let it through.
    pub allowed: bool,
    /// Why.
    pub why: Why,
    /// The address the program itself connected to, where it spoke to no proxy.
    pub asked_address: Option<SocketAddr>,
    /// How many decisions this report adds.
    pub count: u64,
    /// Bytes that came in from the destination.
    pub bytes_in: u64,
    /// Bytes that went out to the destination.
    pub bytes_out: u64,
    /// When the first of those counted here was made.
    pub at: SystemTime,
    /// The call to a model that was seen inside, of which this report tells and which counts as
    /// no further decision.
    pub model: Option<ModelCall>,
}

/// Bytes of a whole proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Bytes that came in from destinations.
    pub bytes_in: u64,
    /// Bytes that went out to destinations.
    pub bytes_out: u64,
}

/// Why a decision is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Why {
    /// The rules let it through.
    Allowed,
    /// The rules let it through, but the name did not resolve.
    NotResolved,
    /// The rules let it through, but nobody answered.
    Unreachable,
    /// No rule lists the host.
    NotListed,
    /// A rule lists the host, on other ports.
    PortNotAllowed,
    /// A deny rule.
    Denied,
    /// The address is not public and no rule lists it.
    PrivateAddress,
    /// A synthetic address that stands for no name.
    UnknownAddress,
    /// The text names no host, or spells an address in an unusual way.
    MalformedHost,
    /// The request is malformed.
    MalformedRequest,
    /// The length of the request's body can be read in two ways.
    AmbiguousLength,
    /// The request names one host in its target and another in its `Host` header.
    HostMismatch,
    /// The server name inside the tunnel is not the tunnel's host.
    SniMismatch,
    /// TLS without a server name.
    NoSni,
    /// TLS whose true server name is encrypted.
    EncryptedHello,
    /// Neither TLS nor HTTP inside the tunnel.
    UnreadableTunnel,
    /// Nothing was said inside the tunnel.
    SilentTunnel,
    /// A protocol or command that is never let through.
    Unsupported,
    /// The rule does not name this method.
    MethodNotAllowed,
    /// The run exceeded a bound: names, queries or kinds of decisions.
    TooMany,
}

impl Why {
    /// Returns the name used in records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::NotResolved => "not-resolved",
            Self::Unreachable => "unreachable",
            Self::NotListed => "not-listed",
            Self::PortNotAllowed => "port-not-allowed",
            Self::Denied => "denied",
            Self::PrivateAddress => "private-address",
            Self::UnknownAddress => "unknown-address",
            Self::MalformedHost => "malformed-host",
            Self::MalformedRequest => "malformed-request",
            Self::AmbiguousLength => "ambiguous-length",
            Self::HostMismatch => "host-mismatch",
            Self::SniMismatch => "sni-mismatch",
            Self::NoSni => "no-sni",
            Self::EncryptedHello => "encrypted-hello",
            Self::UnreadableTunnel => "unreadable-tunnel",
            Self::SilentTunnel => "silent-tunnel",
            Self::Unsupported => "unsupported",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::TooMany => "too-many",
        }
    }

    /// Returns whether the rules let it through, whatever became of it.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed | Self::NotResolved | Self::Unreachable)
    }
}
