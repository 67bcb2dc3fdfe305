//! Time as an argument: durations on a monotonic clock, dates for people.
//!
//! Two kinds of time never mix. A [`Moment`] is read from a clock that never goes back and counts
//! while the machine sleeps; leases, renewals, waits and idle times are differences of moments.
//! A [`Timestamp`] is the date of the wall clock; it stands in evidence and in expiry dates and
//! decides nothing else. Both come from a [`TimeSource`], which a simulation replaces.
//!
//! Why the suspend-aware clock (`CLOCK_BOOTTIME`) and not `CLOCK_MONOTONIC`: a machine that slept
//! must notice it, because the others did not sleep. Whether time that passed unnoticed counts is
//! decided by [`AwakeTime`], the same for a suspended laptop, a stopped process, a paused virtual
//! machine and a debugger: it does not.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::Timestamp;

/// A moment on the monotonic clock of one process; it means nothing to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment at which the clock began.
    pub const ORIGIN: Self = Self(Duration::ZERO);

    /// Returns the moment this long after the clock began.
    #[must_use]
    pub const fn after_origin(since: Duration) -> Self {
        Self(since)
    }

    /// Returns how long after the clock began this is.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// Returns the moment `later` after this one.
    #[must_use]
    pub const fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// Returns the moment `earlier` before this one, or the origin.
    #[must_use]
    pub const fn minus(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }

    /// Returns the time from `earlier` to this moment; zero when it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where time comes from: the system, or a simulation.
pub trait TimeSource: fmt::Debug + Send + Sync {
    /// Returns the present moment: never earlier than one returned before, and counting while the
    /// machine sleeps.
    fn moment(&self) -> Moment;

    /// Returns the date, for evidence, people and expiry dates. It may jump either way.
    fn date(&self) -> Timestamp;
}

/// The longest step between two observations that counts as time in which this process ran.
pub const LONGEST_STEP: Duration = Duration::from_secs(5);

/// Time in which this process was running, so that nobody is blamed for its pauses.
///
/// ```text
/// observe every second or so:   |-|-|-|-|----------- paused -----------|-|-|
/// awake time:                   |-|-|-|-|-----| (at most LONGEST_STEP) |-|-|
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwakeTime {
    last: Moment,
    awake: Duration,
}

impl AwakeTime {
    /// Begins to count at `now`.
    #[must_use]
    pub const fn begin(now: Moment) -> Self {
        Self { last: now, awake: Duration::ZERO }
    }

    /// Counts the time since the last observation; returns by how much it was a pause.
    pub fn observe(&mut self, now: Moment) -> Duration {
        let step = now.since(self.last);
        self.last = self.last.max(now);
        self.awake = self.awake.saturating_add(step.min(LONGEST_STEP));
        step.saturating_sub(LONGEST_STEP)
    }

    /// Returns how long this process has been running, as far as it was observed.
    #[must_use]
    pub const fn elapsed(&self) -> Duration {
        self.awake
    }
}

/// Clocks that stand still until somebody moves them, for tests and simulations.
#[derive(Debug)]
pub struct SteppedTime {
    now: Mutex<(Moment, Timestamp)>,
}

impl SteppedTime {
    /// Returns clocks that show this date.
    #[must_use]
    pub const fn at(date: Timestamp) -> Self {
        Self { now: Mutex::new((Moment::ORIGIN, date)) }
    }

    /// Lets time pass, on both clocks.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.0 = now.0.plus(by);
        now.1 = now.1.plus_ms(u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
    }

    /// Sets the wall clock and nothing else, as people and time servers do.
    pub fn set_date(&self, date: Timestamp) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).1 = date;
    }
}

impl TimeSource for SteppedTime {
    fn moment(&self) -> Moment {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn date(&self) -> Timestamp {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: u64) -> Moment {
        Moment::after_origin(Duration::from_secs(number))
    }

    #[test]
    fn a_pause_counts_as_one_step_and_is_reported() {
        let mut time = AwakeTime::begin(second(100));
        for now in 101..=110 {
            assert_eq!(time.observe(second(now)), Duration::ZERO);
        }
        assert_eq!(time.elapsed(), Duration::from_secs(10));
        assert_eq!(time.observe(second(3710)), Duration::from_secs(3595));
        assert_eq!(time.elapsed(), Duration::from_secs(15));
    }

    #[test]
    fn observations_that_arrive_out_of_order_count_nothing_twice() {
        let mut time = AwakeTime::begin(second(10));
        time.observe(second(12));
        time.observe(second(11));
        time.observe(second(13));
        assert_eq!(time.elapsed(), Duration::from_secs(3));
    }
}
