//! Moments with the dates that are shown for them.
//!
//! What is due is decided by moments of a monotonic clock alone: a wall clock that is set to another
//! hour ends, pauses and keeps nothing. The date is what clients are told.

use std::time::Duration;

use warrant_protocol::{Moment, TimeSource, Timestamp};

/// A moment, and the date it had when it was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DatedMoment {
    moment: Moment,
    date: Timestamp,
}

impl DatedMoment {
    pub(super) fn now(time: &dyn TimeSource) -> Self {
        Self { moment: time.moment(), date: time.date() }
    }

    /// Returns its date, for people.
    pub(super) const fn date(self) -> Timestamp {
        self.date
    }

    pub(super) const fn plus_ms(self, ms: u64) -> Self {
        let moment = self.moment.plus(Duration::from_millis(ms));
        Self { moment, date: self.date.plus_ms(ms) }
    }

    /// Returns whether it is over at `now`.
    pub(super) fn is_reached(self, now: Self) -> bool {
        now.moment >= self.moment
    }

    /// Returns the earlier of two.
    pub(super) fn earlier(self, other: Self) -> Self {
        if other.moment < self.moment { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use warrant_protocol::SteppedTime;

    use super::*;

    #[test]
    fn a_wall_clock_that_jumps_makes_nothing_due() {
        let start = Timestamp::from_unix_ms(1_700_000_000_000).unwrap();
        let time = SteppedTime::at(start);
        let due = DatedMoment::now(&time).plus_ms(60_000);
        for jumped in [start.plus_ms(3_600_000), Timestamp::EPOCH] {
            time.set_date(jumped);
            assert!(!due.is_reached(DatedMoment::now(&time)), "{jumped}");
        }
        assert_eq!(due.date(), start.plus_ms(60_000));
        time.advance(Duration::from_secs(60));
        assert!(due.is_reached(DatedMoment::now(&time)));
        let later = due.plus_ms(1);
        assert_eq!((later.earlier(due), due.earlier(later)), (due, due));
    }
}
