//! The clocks of this machine. Everything else takes time as an argument.

use rustix::time::{ClockId, clock_gettime};
use warrant_protocol::{Moment, TimeSource, Timestamp};

use crate::random;

/// The clocks of this machine: `CLOCK_BOOTTIME` for moments, the wall clock for dates.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemTimeSource;

impl TimeSource for SystemTimeSource {
    fn moment(&self) -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        Moment::after_origin(std::time::Duration::try_from(now).unwrap_or_default())
    }

    fn date(&self) -> Timestamp {
        // A wall clock outside the years 1970 to 9999 has no date that evidence could carry.
        random::now().unwrap_or(Timestamp::EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_never_go_back() {
        let mut last = Moment::ORIGIN;
        for _ in 0..1000 {
            let now = SystemTimeSource.moment();
            assert!(now >= last && now > Moment::ORIGIN);
            last = now;
        }
    }
}
