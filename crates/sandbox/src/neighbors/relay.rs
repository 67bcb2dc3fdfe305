//! One connection between two commands, carried both ways until either side is done.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Both directions.
const WAYS: usize = 2;
/// More connections than this are not carried at once for all sandboxes of this process: each
/// takes two threads.
const MOST_OF_ALL: usize = 1024;

/// Connections that are carried now.
static CARRIED: AtomicUsize = AtomicUsize::new(0);

/// The right to carry one connection; given back when dropped.
pub(super) struct Ticket(());

impl Ticket {
    /// Returns a ticket, if there is one left.
    pub(super) fn take() -> Option<Self> {
        let ticket = Self(());
        let before = CARRIED.fetch_add(1, Ordering::AcqRel);
        (before < MOST_OF_ALL).then_some(ticket)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        CARRIED.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How many directions are still carried.
struct Ways {
    left: AtomicUsize,
    _ticket: Ticket,
}

/// A connection that goes on. Dropping it ends it.
pub(super) struct Visit {
    guest: u64,
    host: u64,
    near: Arc<TcpStream>,
    far: Arc<TcpStream>,
    ways: Arc<Ways>,
}

impl Visit {
    /// Connects `far` to the server and carries what either says to the other.
    ///
    /// # Errors
    /// The system's error when there is no thread for it; then both are closed.
    pub(super) fn begin(
        ((guest, near), (host, far)): ((u64, TcpStream), (u64, TcpStream)),
        server: SocketAddr,
        ticket: Ticket,
    ) -> io::Result<Self> {
        let (near, far) = (Arc::new(near), Arc::new(far));
        let ways = Arc::new(Ways { left: AtomicUsize::new(WAYS), _ticket: ticket });
        let visit = Self {
            guest,
            host,
            near: Arc::clone(&near),
            far: Arc::clone(&far),
            ways: Arc::clone(&ways),
        };
        let there = move || {
            let is_connected = rustix::net::connect(&*far, &server).is_ok();
            let (back_near, back_far, back_ways) =
                (Arc::clone(&near), Arc::clone(&far), Arc::clone(&ways));
            let back = move || carry(&back_far, &back_near, &back_ways);
            let answering = std::thread::Builder::new().name("neighbor".to_owned());
            if !is_connected || answering.spawn(back).is_err() {
                end(&near, &far);
                ways.left.store(0, Ordering::Release);
                return;
            }
            carry(&near, &far, &ways);
        };
        std::thread::Builder::new().name("neighbor".to_owned()).spawn(there)?;
        Ok(visit)
    }

    /// Returns whether anything is still carried.
    pub(super) fn is_going_on(&self) -> bool {
        self.ways.left.load(Ordering::Acquire) > 0
    }

    /// Returns whether a house is at one of its ends.
    pub(super) const fn ends_with(&self, house: u64) -> bool {
        self.guest == house || self.host == house
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        end(&self.near, &self.far);
    }
}

fn carry(from: &TcpStream, to: &TcpStream, ways: &Ways) {
    let (mut source, mut sink) = (from, to);
    match io::copy(&mut source, &mut sink) {
        // The other direction may go on.
        Ok(_) => drop(to.shutdown(Shutdown::Write)),
        Err(_) => end(from, to),
    }
    ways.left.fetch_sub(1, Ordering::AcqRel);
}

fn end(one: &TcpStream, other: &TcpStream) {
    let _ = one.shutdown(Shutdown::Both);
    let _ = other.shutdown(Shutdown::Both);
}
