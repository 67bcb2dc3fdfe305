//! Grants: decisions that wait for their execution.
//!
//! A grant is good for one execution of one line in one sandbox, within a minute. It lives in
//! memory only, so a restart takes it back. So do questions that wait for people: whose session
//! they came from is known as long as its sandbox lives.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use warrant_protocol::request::ActorRef;
use warrant_protocol::{Digest, RunId};

/// How long a grant may wait for its execution.
const GRANT_LIFE: Duration = Duration::from_secs(60);
/// More grants than this do not wait at once.
const MOST_GRANTS: usize = 200_000;
/// More questions than this are not remembered at once.
const MOST_QUESTIONS: usize = 10_000;

/// What a grant is for: a sandbox, and the digest of the line.
///
/// SECURITY: lines are as long as clients like, and grants are many; what waits is small.
pub(super) type Key = (String, Digest);

/// Returns what a grant for a line in a sandbox is kept under.
pub(super) fn key(sandbox: &str, line: &str) -> Key {
    (sandbox.to_owned(), Digest::of(line.as_bytes()))
}

/// A decision that waits for its execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) decision: RunId,
    pub(super) is_approved: bool,
}

/// Grants by sandbox and line, oldest first.
#[derive(Debug, Default)]
pub(super) struct Grants {
    by_line: HashMap<Key, VecDeque<(Instant, Grant)>>,
    waiting: usize,
}

impl Grants {
    /// Keeps a grant; false when too many wait.
    pub(super) fn keep(&mut self, key: Key, grant: Grant, now: Instant) -> bool {
        if self.waiting >= MOST_GRANTS {
            self.tidy(now);
        }
        if self.waiting >= MOST_GRANTS {
            return false;
        }
        self.by_line.entry(key).or_default().push_back((now + GRANT_LIFE, grant));
        self.waiting += 1;
        true
    }

    /// Uses a grant up; nothing when there is none that is still good.
    pub(super) fn redeem(&mut self, key: &Key, now: Instant) -> Option<Grant> {
        let waiting = self.by_line.get_mut(key)?;
        let mut found = None;
        // The oldest come first, so that whatever is behind a good one is good, too.
        while let Some((until, grant)) = waiting.pop_front() {
            self.waiting -= 1;
            if until > now {
                found = Some(grant);
                break;
            }
        }
        if waiting.is_empty() {
            self.by_line.remove(key);
        }
        found
    }

    /// Forgets the grants of a sandbox that ends, and what waited too long.
    pub(super) fn forget(&mut self, sandbox: &str, now: Instant) {
        self.by_line.retain(|(of, _), _| of != sandbox);
        self.tidy(now);
    }

    fn tidy(&mut self, now: Instant) {
        self.by_line.retain(|_, waiting| {
            waiting.retain(|(until, _)| *until > now);
            !waiting.is_empty()
        });
        self.waiting = self.by_line.values().map(VecDeque::len).sum();
    }
}

/// A command about which people are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) session: String,
    pub(super) owner: ActorRef,
    pub(super) command: Digest,
}

/// What people are asked about, by the run that waits.
#[derive(Debug, Default)]
pub(super) struct Questions {
    by_run: HashMap<RunId, Asked>,
}

impl Questions {
    /// Remembers a question, unless there are too many.
    pub(super) fn keep(&mut self, run: RunId, asked: Asked) {
        if self.by_run.len() < MOST_QUESTIONS {
            self.by_run.insert(run, asked);
        }
    }

    /// Returns what was asked.
    pub(super) fn of(&self, run: &RunId) -> Option<Asked> {
        self.by_run.get(run).cloned()
    }

    /// Forgets the questions of a sandbox that ends.
    pub(super) fn forget(&mut self, sandbox: &str) {
        self.by_run.retain(|_, asked| asked.session != sandbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(number: u64) -> Grant {
        let decision = format!("run_{number:026}").parse().unwrap();
        Grant { decision, is_approved: false }
    }

    #[test]
    fn a_grant_counts_once_and_for_its_line_and_sandbox() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        assert!(grants.keep(key("s", "echo a b"), grant(1), now));
        assert!(grants.keep(key("s", "echo a b"), grant(2), now));
        assert_eq!(grants.redeem(&key("t", "echo a b"), now), None);
        assert_eq!(grants.redeem(&key("s", "echo a  b"), now), None);
        assert_eq!(grants.redeem(&key("s", "echo a b"), now), Some(grant(1)));
        assert_eq!(grants.redeem(&key("s", "echo a b"), now), Some(grant(2)));
        assert_eq!(grants.redeem(&key("s", "echo a b"), now), None);
    }

    #[test]
    fn what_was_used_up_or_waited_too_long_takes_no_memory() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        for number in 0..100 {
            let line = key("s", &format!("echo {number}"));
            assert!(grants.keep(line.clone(), grant(number), now));
            assert!(grants.redeem(&line, now).is_some());
        }
        assert!(grants.by_line.is_empty());
        let line = key("s", "echo");
        assert!(grants.keep(line.clone(), grant(1), now));
        assert_eq!(grants.redeem(&line, now + GRANT_LIFE), None);
        assert_eq!((grants.waiting, grants.by_line.len()), (0, 0));
        assert!(grants.keep(line.clone(), grant(2), now));
        grants.forget("s", now);
        assert_eq!((grants.redeem(&line, now), grants.waiting), (None, 0));
    }
}
