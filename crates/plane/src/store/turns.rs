//! Taking turns: whoever comes with a job finds it done, or leads and does whatever waits.
//!
//! ```text
//! join ── nobody leads ─► lead: do whatever waits, tell everyone, pass the lead on
//!    └─── somebody leads ─► wait ─► done, or lead the next group
//! ```
//!
//! Whoever is told goes on at once; the next leader is somebody who waits, so that nobody works
//! for others longer than for one group.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};

use super::lock;

/// Jobs that wait, and whether somebody does them.
pub(super) struct Turns<J>(Mutex<Waiting<J>>);

struct Waiting<J> {
    jobs: Vec<(J, Seat)>,
    is_led: bool,
}

/// The right to do whatever waits; passed on when it goes, also when work panicked.
pub(super) struct Lead<'a, J>(&'a Turns<J>);

/// Where somebody waits. A seat that is dropped lets them go, whatever became of the job.
pub(super) struct Seat(Arc<Place>);

struct Place {
    thread: Thread,
    turn: AtomicU8,
}

const WAITS: u8 = 0;
const LEADS: u8 = 1;
const DONE: u8 = 2;

impl<J> Default for Turns<J> {
    fn default() -> Self {
        Self(Mutex::new(Waiting { jobs: Vec::new(), is_led: false }))
    }
}

impl<J> Turns<J> {
    /// Puts a job in line. Returns the lead when this thread is to do whatever waits, nothing when
    /// the job was done or dropped.
    pub(super) fn join(&self, job: J) -> Option<Lead<'_, J>> {
        let place = Arc::new(Place { thread: thread::current(), turn: AtomicU8::new(WAITS) });
        let is_first = {
            let mut waiting = lock(&self.0);
            waiting.jobs.push((job, Seat(Arc::clone(&place))));
            !std::mem::replace(&mut waiting.is_led, true)
        };
        (is_first || place.wait() == LEADS).then_some(Lead(self))
    }
}

impl<J> Lead<'_, J> {
    /// Takes every job that waits now.
    pub(super) fn take(&self) -> Vec<(J, Seat)> {
        std::mem::take(&mut lock(&self.0.0).jobs)
    }
}

impl<J> Drop for Lead<'_, J> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.0);
        match waiting.jobs.first() {
            Some((_, next)) => next.call(LEADS),
            None => waiting.is_led = false,
        }
    }
}

impl Seat {
    fn call(&self, turn: u8) {
        self.0.turn.store(turn, Ordering::Release);
        self.0.thread.unpark();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.call(DONE);
    }
}

impl Place {
    /// Waits until the job is done or this thread is to lead.
    fn wait(&self) -> u8 {
        loop {
            match self.turn.load(Ordering::Acquire) {
                WAITS => thread::park(),
                turn => return turn,
            }
        }
    }
}
