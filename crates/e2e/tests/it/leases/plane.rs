//! The real plane over a real store, called one request at a time, killed between any two writes.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use warrant_plane::home::Home;
use warrant_plane::lease_table::{HolderStatus, LeaseTerms};
use warrant_plane::leases::{Holder, StartCall};
use warrant_plane::notary::{ApprovalRequirement, Judgment};
use warrant_plane::reception::{Reception, Submission};
use warrant_plane::store::{Abilities, LiveRun, StoreError};
use warrant_plane::{ApproveError, Approved, EmbeddedPlane};
use warrant_protocol::port::{LeaseKey, PlaneError};
use warrant_protocol::request::{ActorKind, ActorRef, SecretClaim};
use warrant_protocol::wire::{DisconnectRule, LEASE_MS};
use warrant_protocol::{
    ChainedEvent, Decision, DecisionSummary, Digest, Event, PublicKey, RunId, RunRequest, RunState,
    RunnerId, TimeSource as _,
};

use super::time::ProcessClocks;
use super::wire::{ApprovalNeed, Mistake, PlaneReply, PlaneRequest, SecretUse, SimulatedRun};

/// What the plane agrees with every runner.
pub(crate) const TERMS: LeaseTerms =
    LeaseTerms { lease: Duration::from_millis(LEASE_MS), disconnect: DisconnectRule::DEFAULT };

/// How old a renewal may be by the wall clock where that is the mistake: more than lease, grace
/// and disconnection together, so that nothing but a jump of the clock reaches it.
const WALL_CLOCK_LIMIT_MS: u64 = 1_000_000;

/// The writes before which the plane can be killed.
const WRITES: [(&str, &str); 8] = [
    ("runs", "INSERT"),
    ("runs", "UPDATE"),
    ("approvals", "INSERT"),
    ("approvals", "UPDATE"),
    ("papers", "INSERT"),
    ("papers", "UPDATE"),
    ("events", "INSERT"),
    ("receipts", "INSERT"),
];

/// A plane that can be killed and started again.
#[derive(Debug)]
pub(crate) struct SimulatedPlane {
    home: PathBuf,
    clocks: Arc<ProcessClocks>,
    running: Option<EmbeddedPlane>,
    /// Looks at the store from outside, and cuts its writes.
    outside: Connection,
    is_armed: bool,
    runs: RunsSeen,
    mistake: Mistake,
    /// The newest process of each runner.
    generations: BTreeMap<String, u64>,
    /// When each lease was last renewed, by the wall clock: only a mistake looks at it.
    wall_renewals: BTreeMap<String, u64>,
}

/// The runs of the store as they were at one of its versions: most events change nothing.
#[derive(Debug, Default)]
struct RunsSeen {
    version: Option<i64>,
    runs: Rc<Vec<StoredRun>>,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Handled {
    Answered(PlaneReply),
    /// The process was killed while it was at it.
    Died,
}

/// A row of the store, as it is seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredRun {
    pub(crate) run: RunId,
    pub(crate) state: RunState,
    pub(crate) receipt: Option<Digest>,
}

/// A runner as the plane knows it.
#[derive(Debug, Clone)]
pub(crate) struct KnownRunner {
    pub(crate) id: RunnerId,
    pub(crate) key: PublicKey,
}

pub(crate) fn person(name: &str) -> ActorRef {
    ActorRef { kind: ActorKind::Human, id: name.into() }
}

fn policy_hash() -> Digest {
    Digest::of(b"policy")
}

impl SimulatedPlane {
    pub(crate) fn create(dir: &Path, clocks: Arc<ProcessClocks>, mistake: Mistake) -> Self {
        let home = dir.join("home");
        let plane = open(&home, &clocks);
        let name = "TOKEN".parse().unwrap();
        plane.secrets().set(&name, "value-of-the-token", clocks.date()).unwrap();
        let outside = Connection::open(plane.home().data().join("plane.db")).unwrap();
        outside.pragma_update(None, "synchronous", "OFF").unwrap();
        outside.busy_timeout(Duration::from_secs(10)).unwrap();
        let runs = RunsSeen::default();
        let running = Some(plane);
        Self {
            home,
            clocks,
            running,
            outside,
            is_armed: false,
            runs,
            mistake,
            generations: BTreeMap::new(),
            wall_renewals: BTreeMap::new(),
        }
    }

