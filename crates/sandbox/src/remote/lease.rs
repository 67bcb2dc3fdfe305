//! The lease of a sandbox: its provider ends it soon, unless somebody with a good key renews it.
//!
//! A key that was revoked, a machine that died, a network that was cut: none of them can delete
//! anything. So the provider is told at first to let the sandbox live for a short term only, and
//! a thread asks for another term again and again while the session lives.
//!
//! ```text
//! held ── renewed ── renewed … ── closed
//!   └─ nothing but failures for a whole term ─► lost
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::adapter::{Adapter, Handle, Reached};
use super::wire::Wire;

/// A third of its term after a renewal, the next one is asked for.
const PARTS: u32 = 3;
/// How long after a failure it is tried again, as a part of the term.
const RETRY_PARTS: u32 = 30;
const SHORTEST_RETRY: Duration = Duration::from_millis(250);
/// A renewal that hangs is given up after this, so that there is time for another.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lease of one sandbox. Clones are the same lease.
#[derive(Debug, Clone)]
pub(crate) struct Lease(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    term: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// When the term that was last granted began, for people and for us.
    granted: (SystemTime, Instant),
    is_closed: bool,
    /// What the provider said to the last renewal, if it was not granted.
    refusal: Option<String>,
}

impl Lease {
    /// Returns a lease whose first term begins now.
    pub(crate) fn begin(term: Duration) -> Self {
        let granted = (SystemTime::now(), Instant::now());
        let state = Mutex::new(State { granted, is_closed: false, refusal: None });
        Self(Arc::new(Shared { term, state, changed: Condvar::new() }))
    }

    /// Renews it from a thread of its own until it is closed or lost.
    pub(crate) fn keep(
        &self,
        adapter: Arc<dyn Adapter>,
        handle: Handle,
        patience: Duration,
    ) -> std::io::Result<()> {
        let lease = self.clone();
        let work = move || lease.renew_until_closed(&*adapter, &handle, patience.min(PATIENCE));
        std::thread::Builder::new().name("lease".to_owned()).spawn(work).map(drop)
    }

    /// Asks for another term if a part of this one is over.
    pub(crate) fn renew_if_due(&self, adapter: &dyn Adapter, at: Reached<'_>) {
        let is_due = self.lock().granted.1.elapsed() >= self.0.term / PARTS;
        if is_due {
            self.renew(adapter, at);
        }
    }

    /// Nobody renews it any more.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.0.changed.notify_all();
    }

    /// Returns when the provider ends the sandbox, if nobody does.
    pub(crate) fn until(&self) -> SystemTime {
        self.lock().granted.0 + self.0.term
    }

    /// Returns why a lease was not renewed for its whole term, if it was not.
    pub(crate) fn lost(&self) -> Option<String> {
        let state = self.lock();
        let is_lost = state.granted.1.elapsed() >= self.0.term;
        is_lost.then(|| state.refusal.clone().unwrap_or_else(|| "no answer came".to_owned()))
    }

    fn renew_until_closed(&self, adapter: &dyn Adapter, handle: &Handle, patience: Duration) {
        let usual = self.0.term / PARTS;
        let retry = (self.0.term / RETRY_PARTS).max(SHORTEST_RETRY);
        let mut pause = usual;
        let mut wire = None;
        while self.wait(pause) {
            pause = retry;
            // Most sessions end before their first renewal, so the wire is opened only now.
            if wire.is_none() {
                wire = Wire::open(patience).ok();
            }
            if let Some(wire) = &wire
                && self.renew(adapter, Reached { wire, handle })
            {
                pause = usual;
            }
        }
    }

    /// Asks for another term; returns whether it was granted.
    fn renew(&self, adapter: &dyn Adapter, at: Reached<'_>) -> bool {
        let answer = adapter.extend(at, self.0.term);
        let mut state = self.lock();
        match answer {
            Ok(()) => {
                state.granted = (SystemTime::now(), Instant::now());
                state.refusal = None;
                true
            }
            Err(error) => {
                state.refusal = Some(error.to_string());
                false
            }
        }
    }

    /// Waits; returns whether the lease is still held.
    fn wait(&self, pause: Duration) -> bool {
        let state = self.lock();
        let waited = self.0.changed.wait_timeout_while(state, pause, |state| !state.is_closed);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_closed && state.granted.1.elapsed() < self.0.term
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_nobody_renews_is_lost_and_stays_told() {
        let lease = Lease::begin(Duration::ZERO);
        assert_eq!(lease.lost().as_deref(), Some("no answer came"));
        assert!(!lease.wait(Duration::ZERO));
    }

    #[test]
    fn a_lease_that_was_closed_is_renewed_no_more() {
        let lease = Lease::begin(Duration::from_secs(3600));
        assert!(lease.wait(Duration::ZERO));
        assert!(lease.until() > SystemTime::now() + Duration::from_secs(3000));
        lease.clone().close();
        assert!(!lease.wait(Duration::from_secs(3600)));
        assert_eq!(lease.lost(), None);
    }
}
