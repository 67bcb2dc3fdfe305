//! The one way out: a destination is decided, looked up, checked, dialed and recorded here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::decision::Why;
use crate::host::Host;
use crate::ledger::{Ledger, Subject, Tally};
use crate::options::Options;
use crate::pipe::within;
use crate::resolve::Lookup;
use crate::rules::{Rules, Tolerance};

/// What every connection of one proxy shares.
pub(crate) struct Gate {
    pub(crate) rules: Rules,
    pub(crate) options: Options,
    pub(crate) ledger: Arc<Ledger>,
    lookup: Lookup,
}

/// Where someone wants to go, and from where they asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) asked_address: Option<SocketAddr>,
    pub(crate) spelling: AddressSpelling,
}

/// How the record spells an IPv6 address. The reference takes it as it stands in the request: with
/// brackets in a URL, without them from the target of a CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressSpelling {
    /// `[2001:db8::1]`.
    Bracketed,
    /// `2001:db8::1`.
    Bare,
}

/// An address that may be dialed; made only by [`Gate::check`].
#[derive(Debug, Clone, Copy)]
struct CheckedAddress(SocketAddr);

impl Gate {
    pub(crate) fn new(rules: Rules, options: Options, ledger: Arc<Ledger>) -> Self {
        let lookup = Lookup::new(options.resolver.clone());
        Self { rules, options, ledger, lookup }
    }

    /// Decides a destination by the rules alone; nothing is looked up and nothing recorded.
    pub(crate) fn decide(&self, destination: &Destination) -> Result<Tolerance, Why> {
        self.rules.decide(&destination.host, destination.port)
    }

    /// Looks a decided destination up, checks every address, and dials one that passed.
    ///
    /// Nothing is recorded: what is said inside the connection may still refuse it.
    pub(crate) async fn dial(&self, destination: &Destination) -> Result<TcpStream, Why> {
        let dialing = self.look_up_and_dial(destination);
        let dialed = tokio::time::timeout(self.options.connect_timeout, dialing).await;
        dialed.unwrap_or(Err(Why::Unreachable))
    }

    /// Records a decision; `Err` when an allowed one cannot be recorded any more.
    pub(crate) fn record(&self, destination: &Destination, why: Why) -> Result<Tally, Why> {
        self.record_subject(&destination.subject(), why)
    }

    /// Records a decision about text that may name no host.
    pub(crate) fn record_subject(&self, subject: &Subject, why: Why) -> Result<Tally, Why> {
        self.ledger.record(subject, why).ok_or(Why::TooMany)
    }

    async fn look_up_and_dial(&self, destination: &Destination) -> Result<TcpStream, Why> {
        let addresses = match &destination.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.lookup.addresses(name).await,
        };
        let checked = self.check(&addresses, destination.port)?;
        // One silent address must not use up the time of the others.
        let share = self.options.connect_timeout / u32::try_from(checked.len()).unwrap_or(1).min(4);
        for CheckedAddress(address) in checked {
            if let Ok(stream) = within(share, TcpStream::connect(address)).await {
                // Small writes must not wait for acknowledgements; failure only costs speed.
                drop(stream.set_nodelay(true));
                return Ok(stream);
            }
        }
        Err(Why::Unreachable)
    }

    /// SECURITY: one bad address among good ones refuses them all, so that an answer which mixes
    /// them cannot steer the dial, and the address checked is the address dialed.
    fn check(&self, addresses: &[IpAddr], port: u16) -> Result<Vec<CheckedAddress>, Why> {
        if addresses.is_empty() {
            return Err(Why::NotResolved);
        }
        for address in addresses {
            self.rules.permits(*address, port)?;
        }
        Ok(addresses.iter().map(|ip| CheckedAddress(SocketAddr::new(*ip, port))).collect())
    }
}

impl Destination {
    pub(crate) fn subject(&self) -> Subject {
        let host = match (&self.host, self.spelling) {
            (Host::Address(address), AddressSpelling::Bare) => address.to_string(),
            (host, _) => host.to_string(),
        };
        Subject { host, port: self.port, asked_address: self.asked_address }
    }
}