    /// Enrolls a runner.
    pub(crate) fn enroll(&self, runner: &KnownRunner) {
        let added = self.outside.execute(
            "INSERT INTO runners (id, pool, public_key_pem, token_hash, enrolled_at)
             VALUES (?, 'default', ?, ?, ?)",
            rusqlite::params![
                runner.id.to_string(),
                runner.key.pem(),
                Digest::of(runner.id.to_string().as_bytes()).as_bytes(),
                self.clocks.date().unix_ms(),
            ],
        );
        assert_eq!(added.unwrap(), 1);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn clocks(&self) -> &ProcessClocks {
        &self.clocks
    }

    pub(crate) fn kill(&mut self) {
        self.disarm();
        self.running = None;
        self.generations.clear();
    }

    pub(crate) fn start(&mut self) {
        if self.running.is_none() {
            self.running = Some(open(&self.home, &self.clocks));
        }
    }

    /// Has the plane killed at the write after `writes` more.
    pub(crate) fn kill_after(&mut self, writes: u64) {
        self.disarm();
        self.is_armed = true;
        let mut sql = format!(
            "CREATE TABLE simulated_kill (writes_left INTEGER NOT NULL);
             INSERT INTO simulated_kill VALUES ({writes});"
        );
        for (table, operation) in WRITES {
            write!(
                sql,
                "CREATE TRIGGER simulated_kill_{table}_{operation} BEFORE {operation} ON {table}
                 BEGIN
                   UPDATE simulated_kill SET writes_left = writes_left - 1;
                   SELECT RAISE(ABORT, 'killed') FROM simulated_kill WHERE writes_left < 0;
                 END;"
            )
            .unwrap();
        }
        self.outside.execute_batch(&sql).unwrap();
    }

    fn disarm(&mut self) {
        if !std::mem::take(&mut self.is_armed) {
            return;
        }
        let mut sql = "DROP TABLE simulated_kill;".to_owned();
        for (table, operation) in WRITES {
            write!(sql, "DROP TRIGGER simulated_kill_{table}_{operation};").unwrap();
        }
        self.outside.execute_batch(&sql).unwrap();
    }

    fn plane(&self) -> &EmbeddedPlane {
        self.running.as_ref().unwrap()
    }

    /// Returns every run, as whoever opens the store would find it.
    pub(crate) fn rows(&mut self) -> Rc<Vec<StoredRun>> {
        let version = self.outside.pragma_query_value(None, "data_version", |row| row.get(0));
        let version = Some(version.unwrap());
        if self.runs.version != version {
            self.runs = RunsSeen { version, runs: Rc::new(self.read_rows()) };
        }
        Rc::clone(&self.runs.runs)
    }

    fn read_rows(&self) -> Vec<StoredRun> {
        let mut statement = self
            .outside
            .prepare_cached(
                "SELECT id, state, receipts.hash FROM runs
                 LEFT JOIN receipts ON receipts.run = runs.seq ORDER BY runs.seq",
            )
            .unwrap();
        let rows = statement.query_map([], |row| {
            let (run, state): (String, String) = (row.get(0)?, row.get(1)?);
            Ok(StoredRun {
                run: run.parse().unwrap(),
                state: RunState::parse(&state).unwrap(),
                receipt: row.get::<_, Option<[u8; 32]>>(2)?.map(Digest::from_bytes),
            })
        });
        rows.unwrap().collect::<Result<_, _>>().unwrap()
    }

    /// Returns a run with its whole evidence.
    pub(crate) fn bundle(&self, run: &RunId) -> String {
        self.plane().bundle(run).unwrap().to_string()
    }

    /// Returns the chain of a run.
    pub(crate) fn events(&self, run: &RunId) -> Vec<ChainedEvent> {
        let rows = self.plane().store().events(run).unwrap();
        rows.iter().map(|row| serde_json::from_str(&row.body).unwrap()).collect()
    }

    pub(crate) fn key(&self) -> PublicKey {
        self.plane().home().plane_key().public().clone()
    }

    /// Looks after leases, as it does every second.
    pub(crate) fn sweep(&mut self) -> Handled {
        let now = self.clocks.date().unix_ms();
        let is_wall_clock = self.mistake == Mistake::WallClockLeases;
        let holder_of = |run: &LiveRun| {
            let name = format!("{}.{}", run.id, run.epoch);
            let is_over =
                self.wall_renewals.get(&name).is_some_and(|at| at + WALL_CLOCK_LIMIT_MS <= now);
            let newest = run.runner.as_ref().and_then(|runner| self.generations.get(runner));
            let is_old = newest.zip(run.generation).is_some_and(|(newest, own)| own < *newest);
            if is_old || (is_wall_clock && is_over) {
                HolderStatus::Gone
            } else {
                HolderStatus::Possible
            }
        };
        let swept = self.plane().reap_leases(holder_of).map(drop);
        self.survived(swept.map(|()| PlaneReply::Empty))
    }

    /// Seals what nobody works on, as it does every 15 seconds.
    pub(crate) fn seal_lost(&mut self) -> Handled {
        let sealed = self.plane().seal_lost().map(|_| PlaneReply::Empty);
        self.survived(sealed)
    }

    /// Takes a queued run for a runner, if there is one; one that may not be leased is sealed.
    pub(crate) fn claim(&mut self, runner: &KnownRunner, generation: u64) -> Handled {
        self.generations.insert(runner.id.to_string(), generation);
        loop {
            let candidates = self.plane().store().candidates("default", &Abilities::default(), 1);
            let Some(candidate) = candidates.unwrap().pop() else {
                return Handled::Answered(PlaneReply::Empty);
            };
            let holder = holder(runner, Some(generation));
            let leased = self.plane().lease_to(&holder, &candidate.id, candidate.epoch);
            match leased {
                Ok(lease) => {
                    self.plane().remember(lease.clone());
                    self.note_renewal(&lease.key);
                    return Handled::Answered(PlaneReply::Claimed(Arc::new(lease)));
                }
                Err(PlaneError::Refused { failure, message }) => {
                    let sealed = self.plane().refuse_queued(&candidate.id, failure, &message);
                    if let Handled::Died = self.survived(sealed.map(|()| PlaneReply::Empty)) {
                        return Handled::Died;
                    }
                }
                Err(error) => return self.answer(Err(error)),
            }
        }
    }

    /// Does what a request other than a claim asks for.
    pub(crate) fn handle(
        &mut self,
        runner: Option<&KnownRunner>,
        request: &PlaneRequest,
    ) -> Handled {
        match request {
            PlaneRequest::Submit(spec) => self.submit(*spec),
            PlaneRequest::Approve(run) => {
                let approved = self.plane().approve_authenticated(run, &person("bob"));
                let reply = match approved {
                    Ok(Approved::Issued) => Ok(PlaneReply::Approved),
                    Ok(Approved::Missing(missing)) => Ok(PlaneReply::Refused(missing.join(", "))),
                    Err(error) => conflict_reply(error),
                };
                self.survived(reply)
            }
            PlaneRequest::Cancel(run) => {
                let reply = match self.plane().stop(run, &person("carol")) {
                    Ok(_) => Ok(PlaneReply::Cancelled),
                    Err(error) => conflict_reply(error),
                };
                self.survived(reply)
            }
            PlaneRequest::Claim { generation } => self.claim(runner.unwrap(), *generation),
            PlaneRequest::Start { lease, start_id, events } => {
                let start_id = (self.mistake != Mistake::StartOnce).then_some(start_id.as_str());
                let holder = &runner.unwrap().id;
                let call = StartCall { holder, lease, events, start_id };
                let started = self.plane().start_lease(&call);
                if started.as_ref().is_ok_and(|started| !started.secrets.is_empty()) {
                    self.check_started(lease);
                }
                self.answer(started.map(|started| PlaneReply::Started {
                    events: Arc::new(started.events),
                    secrets: started.secrets.len(),
                }))
            }
            PlaneRequest::Renew(lease) => {
                let renewed = self.plane().renew_lease(lease);
                self.note_renewal(lease);
                self.answer(renewed.map(PlaneReply::Renewed))
            }
            PlaneRequest::Complete { lease, events, receipt } => {
                let holder = holder(runner.unwrap(), None);
                let told = (events.as_slice(), (**receipt).clone());
                let kept = self.plane().complete_run(&holder, lease, told);
                self.answer(kept.map(|receipt| PlaneReply::Kept(lease.run.clone(), receipt.hash())))
            }
            PlaneRequest::HandBack(lease) => {
                let handed = self.plane().hand_back_lease(lease);
                self.answer(handed.map(|()| PlaneReply::HandedBack))
            }
        }
    }

    fn submit(&mut self, spec: SimulatedRun) -> Handled {
        let submission = Submission {
            request: request(spec),
            principal: person("alice"),
            idempotency_key: Some(format!("key-{}", spec.number)),
            approval_wait_ms: 30 * 24 * 3_600_000,
        };
        let reception = self.plane().submit(submission, |_| judgment(spec));
        let reply = reception.map(|reception| match reception {
            Reception::Queued { run }
            | Reception::AwaitingApproval { run, .. }
            | Reception::Repeated { run, .. }
            | Reception::Denied { run, .. } => PlaneReply::Submitted(run),
        });
        self.survived(reply)
    }

    /// SECURITY: what is checked is that secrets leave only after the start is on disk.
    fn check_started(&self, lease: &LeaseKey) {
        let row = self.plane().store().run(&lease.run).unwrap();
        assert!(row.state.is_held() && row.epoch == lease.epoch, "secrets of a run not started");
        let events = self.events(&lease.run);
        let started = events.iter().filter_map(|event| match event.event() {
            Event::RunStarted { epoch, .. } => Some(*epoch),
            _ => None,
        });
        assert_eq!(started.collect::<Vec<_>>(), [lease.epoch], "secrets without a start");
    }

    fn note_renewal(&mut self, lease: &LeaseKey) {
        let name = format!("{}.{}", lease.run, lease.epoch);
        self.wall_renewals.insert(name, self.clocks.date().unix_ms());
    }

    fn answer(&mut self, result: Result<PlaneReply, PlaneError>) -> Handled {
        let reply = match result {
            Ok(reply) => Ok(reply),
            Err(PlaneError::Fenced(_)) => Ok(PlaneReply::Fenced),
            Err(PlaneError::Refused { message, .. }) => Ok(PlaneReply::Refused(message)),
            Err(error) => Err(error),
        };
        self.survived(reply)
    }

    /// An error that is no answer is the cut, and the process is dead.
    fn survived<E: Debug>(&mut self, result: Result<PlaneReply, E>) -> Handled {
        match result {
            Ok(reply) => Handled::Answered(reply),
            Err(error) => {
                assert!(self.is_armed, "the plane failed: {error:?}");
                self.kill();
                Handled::Died
            }
        }
    }
}

fn open(home: &Path, clocks: &Arc<ProcessClocks>) -> EmbeddedPlane {
    let home = Home::open_at(home.to_owned(), None).unwrap();
    let clocks: Arc<ProcessClocks> = Arc::clone(clocks);
    EmbeddedPlane::open_service_on(home, policy_hash(), clocks).unwrap()
}

fn holder(runner: &KnownRunner, generation: Option<u64>) -> Holder<'_> {
    let (id, key) = (&runner.id, &runner.key);
    Holder { id, key, liveness: None, terms: TERMS, generation, process: None }
}

