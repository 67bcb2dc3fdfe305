//! Counts decisions and bytes, so that a flood of connections is not a flood of reports.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::decision::{Decision, Totals, Why};
use crate::model::ModelCall;
use crate::options::Options;

/// What a reporter is: called on the proxy's own thread, it must not block for long.
pub(crate) type Reporter = Arc<dyn Fn(Decision) + Send + Sync>;

/// The host under which decisions are counted once there are too many kinds.
const OTHERS: &str = "*";

/// How many different calls to models are told of one proxy.
const MOST_MODELS: usize = 64;

/// All decisions of one proxy.
pub(crate) struct Ledger {
    reporter: Reporter,
    kinds: Mutex<Kinds>,
    bounds: LedgerBounds,
    models: Mutex<HashSet<(String, ModelCall)>>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// How many kinds of decisions are reported apart, allowed and blocked ones each by themselves: a
/// flood of blocked names takes no room from an allowed destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LedgerBounds {
    pub(crate) allowed: usize,
    pub(crate) blocked: usize,
}

impl LedgerBounds {
    /// Returns the bounds of one proxy.
    pub(crate) const fn of(options: &Options) -> Self {
        Self { allowed: options.max_decisions, blocked: options.max_blocked }
    }
}

/// What was counted so far.
#[derive(Default)]
struct Kinds {
    counts: HashMap<Kind, Arc<Count>>,
    allowed: usize,
    blocked: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Kind {
    host: String,
    port: u16,
    why: Why,
    asked_address: Option<SocketAddr>,
}

#[derive(Default)]
struct Count {
    repeats: AtomicU64,
    first_repeat: Mutex<Option<SystemTime>>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// What a decision is about.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) asked_address: Option<SocketAddr>,
}

/// Where the bytes of one allowed connection are counted.
#[derive(Clone)]
pub(crate) struct Tally {
    ledger: Arc<Ledger>,
    count: Arc<Count>,
}

impl Ledger {
    pub(crate) fn new(reporter: Reporter, bounds: LedgerBounds) -> Arc<Self> {
        Arc::new(Self {
            reporter,
            kinds: Mutex::default(),
            bounds,
            models: Mutex::default(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        })
    }

    /// Records a decision, and returns where its bytes are counted.
    ///
    /// Once there are too many kinds, a refusal is counted with the others; an allowed destination
    /// cannot be recorded any more, and nothing is returned: the caller must refuse it. The refusal
    /// is recorded under the destination's own name.
    pub(crate) fn record(self: &Arc<Self>, subject: &Subject, why: Why) -> Option<Tally> {
        let Subject { host, port, asked_address } = subject.clone();
        let kind = Kind { host, port, why, asked_address };
        let count = match self.note(kind.clone()) {
            Ok(count) => count,
            Err(Full) if why.is_allowed() => {
                let refused = Kind { why: Why::TooMany, ..kind };
                drop(self.note(refused).or_else(|Full| self.note(others(0))));
                return None;
            }
            Err(Full) => self.note(others(0)).ok()?,
        };
        Some(Tally { ledger: Arc::clone(self), count })
    }

    /// Tells of a call to a model, once for each host and model.
    pub(crate) fn tell_model(&self, subject: &Subject, call: ModelCall) {
        let mut models = lock(&self.models);
        let is_new =
            models.len() < MOST_MODELS && models.insert((subject.host.clone(), call.clone()));
        drop(models);
        if is_new {
            let Subject { host, port, asked_address } = subject.clone();
            let kind = Kind { host, port, why: Why::Allowed, asked_address };
            let decision = kind.decision(SystemTime::now());
            (self.reporter)(Decision { count: 0, model: Some(call), ..decision });
        }
    }

    /// Reports what was counted since the first report of each kind.
    pub(crate) fn flush(&self) {
        let mut kinds: Vec<(Kind, Arc<Count>)> =
            std::mem::take(&mut *self.kinds()).counts.into_iter().collect();
        kinds.sort_by(|(one, _), (two, _)| one.cmp(two));
        for (kind, count) in kinds {
            let repeats = count.repeats.load(Ordering::Relaxed);
            let bytes_in = count.bytes_in.load(Ordering::Relaxed);
            let bytes_out = count.bytes_out.load(Ordering::Relaxed);
            if repeats == 0 && bytes_in == 0 && bytes_out == 0 {
                continue;
            }
            let at = *lock(&count.first_repeat);
            let at = at.unwrap_or_else(SystemTime::now);
            let decision = kind.decision(at);
            (self.reporter)(Decision { count: repeats, bytes_in, bytes_out, ..decision });
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }

    fn note(&self, kind: Kind) -> Result<Arc<Count>, Full> {
        let mut kinds = self.kinds();
        if let Some(count) = kinds.counts.get(&kind) {
            if count.repeats.fetch_add(1, Ordering::Relaxed) == 0 {
                *lock(&count.first_repeat) = Some(SystemTime::now());
            }
            return Ok(Arc::clone(count));
        }
        let (used, most) = match kind.why.is_allowed() {
            true => (&mut kinds.allowed, self.bounds.allowed),
            false => (&mut kinds.blocked, self.bounds.blocked),
        };
        if *used >= most && kind.host != OTHERS {
            return Err(Full);
        }
        *used += 1;
        let count = Arc::new(Count::default());
        kinds.counts.insert(kind.clone(), Arc::clone(&count));
        drop(kinds);
        (self.reporter)(kind.decision(SystemTime::now()));
        Ok(count)
    }

    fn kinds(&self) -> MutexGuard<'_, Kinds> {
        lock(&self.kinds)
    }
}

impl Tally {
    pub(crate) fn add_in(&self, bytes: u64) {
        self.count.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        self.ledger.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_out(&self, bytes: u64) {
        self.count.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        self.ledger.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Kind {
    fn decision(self, at: SystemTime) -> Decision {
        Decision {
            host: self.host,
            port: self.port,
            allowed: self.why.is_allowed(),
            why: self.why,
            asked_address: self.asked_address,
            count: 1,
            bytes_in: 0,
            bytes_out: 0,
            at,
            model: None,
        }
    }
}

struct Full;

fn others(port: u16) -> Kind {
    Kind { host: OTHERS.to_owned(), port, why: Why::TooMany, asked_address: None }
}

/// A panic while holding one of these locks leaves counters that are still true.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(max_kinds: usize) -> (Arc<Ledger>, Arc<Mutex<Vec<Decision>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let bounds = LedgerBounds { allowed: max_kinds, blocked: max_kinds };
        (Ledger::new(Arc::new(move |d| sink.lock().unwrap().push(d)), bounds), seen)
    }

    fn subject(host: &str) -> Subject {
        Subject { host: host.to_owned(), port: 443, asked_address: None }
    }

    #[test]
    fn repeats_are_counted_not_flooded() {
        let (ledger, seen) = ledger(10);
        for _ in 0..1000 {
            ledger.record(&subject("a"), Why::Allowed).unwrap().add_in(2);
        }
        ledger.record(&subject("b"), Why::NotListed).unwrap();
        ledger.flush();
        let seen = seen.lock().unwrap();
        let told: Vec<_> = seen.iter().map(|d| (d.host.as_str(), d.count, d.bytes_in)).collect();
        assert_eq!(told, [("a", 1, 0), ("b", 1, 0), ("a", 999, 2000)]);
        assert_eq!(ledger.totals(), Totals { bytes_in: 2000, bytes_out: 0 });
    }

    #[test]
    fn a_flood_of_blocked_names_is_counted_and_hides_no_allowed_destination() {
        let (ledger, seen) = ledger(3);
        for i in 0..100 {
            ledger.record(&subject(&format!("h{i}")), Why::NotListed).unwrap();
        }
        for i in 0..3 {
            ledger.record(&subject(&format!("upload{i}")), Why::Allowed).unwrap().add_out(7);
        }
        assert!(ledger.record(&subject("upload3"), Why::Allowed).is_none(), "it must be refused");
        ledger.flush();
        let seen = seen.lock().unwrap();
        let allowed = seen.iter().filter(|d| d.allowed);
        let sent: u64 = allowed.clone().map(|d| d.bytes_out).sum();
        let mut hosts: Vec<&str> = allowed.map(|d| d.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        assert_eq!((hosts, sent), (vec!["upload0", "upload1", "upload2"], 21));
        let blocked = seen.iter().filter(|d| !d.allowed);
        assert_eq!(blocked.map(|d| d.count).sum::<u64>(), 101, "every attempt is counted");
    }

    #[test]
    fn an_allowed_destination_that_cannot_be_recorded_is_refused_under_its_own_name() {
        let (ledger, seen) = ledger(2);
        for host in ["a", "b"] {
            ledger.record(&subject(host), Why::Allowed).unwrap();
        }
        assert!(ledger.record(&subject("c"), Why::Allowed).is_none());
        let seen = seen.lock().unwrap();
        let last = seen.last().unwrap();
        assert_eq!((last.host.as_str(), last.allowed, last.why), ("c", false, Why::TooMany));
    }
}
