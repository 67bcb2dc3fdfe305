//! Grants: decisions that wait for their execution; and questions that wait for people.
//!
//! A grant is good for one execution in one sandbox, under one line and with variables of those
//! names, within a minute, and in one directory when the intent named it. What runs is the argv
//! that was judged; the line of the execution only has to match. Grants live in memory only, so a
//! restart takes them back. So do questions: whose session they came from is known as long as its
//! sandbox lives.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use warrant_protocol::request::ActorRef;
use warrant_protocol::{Digest, RunId};

/// How long a grant may wait for its execution.
const GRANT_LIFE: Duration = Duration::from_secs(60);
/// More grants than this do not wait at once.
const MOST_GRANTS: usize = 200_000;
/// The words of all grants that wait hold no more bytes than this.
const MOST_GRANT_BYTES: usize = 64 * 1024 * 1024;
/// More questions than this are not remembered at once.
const MOST_QUESTIONS: usize = 10_000;

/// What a grant is for: a sandbox, and the digest of the line and the names of its variables.
pub(super) type Key = (String, Digest);

/// Returns what a grant for a line in a sandbox is kept under.
pub(super) fn key(sandbox: &str, line: &str, variables: &BTreeSet<String>) -> Key {
    // Neither a line nor a name holds a NUL byte, so nothing is read in two ways.
    let names = variables.iter().flat_map(|name| ["\0", name.as_str()]);
    let bound: String = [line].into_iter().chain(names).collect();
    (sandbox.to_owned(), Digest::of(bound.as_bytes()))
}

/// A decision that waits for its execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) decision: RunId,
    /// What was judged, and what runs.
    pub(super) argv: Vec<String>,
    pub(super) is_approved: bool,
    /// The one directory it is good in; nothing when the intent named none, and policy judges the
    /// directory when it is executed.
    pub(super) cwd: Option<String>,
}

impl Grant {
    /// Returns how many bytes its words hold.
    fn bytes(&self) -> usize {
        self.argv.iter().map(String::len).sum()
    }

    fn is_good_in(&self, cwd: &str) -> bool {
        self.cwd.as_deref().is_none_or(|bound| bound == cwd)
    }
}

/// What there was of a grant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redeemed {
    /// It is used up.
    Used(Grant),
    /// There is one of this argv that people gave for another directory; it stays.
    ApprovedElsewhere(Vec<String>),
    /// None is good.
    Nothing,
}

/// Grants by sandbox and line, oldest first.
#[derive(Debug, Default)]
pub(super) struct Grants {
    by_line: HashMap<Key, VecDeque<(Instant, Grant)>>,
    waiting: usize,
    /// How many bytes the words of all of them hold.
    bytes: usize,
}

impl Grants {
    /// Returns whether another one may wait whose words hold so many bytes.
    ///
    /// SECURITY: commands are as long as clients like, and grants are many.
    pub(super) fn has_room(&mut self, bytes: usize, now: Instant) -> bool {
        let is_full = |grants: &Self| {
            grants.waiting >= MOST_GRANTS || grants.bytes.saturating_add(bytes) > MOST_GRANT_BYTES
        };
        if is_full(self) {
            self.tidy(now);
        }
        !is_full(self)
    }

    /// Keeps a grant; false when too many wait.
    pub(super) fn keep(&mut self, key: Key, grant: Grant, now: Instant) -> bool {
        let bytes = grant.bytes();
        if !self.has_room(bytes, now) {
            return false;
        }
        self.bytes += bytes;
        self.by_line.entry(key).or_default().push_back((now + GRANT_LIFE, grant));
        self.waiting += 1;
        true
    }

    /// Uses a grant up that is good in this directory.
    pub(super) fn redeem(&mut self, key: &Key, cwd: &str, now: Instant) -> Redeemed {
        let Some(waiting) = self.by_line.get_mut(key) else { return Redeemed::Nothing };
        // The oldest come first, so that whatever is behind a good one is good, too.
        while let Some((_, late)) = waiting.pop_front_if(|(until, _)| *until <= now) {
            self.waiting -= 1;
            self.bytes -= late.bytes();
        }
        let good = waiting.iter().position(|(_, grant)| grant.is_good_in(cwd));
        let found = good.and_then(|at| waiting.remove(at));
        let elsewhere = waiting.iter().find(|(_, grant)| grant.is_approved);
        let elsewhere = elsewhere.map(|(_, grant)| grant.argv.clone());
        if waiting.is_empty() {
            self.by_line.remove(key);
        }
        match found {
            Some((_, grant)) => {
                self.waiting -= 1;
                self.bytes -= grant.bytes();
                Redeemed::Used(grant)
            }
            None => elsewhere.map_or(Redeemed::Nothing, Redeemed::ApprovedElsewhere),
        }
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
        self.bytes = self.by_line.values().flatten().map(|(_, grant)| grant.bytes()).sum();
    }
}