/// A conflict is an answer; anything else is a failure.
fn conflict_reply(error: ApproveError) -> Result<PlaneReply, ApproveError> {
    match error {
        ApproveError::Store(StoreError::Conflict { state, .. }) => Ok(PlaneReply::Refused(state)),
        other => Err(other),
    }
}

fn request(spec: SimulatedRun) -> RunRequest {
    let secrets: &[&str] = if spec.secret == SecretUse::One { &["TOKEN"] } else { &[] };
    let value = json!({
        "requestedBy": {"kind": "human", "id": "alice"},
        "agentKind": "command",
        "prompt": format!("echo {}", spec.number),
        "pool": "default",
        "secretNames": secrets,
        "workspace": {
            "version": "warrant.manifest.v1",
            "baseRef": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
            "bundleHash": Digest::of(b""),
            "untrackedFiles": [],
            "deniedPatterns": [],
            "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": []},
        "budget": {},
        "disclosure": "redacted",
    });
    serde_json::from_value(value).unwrap()
}

fn judgment(spec: SimulatedRun) -> Judgment {
    let asks = spec.approval == ApprovalNeed::One;
    let requirement = ApprovalRequirement {
        name: "any-run".into(),
        level: 1,
        approvers: vec!["bob".into()],
        quorum: 1,
        expires_min: None,
    };
    let secret = SecretClaim { name: "TOKEN".parse().unwrap(), scope: "run".into() };
    Judgment {
        summary: DecisionSummary {
            decision: if asks { Decision::Ask } else { Decision::Allow },
            reasons: Vec::new(),
            rules: Vec::new(),
            policy_hash: Some(policy_hash()),
            level: asks.then_some(1),
        },
        policy_hash: policy_hash(),
        secrets: if spec.secret == SecretUse::One { vec![secret] } else { Vec::new() },
        requirements: if asks { vec![requirement] } else { Vec::new() },
        limits: None,
        masks: Vec::new(),
        required_posture: Vec::new(),
        evidence: BTreeMap::new(),
    }
}
