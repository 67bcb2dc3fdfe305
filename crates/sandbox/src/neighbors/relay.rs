//! One connection between two commands, carried both ways until either side is done.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Both directions.
const WAYS: usize = 2;

/// A connection that goes on. Dropping it ends it.
pub(super) struct Visit {
    guest: u64,
    host: u64,
    near: Arc<TcpStream>,
    far: Arc<TcpStream>,
    /// Directions that are still carried.
    ways: Arc<AtomicUsize>,
}

impl Visit {
    /// Connects `far` to the server and carries what either says to the other.
    ///
    /// # Errors
    /// The system's error when there is no thread for it; then both are closed.
    pub(super) fn begin(
        (guest, near): (u64, TcpStream),
        (host, far): (u64, TcpStream),
        server: SocketAddr,
    ) -> io::Result<Self> {
        let (near, far) = (Arc::new(near), Arc::new(far));
        let ways = Arc::new(AtomicUsize::new(WAYS));
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
                ways.store(0, Ordering::Release);
                return;
            }
            carry(&near, &far, &ways);
        };
        std::thread::Builder::new().name("neighbor".to_owned()).spawn(there)?;
        Ok(visit)
    }

    /// Returns whether anything is still carried.
    pub(super) fn is_going_on(&self) -> bool {
        self.ways.load(Ordering::Acquire) > 0
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

fn carry(from: &TcpStream, to: &TcpStream, ways: &AtomicUsize) {
    let (mut source, mut sink) = (from, to);
    match io::copy(&mut source, &mut sink) {
        // The other direction may go on.
        Ok(_) => drop(to.shutdown(Shutdown::Write)),
        Err(_) => end(from, to),
    }
    ways.fetch_sub(1, Ordering::AcqRel);
}

fn end(one: &TcpStream, other: &TcpStream) {
    let _ = one.shutdown(Shutdown::Both);
    let _ = other.shutdown(Shutdown::Both);
}