/// A command about which people are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) owner: ActorRef,
    pub(super) command: Digest,
    /// Where it is to run, when that was said.
    cwd: Option<String>,
    /// Whose word is a record already.
    told: BTreeSet<String>,
}

impl Asked {
    pub(super) const fn new(owner: ActorRef, command: Digest, cwd: Option<String>) -> Self {
        Self { owner, command, cwd, told: BTreeSet::new() }
    }
}

/// What people are asked about, by session and by the run that waits.
#[derive(Debug, Default)]
pub(super) struct Questions {
    by_session: HashMap<String, BTreeMap<RunId, Asked>>,
    waiting: usize,
}

impl Questions {
    /// Remembers a question, unless there are too many in sandboxes that live.
    pub(super) fn keep(
        &mut self,
        (session, run): (String, RunId),
        asked: Asked,
        is_alive: impl Fn(&str) -> bool,
    ) {
        if self.waiting >= MOST_QUESTIONS {
            self.by_session.retain(|session, _| is_alive(session));
            self.waiting = self.by_session.values().map(BTreeMap::len).sum();
        }
        if self.waiting >= MOST_QUESTIONS {
            return;
        }
        let runs = self.by_session.entry(session).or_default();
        // The same question again is that one; whose word was told stays known.
        if runs.contains_key(&run) {
            return;
        }
        runs.insert(run, asked);
        self.waiting += 1;
    }

    /// Returns the directories in which people are asked about a command.
    pub(super) fn places(&self, session: &str, command: &Digest) -> Vec<String> {
        let runs = self.by_session.get(session).into_iter().flat_map(BTreeMap::values);
        let named = runs.filter(|asked| asked.command == *command);
        let places: BTreeSet<String> = named.filter_map(|asked| asked.cwd.clone()).collect();
        places.into_iter().collect()
    }

    /// Returns what was asked, and in which session.
    pub(super) fn of(&self, run: &RunId) -> Option<(String, Asked)> {
        let mut sessions = self.by_session.iter();
        sessions.find_map(|(session, runs)| Some((session.clone(), runs.get(run)?.clone())))
    }

    /// Returns the runs that an owner asked about, in one session or in all.
    pub(super) fn runs(&self, owner: &ActorRef, session: Option<&str>) -> Vec<RunId> {
        let is_it = |name: &&String| session.is_none_or(|session| session == name.as_str());
        let sessions = self.by_session.iter().filter(|(name, _)| is_it(name));
        let runs = sessions.flat_map(|(_, runs)| runs);
        runs.filter(|(_, asked)| asked.owner == *owner).map(|(run, _)| run.clone()).collect()
    }

    /// Returns whether somebody's word is yet to be told; from now on it counts as told.
    pub(super) fn is_new(&mut self, run: &RunId, by: &str) -> bool {
        let asked = self.by_session.values_mut().find_map(|runs| runs.get_mut(run));
        asked.is_some_and(|asked| asked.told.insert(by.to_owned()))
    }

    /// Takes back that somebody's word was told.
    pub(super) fn untell(&mut self, run: &RunId, by: &str) {
        if let Some(asked) = self.by_session.values_mut().find_map(|runs| runs.get_mut(run)) {
            asked.told.remove(by);
        }
    }

    /// Forgets the questions of a sandbox that ends.
    pub(super) fn forget(&mut self, sandbox: &str) {
        let gone = self.by_session.remove(sandbox).map_or(0, |runs| runs.len());
        self.waiting = self.waiting.saturating_sub(gone);
    }
}

#[cfg(test)]
mod tests {
    use warrant_protocol::request::ActorKind;

    use super::*;

    fn run(number: u64) -> RunId {
        format!("run_{number:026}").parse().unwrap()
    }

    fn grant(number: u64) -> Grant {
        Grant { decision: run(number), argv: Vec::new(), is_approved: false, cwd: None }
    }

    fn plain(sandbox: &str, line: &str) -> Key {
        key(sandbox, line, &BTreeSet::new())
    }

