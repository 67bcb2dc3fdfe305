//! Rate limits. A principal that asks too much slows only itself; an address that guesses tokens
//! slows only guesses: a right token is always let in.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use warrant_protocol::Moment;

/// How many keys are remembered before the oldest are forgotten.
const MAX_KEYS: usize = 10_000;

/// How long wrong tokens are remembered.
const WINDOW: Duration = Duration::from_secs(60);

/// Buckets that fill at a steady rate, one for each key.
#[derive(Debug)]
pub(crate) struct Buckets<K> {
    rate: f64,
    burst: f64,
    levels: Mutex<HashMap<K, (f64, Moment)>>,
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let (rate, burst) = (f64::from(per_second), f64::from(burst));
        Self { rate, burst, levels: Mutex::default() }
    }

    /// Takes one out of a key's bucket; false when it is empty.
    pub(crate) fn take(&self, key: &K, now: Moment) -> bool {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        if levels.len() >= MAX_KEYS && !levels.contains_key(key) {
            let burst = self.burst;
            // Full buckets say nothing; forgetting them changes nothing.
            levels.retain(|_, (level, since)| {
                *level + now.since(*since).as_secs_f64() * self.rate < burst
            });
        }
        let (level, since) = levels.entry(key.clone()).or_insert((self.burst, now));
        let filled = now.since(*since).as_secs_f64() * self.rate;
        *level = (*level + filled).min(self.burst);
        *since = now;
        if *level < 1.0 {
            return false;
        }
        *level -= 1.0;
        true
    }
}

/// Counts wrong tokens by address.
#[derive(Debug)]
pub(crate) struct Failures {
    /// How many an address has in [`WINDOW`] before it is told to back off.
    most: u32,
    counts: Mutex<HashMap<IpAddr, (u32, Moment)>>,
}

impl Failures {
    pub(crate) fn new(most: u32) -> Self {
        Self { most, counts: Mutex::default() }
    }

    /// Counts a wrong token; true when the address has had too many.
    pub(crate) fn count(&self, address: IpAddr, now: Moment) -> bool {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_KEYS {
            counts.retain(|_, (_, since)| now.since(*since) < WINDOW);
        }
        let (count, since) = counts.entry(address).or_insert((0, now));
        if now.since(*since) >= WINDOW {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
        *count > self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_empties_and_fills_again() {
        let buckets = Buckets::new(10, 2);
        let start = Moment::after_origin(Duration::from_secs(1000));
        assert!(buckets.take(&"a", start));
        assert!(buckets.take(&"a", start));
        assert!(!buckets.take(&"a", start));
        assert!(buckets.take(&"b", start), "others are not slowed");
        assert!(buckets.take(&"a", start.plus(Duration::from_millis(100))));
    }

    #[test]
    fn failures_are_forgotten_after_the_window() {
        let failures = Failures::new(20);
        let address = IpAddr::from([127, 0, 0, 1]);
        let start = Moment::after_origin(Duration::from_secs(1000));
        for _ in 0..20 {
            assert!(!failures.count(address, start));
        }
        assert!(failures.count(address, start));
        assert!(!failures.count(IpAddr::from([127, 0, 0, 2]), start));
        assert!(!failures.count(address, start.plus(WINDOW)));
    }
}
