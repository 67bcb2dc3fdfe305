//! The plane's side of all leases as a state machine: pure, with time as an argument.
//!
//! ```text
//!  granted ──► heard ──► silent ── lease + GRACE over, not started ──► Requeue
//!                ▲          │
//!                └─ renewed ┤
//!                           └──── lease + GRACE + disconnect over, started ──► Lost
//!  runner gone (any time), or its process ended and RETURN_TIME over: Requeue if not started,
//!  else Lost
//!  stop asked for and not confirmed for STOP_TIME: Lost
//! ```
//!
//! Time is the plane's own running time ([`AwakeTime`]): a plane that was suspended, stopped or
//! overloaded blames nobody for what it did not hear meanwhile. Dates decide nothing. A lease that
//! this plane did not grant itself, because it was started again, has its full time from when it
//! is first seen.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use warrant_protocol::port::LeaseKey;
use warrant_protocol::wire::DisconnectRule;
use warrant_protocol::{AwakeTime, Moment, RunState};

/// How much longer than its lease a silent runner is waited for: messages take their time. With a
/// sweep every second, a run that never started is queued again within 20 s.
pub const GRACE: Duration = Duration::from_secs(4);

/// How long a runner has to confirm that it stopped a run.
pub const STOP_TIME: Duration = Duration::from_secs(60);

/// How long a runner whose process ended has to come back and say what became of its runs.
pub const RETURN_TIME: Duration = Duration::from_secs(2);

/// After how long without a word a runner is shown as unreachable.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(19);

/// The leases of one plane, by when their runners were last heard.
#[derive(Debug, Clone)]
pub struct LeaseTable {
    awake: AwakeTime,
    leases: HashMap<LeaseKey, LeaseRecord>,
}

#[derive(Debug, Clone, Copy)]
struct LeaseRecord {
    heard: Duration,
    stop_asked: Option<Duration>,
    /// When its process was first seen to have ended.
    ended: Option<Duration>,
    /// Whether this plane heard of it itself.
    hearing: Hearing,
}

/// Where the plane knows a lease from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hearing {
    /// From the store: its runner has not been heard since this plane began.
    Stored,
    /// From its runner.
    Heard,
}

/// What was agreed with the runner when it took a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// How long a lease lasts without renewal.
    pub lease: Duration,
    /// What the runner does while this plane does not answer.
    pub disconnect: DisconnectRule,
}

/// What is known of a lease beside its time.
#[derive(Debug, Clone, Copy)]
pub struct LeaseFacts<'a> {
    /// Which lease.
    pub key: &'a LeaseKey,
    /// Where its run stands.
    pub state: RunState,
    /// What was agreed.
    pub terms: LeaseTerms,
    /// Whether the process that took it can still be there.
    pub holder: HolderStatus,
}

/// Whether the process that took a lease can still be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderStatus {
    /// As far as is known.
    Possible,
    /// It ended, on this machine. A later process of the same runner may bring what it left.
    Ended,
    /// It is known to be gone for good: revoked, or replaced by a later process of the same runner.
    Gone,
}

/// What is to be done about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// Nothing.
    Holds,
    /// The run never started: it goes back to the queue.
    Requeue(LossCause),
    /// The run was started: it is sealed as lost.
    Lost(LossCause),
}

/// Why a lease ended without its runner's consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// The runner was not heard for longer than was agreed.
    Silent,
    /// The process that took it is gone.
    HolderGone,
    /// It was asked to stop and did not confirm it in time.
    StopUnconfirmed,
}

impl LossCause {
    /// Returns the cause as the end of the sentence "the run is lost: …".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "its runner was not heard for longer than its lease and policy allow",
            Self::HolderGone => "the process that ran it is gone",
            Self::StopUnconfirmed => "its runner did not confirm that it stopped",
        }
    }
}

impl LeaseTable {
    /// Returns the table of a plane that starts now and knows of no lease yet.
    #[must_use]
    pub fn begin(now: Moment) -> Self {
        Self { awake: AwakeTime::begin(now), leases: HashMap::new() }
    }

    /// Notes that a runner took or renewed a lease, or wrote under it.
    pub fn heard(&mut self, now: Moment, key: &LeaseKey) {
        let heard = self.elapsed(now);
        match self.leases.get_mut(key) {
            Some(record) => (record.heard, record.hearing) = (heard, Hearing::Heard),
            None => {
                self.leases.insert(key.clone(), LeaseRecord::new(heard, Hearing::Heard));
            }
        }
    }