    #[test]
    fn a_grant_counts_once_and_for_its_line_and_sandbox() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        let mut redeem = |key: Key| grants.redeem(&key, "/", now);
        assert_eq!(redeem(plain("s", "echo a b")), Redeemed::Nothing);
        assert!(grants.keep(plain("s", "echo a b"), grant(1), now));
        assert!(grants.keep(plain("s", "echo a b"), grant(2), now));
        let mut redeem = |key: Key| grants.redeem(&key, "/", now);
        assert_eq!(redeem(plain("t", "echo a b")), Redeemed::Nothing);
        assert_eq!(redeem(plain("s", "echo a  b")), Redeemed::Nothing);
        assert_eq!(redeem(plain("s", "echo a b")), Redeemed::Used(grant(1)));
        assert_eq!(redeem(plain("s", "echo a b")), Redeemed::Used(grant(2)));
        assert_eq!(redeem(plain("s", "echo a b")), Redeemed::Nothing);
    }

    #[test]
    fn a_grant_counts_for_the_variables_it_was_given_for() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let decided = key("s", "make", &names(&["A", "B"]));
        assert_eq!(decided, key("s", "make", &names(&["B", "A"])));
        for others in [&["A"][..], &[], &["A", "B", "C"], &["AB"]] {
            assert_ne!(decided, key("s", "make", &names(others)), "{others:?}");
        }
    }

    #[test]
    fn what_people_approved_counts_in_one_directory() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        let line = plain("s", "make");
        let bound = Grant { is_approved: true, cwd: Some("/home/x".to_owned()), ..grant(1) };
        assert!(grants.keep(line.clone(), bound.clone(), now));
        let elsewhere = Redeemed::ApprovedElsewhere(Vec::new());
        assert_eq!(grants.redeem(&line, "/tmp", now), elsewhere);
        assert_eq!(grants.redeem(&line, "/home/x", now), Redeemed::Used(bound.clone()));
        assert!(grants.keep(line.clone(), Grant { is_approved: false, ..bound }, now));
        assert_eq!(grants.redeem(&line, "/tmp", now), Redeemed::Nothing);
        assert!(grants.keep(line.clone(), grant(2), now));
        assert_eq!(grants.redeem(&line, "/tmp", now), Redeemed::Used(grant(2)));
        assert_eq!(grants.waiting, 1);
    }

    #[test]
    fn what_was_used_up_or_waited_too_long_takes_no_memory() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        for number in 0..100 {
            let line = plain("s", &format!("echo {number}"));
            assert!(grants.keep(line.clone(), grant(number), now));
            assert_eq!(grants.redeem(&line, "/", now), Redeemed::Used(grant(number)));
        }
        assert!(grants.by_line.is_empty());
        let line = plain("s", "echo");
        assert!(grants.keep(line.clone(), grant(1), now));
        assert_eq!(grants.redeem(&line, "/", now + GRANT_LIFE), Redeemed::Nothing);
        assert_eq!((grants.waiting, grants.by_line.len()), (0, 0));
        assert!(grants.keep(line.clone(), grant(2), now));
        grants.forget("s", now);
        assert_eq!((grants.redeem(&line, "/", now), grants.waiting), (Redeemed::Nothing, 0));
    }

    #[test]
    fn long_commands_cannot_fill_the_memory_with_their_grants() {
        let (mut grants, now) = (Grants::default(), Instant::now());
        let long = |number| Grant { argv: vec!["x".repeat(MOST_GRANT_BYTES / 4)], ..grant(number) };
        for number in 0..4 {
            assert!(grants.keep(plain("s", &format!("echo {number}")), long(number), now));
        }
        assert!(!grants.keep(plain("s", "echo"), long(4), now));
        let used = grants.redeem(&plain("s", "echo 0"), "/", now);
        assert!(matches!(used, Redeemed::Used(_)));
        assert!(grants.keep(plain("s", "echo"), long(4), now));
        assert!(!grants.has_room(1, now));
        assert!(grants.has_room(1, now + GRANT_LIFE), "what waited too long takes no memory");
        assert_eq!((grants.waiting, grants.bytes), (0, 0));
    }

    #[test]
    fn questions_of_sandboxes_that_are_gone_make_room_for_new_ones() {
        let owner = ActorRef { kind: ActorKind::Service, id: "one".to_owned() };
        let asked = || Asked::new(owner.clone(), Digest::of(b"x"), None);
        let mut questions = Questions::default();
        for number in 0..MOST_QUESTIONS as u64 {
            questions.keep(("gone".to_owned(), run(number)), asked(), |_| true);
        }
        let next = run(MOST_QUESTIONS as u64);
        questions.keep(("here".to_owned(), next.clone()), asked(), |_| true);
        assert_eq!(questions.of(&next), None);
        questions.keep(("here".to_owned(), next.clone()), asked(), |session| session != "gone");
        assert!(questions.of(&next).is_some());
        assert_eq!(questions.waiting, 1);
        assert!(questions.is_new(&next, "ann") && !questions.is_new(&next, "ann"));
    }
}
