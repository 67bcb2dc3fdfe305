//! The runner's side of one lease as a state machine: pure, with time as an argument.
//!
//! ```text
//!            renewed                      renewed (the outage is reported)
//!         ┌───────────┐              ┌──────────────────────────┐
//!         ▼           │              │                          │
//!  granted ──► Held ──┴── lease over ──► Disconnected ── rule's time over ──► Over
//! ```
//!
//! The lease of a claim is counted from when the answer arrived: a claim may have waited for work
//! for any time before, and the answer carries the time left. A renewal is counted from when it
//! was sent, which is never later than what the plane counts from, however long the answer waited.
//!
//! A runner whose plane does not answer goes on as long as the plane's policy allows. A runner that
//! was itself paused asks the plane before it gives anything up.

use std::time::Duration;

use warrant_protocol::wire::DisconnectRule;
use warrant_protocol::{AwakeTime, Moment};

/// How long before the plane may give a lease up its runner stops by itself.
pub const STOP_MARGIN: Duration = Duration::from_secs(3);

/// How long a runner that was paused tries to reach its plane before its lease is over.
pub const RECONNECT: Duration = Duration::from_secs(10);

/// The time of one lease, as its runner counts it.
#[derive(Debug, Clone)]
pub struct LeaseTimer {
    lease: Duration,
    rule: DisconnectRule,
    counted_from: Moment,
    awake: AwakeTime,
    /// How long this process had been running when the lease was last counted from.
    awake_before: Duration,
    resumed_at: Option<Moment>,
}

/// Where a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStanding {
    /// The plane counts on this runner.
    Held,
    /// The plane has not answered for longer than the lease; the run goes on.
    Disconnected,
    /// The run must stop now.
    Over,
}

impl LeaseTimer {
    /// Begins when the answer to the claim arrives; `lease` is the time left that it carries.
    #[must_use]
    pub const fn granted(arrived: Moment, lease: Duration, rule: DisconnectRule) -> Self {
        Self {
            lease,
            rule,
            counted_from: arrived,
            awake: AwakeTime::begin(arrived),
            awake_before: Duration::ZERO,
            resumed_at: None,
        }
    }

    /// Counts the lease anew after a renewal that was sent at `sent` and answered at `arrived`.
    /// Returns for how long the plane had not been heard, when that was longer than the lease.
    pub fn renewed(&mut self, sent: Moment, arrived: Moment, lease: Duration) -> Option<Duration> {
        self.observe(arrived);
        let outage = self.outage();
        if sent > self.counted_from {
            self.counted_from = sent;
        }
        self.awake_before = self.awake.elapsed().saturating_sub(arrived.since(sent));
        self.lease = lease;
        self.resumed_at = None;
        outage
    }

    /// Returns where the lease stands. Whoever holds a lease asks about every second.
    pub fn standing(&mut self, now: Moment) -> LeaseStanding {
        self.observe(now);
        if now >= self.over_at() {
            LeaseStanding::Over
        } else if now >= self.counted_from.plus(self.lease) {
            LeaseStanding::Disconnected
        } else {
            LeaseStanding::Held
        }
    }

    /// Returns when the run must stop unless the plane answers before.
    #[must_use]
    pub fn over_at(&self) -> Moment {
        let held = self.lease.saturating_sub(STOP_MARGIN);
        let may_last = match self.rule {
            DisconnectRule::Stop => held,
            DisconnectRule::ContinueFor(most) => held.max(most),
        };
        let over_at = self.counted_from.plus(may_last);
        match self.resumed_at {
            Some(resumed_at) => over_at.max(resumed_at.plus(RECONNECT)),
            None => over_at,
        }
    }

    /// Returns for how long the plane has not been heard, when that is longer than the lease.
    /// Time in which this process was paused is not counted: nobody was listening.
    #[must_use]
    pub fn outage(&self) -> Option<Duration> {
        let unheard = self.awake.elapsed().saturating_sub(self.awake_before);
        (unheard > self.lease).then_some(unheard)
    }

    fn observe(&mut self, now: Moment) {
        if !self.awake.observe(now).is_zero() {
            self.resumed_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn second(number: u64) -> Moment {
        Moment::after_origin(Duration::from_secs(number))
    }

    /// Asks every second from `from` to `to` and returns when the standing changed, and to what.
    fn changes(timer: &mut LeaseTimer, from: u64, to: u64) -> Vec<(u64, LeaseStanding)> {
        let mut seen: Vec<(u64, LeaseStanding)> = Vec::new();
        for now in from..=to {
            let standing = timer.standing(second(now));
            if seen.last().is_none_or(|(_, last)| *last != standing) {
                seen.push((now, standing));
            }
        }
        seen
    }

    #[test]
    fn a_lease_is_held_then_disconnected_then_over() {
        let rule = DisconnectRule::ContinueFor(Duration::from_secs(600));
        let mut timer = LeaseTimer::granted(second(100), LEASE, rule);
        let expected = [
            (100, LeaseStanding::Held),
            (115, LeaseStanding::Disconnected),
            (700, LeaseStanding::Over),
        ];
        assert_eq!(changes(&mut timer, 100, 800), expected);
        let mut timer = LeaseTimer::granted(second(100), LEASE, DisconnectRule::Stop);
        assert_eq!(
            changes(&mut timer, 100, 200),
            [(100, LeaseStanding::Held), (112, LeaseStanding::Over)]
        );
    }

    #[test]
    fn a_renewal_is_counted_from_when_it_was_sent() {
        let mut timer = LeaseTimer::granted(second(0), LEASE, DisconnectRule::Stop);
        assert_eq!(timer.standing(second(4)), LeaseStanding::Held);
        assert_eq!(timer.renewed(second(4), second(8), LEASE), None);
        assert_eq!(timer.over_at(), second(16));
        // An older answer that arrives later takes nothing back.
        assert_eq!(timer.renewed(second(3), second(9), LEASE), None);
        assert_eq!(timer.over_at(), second(16));
    }

    #[test]
    fn an_outage_is_reported_with_its_length_once_the_plane_answers() {
        let rule = DisconnectRule::ContinueFor(Duration::from_secs(600));
        let mut timer = LeaseTimer::granted(second(0), LEASE, rule);
        changes(&mut timer, 0, 100);
        assert_eq!(timer.renewed(second(100), second(101), LEASE), Some(Duration::from_secs(101)));
        assert_eq!(timer.standing(second(102)), LeaseStanding::Held);
        assert_eq!(timer.renewed(second(103), second(103), LEASE), None);
    }

    #[test]
    fn a_paused_runner_asks_its_plane_before_it_gives_up() {
        for rule in [DisconnectRule::Stop, DisconnectRule::ContinueFor(Duration::from_secs(600))] {
            let mut timer = LeaseTimer::granted(second(0), LEASE, rule);
            assert_eq!(timer.standing(second(3)), LeaseStanding::Held);
            let resumed = second(3603);
            assert_ne!(timer.standing(resumed), LeaseStanding::Over);
            assert_eq!(timer.outage(), None, "nobody was listening");
            timer.renewed(resumed, second(3604), LEASE);
            assert_eq!(timer.standing(second(3605)), LeaseStanding::Held);
            // Without an answer it is over soon.
            timer.standing(second(7000));
            assert_eq!(timer.standing(second(7004)), LeaseStanding::Disconnected);
            assert_eq!(timer.standing(second(7009)), LeaseStanding::Disconnected);
            assert_eq!(timer.standing(second(7010)), LeaseStanding::Over);
        }
    }
}
