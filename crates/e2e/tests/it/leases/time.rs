//! Simulated time and chance: everything that happens follows from one seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use warrant_protocol::{Moment, TimeSource, Timestamp};

/// The date at which every simulation begins.
const BEGIN_UNIX_MS: u64 = 1_800_000_000_000;

/// How far a wall clock may be off.
const MOST_OFFSET_MS: i64 = 3_600_000;

/// Time that only the simulation moves.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimulatedTime(Arc<AtomicU64>);

impl SimulatedTime {
    pub(crate) fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ms(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    /// Returns the clocks of one more process.
    pub(crate) fn process(&self) -> Arc<ProcessClocks> {
        Arc::new(ProcessClocks { time: self.clone(), wall_offset_ms: AtomicI64::new(0) })
    }
}

/// The clocks of one process: a common monotonic one, and a wall clock that jumps.
#[derive(Debug)]
pub(crate) struct ProcessClocks {
    time: SimulatedTime,
    wall_offset_ms: AtomicI64,
}

impl ProcessClocks {
    /// Moves the wall clock, but never further off than an hour: a plane takes an event for
    /// impossible when its date lies two hours before the one before it.
    pub(crate) fn jump(&self, by_ms: i64) {
        let offset_ms = self.wall_offset_ms.load(Ordering::Relaxed) + by_ms;
        let offset_ms = offset_ms.clamp(-MOST_OFFSET_MS, MOST_OFFSET_MS);
        self.wall_offset_ms.store(offset_ms, Ordering::Relaxed);
    }
}

impl TimeSource for ProcessClocks {
    fn moment(&self) -> Moment {
        Moment::after_origin(Duration::from_millis(self.time.ms()))
    }

    fn date(&self) -> Timestamp {
        let offset = self.wall_offset_ms.load(Ordering::Relaxed);
        let unix_ms = (BEGIN_UNIX_MS + self.time.ms()).saturating_add_signed(offset);
        Timestamp::from_unix_ms(unix_ms).unwrap()
    }
}

/// SeededRandom that can be had again: SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `from` up to, but not, `to`.
    pub(crate) fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from).max(1)
    }

    /// Returns true in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.range(0, 100) < percent
    }
}
