//! What a run tried on ports where nobody listens: refused by the kernel, seen by witnesses, told.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::SystemTime;

use warrant_jail::{Listener, ListenerKind, next_destination};

use crate::{NetworkDecision, Sink};

/// After so many nobody counts any more; the last report says so.
const MOST_ATTEMPTS: u32 = 16_384;
/// So many are told before the supervisor looks at anything else.
const AT_ONCE: usize = 64;

/// The witnesses of one run.
#[derive(Debug, Default)]
pub(crate) struct Witnesses {
    sockets: Vec<(Listener, OwnedFd)>,
    /// Ports with a listener, whose decisions the proxy tells.
    taken: BTreeSet<u16>,
    told: u32,
}

impl Witnesses {
    /// Adds what a jail handed out for one entry of its spec.
    pub(crate) fn add(&mut self, spec: &Listener, fd: OwnedFd) {
        self.sockets.push((*spec, fd));
    }

    /// Leaves a port to whoever listens on it.
    pub(crate) fn leave(&mut self, port: u16) {
        self.taken.insert(port);
    }

    /// Returns what to wait for.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|(_, socket)| socket.as_fd())
    }

    /// Tells a few of the attempts there were.
    pub(crate) fn tell(&mut self, sink: &dyn Sink) {
        self.tell_some(AT_ONCE, sink);
    }

    /// Tells all attempts there were, when there can be no more.
    pub(crate) fn tell_rest(&mut self, sink: &dyn Sink) {
        self.tell_some(usize::MAX, sink);
    }

    fn tell_some(&mut self, most: usize, sink: &dyn Sink) {
        let Self { sockets, taken, told } = self;
        for (listener, socket) in sockets.iter() {
            let next = || next_destination(socket.as_fd(), listener).ok().flatten();
            for destination in std::iter::from_fn(next).take(most) {
                if *told >= MOST_ATTEMPTS {
                    break;
                }
                let is_udp = listener.kind == ListenerKind::UdpWitness;
                if is_udp || !taken.contains(&destination.port()) {
                    *told += 1;
                    sink.network(refused(destination, is_udp));
                }
            }
        }
        if *told >= MOST_ATTEMPTS {
            sockets.clear();
            let others = NetworkDecision {
                host: "[others]".to_owned(),
                why: "too-many".to_owned(),
                ..refused(SocketAddr::from(([0; 4], 0)), false)
            };
            sink.network(others);
            *told = 0;
        }
    }
}

fn refused(destination: SocketAddr, is_udp: bool) -> NetworkDecision {
    // No datagram is let through but questions for names.
    let why = if is_udp { "unsupported" } else { "port-not-allowed" };
    NetworkDecision {
        host: destination.ip().to_string(),
        port: destination.port(),
        allowed: false,
        why: why.to_owned(),
        count: 1,
        bytes_out: 0,
        bytes_in: 0,
        at: SystemTime::now(),
        model: None,
    }
}