    /// Forgets a lease that ended.
    pub fn ended(&mut self, key: &LeaseKey) {
        self.leases.remove(key);
    }

    /// Forgets every lease that is not among `live`.
    pub fn keep_only(&mut self, live: &HashSet<LeaseKey>) {
        self.leases.retain(|key, _| live.contains(key));
    }

    /// Returns how much of a lease is left.
    pub fn time_left(&mut self, now: Moment, key: &LeaseKey, lease: Duration) -> Duration {
        let elapsed = self.elapsed(now);
        let heard = self.leases.get(key).map_or(elapsed, |record| record.heard);
        lease.saturating_sub(elapsed.saturating_sub(heard))
    }

    /// Decides about one lease.
    pub fn judge(&mut self, now: Moment, facts: LeaseFacts<'_>) -> LeaseVerdict {
        let elapsed = self.elapsed(now);
        let fresh = LeaseRecord::new(elapsed, Hearing::Stored);
        let record = self.leases.entry(facts.key.clone()).or_insert(fresh);
        if facts.state == RunState::Stopping {
            record.stop_asked.get_or_insert(elapsed);
        }
        let silent = elapsed.saturating_sub(record.heard);
        let deaf = record.stop_asked.map_or(Duration::ZERO, |at| elapsed.saturating_sub(at));
        let held = facts.terms.lease.saturating_add(GRACE);
        let is_gone = record.is_gone(elapsed, facts.holder, held);
        let started = match facts.terms.disconnect {
            DisconnectRule::Stop => held,
            DisconnectRule::ContinueFor(most) => held.saturating_add(most),
        };
        match facts.state {
            RunState::Leased if is_gone => LeaseVerdict::Requeue(LossCause::HolderGone),
            RunState::Leased if silent >= held => LeaseVerdict::Requeue(LossCause::Silent),
            RunState::Leased => LeaseVerdict::Holds,
            _ if is_gone => LeaseVerdict::Lost(LossCause::HolderGone),
            _ if silent >= started => LeaseVerdict::Lost(LossCause::Silent),
            _ if deaf >= STOP_TIME => LeaseVerdict::Lost(LossCause::StopUnconfirmed),
            _ => LeaseVerdict::Holds,
        }
    }

    /// Returns how long this plane has been running, pauses left out.
    pub fn elapsed(&mut self, now: Moment) -> Duration {
        self.awake.observe(now);
        self.awake.elapsed()
    }
}

impl LeaseRecord {
    const fn new(heard: Duration, hearing: Hearing) -> Self {
        Self { heard, stop_asked: None, ended: None, hearing }
    }

    /// Returns whether nobody is left who could end the run. A plane that just began waits for
    /// `held`, because a runner that was started again meanwhile has to find it first.
    fn is_gone(&mut self, elapsed: Duration, holder: HolderStatus, held: Duration) -> bool {
        match holder {
            HolderStatus::Gone => true,
            HolderStatus::Possible => {
                self.ended = None;
                false
            }
            HolderStatus::Ended => {
                let ended = *self.ended.get_or_insert(elapsed);
                let returning = match self.hearing {
                    Hearing::Heard => RETURN_TIME,
                    Hearing::Stored => held,
                };
                elapsed.saturating_sub(ended) >= returning
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: LeaseTerms = LeaseTerms {
        lease: Duration::from_secs(15),
        disconnect: DisconnectRule::ContinueFor(Duration::from_secs(600)),
    };

    fn second(number: u64) -> Moment {
        Moment::after_origin(Duration::from_secs(number))
    }

    fn key() -> LeaseKey {
        LeaseKey { run: warrant_protocol::RunId::from_random([7; 16]), epoch: 1 }
    }

    fn facts(key: &LeaseKey, state: RunState) -> LeaseFacts<'_> {
        LeaseFacts { key, state, terms: TERMS, holder: HolderStatus::Possible }
    }

    /// Sweeps every second and returns when the verdict was not that the lease holds.
    fn first_end(
        table: &mut LeaseTable,
        (from, to): (u64, u64),
        facts: LeaseFacts<'_>,
    ) -> Option<(u64, LeaseVerdict)> {
        (from..=to).find_map(|now| match table.judge(second(now), facts) {
            LeaseVerdict::Holds => None,
            verdict => Some((now, verdict)),
        })
    }

    #[test]
    fn a_silent_runner_loses_unstarted_runs_in_20_s_and_started_ones_after_the_disconnect_time() {
        let key = key();
        for (state, expected) in [
            (RunState::Leased, (19, LeaseVerdict::Requeue(LossCause::Silent))),
            (RunState::Running, (619, LeaseVerdict::Lost(LossCause::Silent))),
            (RunState::Stopping, (60, LeaseVerdict::Lost(LossCause::StopUnconfirmed))),
        ] {
            let mut table = LeaseTable::begin(second(0));
            table.heard(second(0), &key);
            let ended = first_end(&mut table, (0, 1000), facts(&key, state));
            assert_eq!(ended, Some(expected), "{state:?}");
        }
        let mut table = LeaseTable::begin(second(0));
        let terms = LeaseTerms { disconnect: DisconnectRule::Stop, ..TERMS };
        let stop = LeaseFacts { terms, ..facts(&key, RunState::Running) };
        let lost = LeaseVerdict::Lost(LossCause::Silent);
        assert_eq!(first_end(&mut table, (0, 100), stop), Some((19, lost)));
    }

    #[test]
    fn a_plane_that_was_away_gives_every_lease_its_full_time() {
        let key = key();
        let mut table = LeaseTable::begin(second(5000));
        let ended = first_end(&mut table, (5000, 5100), facts(&key, RunState::Leased));
        assert_eq!(ended, Some((5019, LeaseVerdict::Requeue(LossCause::Silent))));
    }

    #[test]
    fn a_suspended_plane_blames_nobody_for_its_pause() {
        let key = key();
        for state in [RunState::Leased, RunState::Running, RunState::Stopping] {
            let mut table = LeaseTable::begin(second(0));
            table.heard(second(0), &key);
            assert_eq!(first_end(&mut table, (0, 5), facts(&key, state)), None);
            assert_eq!(table.judge(second(3605), facts(&key, state)), LeaseVerdict::Holds);
            table.heard(second(3606), &key);
            assert_eq!(first_end(&mut table, (3606, 3620), facts(&key, state)), None, "{state:?}");
        }
    }

    #[test]
    fn a_holder_that_is_known_to_be_gone_loses_its_runs_at_once() {
        let key = key();
        let mut table = LeaseTable::begin(second(0));
        table.heard(second(0), &key);
        for (state, expected) in [
            (RunState::Leased, LeaseVerdict::Requeue(LossCause::HolderGone)),
            (RunState::Running, LeaseVerdict::Lost(LossCause::HolderGone)),
        ] {
            let gone = LeaseFacts { holder: HolderStatus::Gone, ..facts(&key, state) };
            assert_eq!(table.judge(second(1), gone), expected);
        }
    }

    #[test]
    fn a_process_that_ended_on_this_machine_loses_its_runs_once_it_had_time_to_return() {
        let key = key();
        for (state, expected) in [
            (RunState::Leased, LeaseVerdict::Requeue(LossCause::HolderGone)),
            (RunState::Running, LeaseVerdict::Lost(LossCause::HolderGone)),
        ] {
            let mut table = LeaseTable::begin(second(0));
            table.heard(second(0), &key);
            assert_eq!(first_end(&mut table, (0, 5), facts(&key, state)), None);
            let ended = LeaseFacts { holder: HolderStatus::Ended, ..facts(&key, state) };
            assert_eq!(first_end(&mut table, (6, 100), ended), Some((8, expected)), "{state:?}");
            // A plane that just began has not been found again by anybody yet.
            let mut table = LeaseTable::begin(second(0));
            assert_eq!(first_end(&mut table, (0, 100), ended), Some((19, expected)), "{state:?}");
        }
    }

    #[test]
    fn the_time_left_is_what_is_left_when_the_answer_is_written() {
        let key = key();
        let mut table = LeaseTable::begin(second(0));
        table.heard(second(10), &key);
        assert_eq!(table.time_left(second(10), &key, TERMS.lease), Duration::from_secs(15));
        assert_eq!(table.time_left(second(13), &key, TERMS.lease), Duration::from_secs(12));
    }
}
