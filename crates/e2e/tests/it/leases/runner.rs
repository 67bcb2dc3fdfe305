//! A runner with one slot: the real lease timer and the real outbox, driven step by step.
//!
//! The order of what it says follows `RemotePlane` and the claim loop: what was left behind is
//! delivered first; the outbox knows of a start before the plane is asked, and of an end before
//! the plane is told; a lease is renewed as long as the run is held.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warrant_plane::home::fresh_key;
use warrant_protocol::event::FailureClass;
use warrant_protocol::port::{Lease, LeaseKey};
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::wire::LeasedRun;
use warrant_protocol::{
    Chain, Contract, Event, Moment, RunId, RunnerId, Sealer, Signed, Signer, TimeSource as _,
    Timestamp, fold,
};
use warrant_runner::RunnerIdentity;
use warrant_runner::lease_timer::{LeaseStanding, LeaseTimer};
use warrant_runner::remote::{Dialect, End, Entry, Outbox};

use super::plane::{KnownRunner, TERMS};
use super::time::{ProcessClocks, SeededRandom};
use super::wire::{Mistake, PlaneReply, PlaneRequest};

/// How long a claim waits for an answer, and everything else.
const CLAIM_TIMEOUT_MS: u64 = 30_000;
const CALL_TIMEOUT_MS: u64 = 8_000;
const RENEW_EVERY_MS: u64 = 900;

/// A runner that can be killed and started again.
#[derive(Debug)]
pub(crate) struct SimulatedRunner {
    identity: RunnerIdentity,
    clocks: Arc<ProcessClocks>,
    dir: PathBuf,
    mistake: Mistake,
    process: Option<RunnerProcess>,
    /// The number of the present process.
    generation: u64,
    next_call: u64,
}

/// What is gone when the process is killed.
#[derive(Debug)]
struct RunnerProcess {
    outbox: Outbox,
    left_behind: VecDeque<Entry>,
    work: RunnerWork,
    call: Option<PendingCall>,
    renewal: Option<PendingCall>,
    renewed_at: Option<Moment>,
}

#[derive(Debug, Clone, Copy)]
struct PendingCall {
    number: u64,
    sent: Moment,
}

#[derive(Debug)]
enum RunnerWork {
    /// Telling the plane of a run from before.
    Delivering(Entry, Option<End>),
    Idle,
    Claiming,
    Holding(Box<HeldLease>),
}

#[derive(Debug)]
struct HeldLease {
    key: LeaseKey,
    contract: Contract,
    chain: Chain,
    entry: Entry,
    timer: LeaseTimer,
    phase: LeasePhase,
    stop: Option<ActorRef>,
    /// Only a mistake thinks so.
    is_over_on_arrival: bool,
}

#[derive(Debug)]
enum LeasePhase {
    Preparing { until: Moment },
    Starting,
    Executing { until: Moment },
    Ending(End),
}

/// What a runner does that others see.
#[derive(Debug)]
pub(crate) enum Act {
    Send {
        call: u64,
        request: PlaneRequest,
    },
    /// A program was started.
    Executed(RunId),
    /// It refused a run before it began.
    Refused(RunId),
}

impl SimulatedRunner {
    pub(crate) fn create(dir: &Path, clocks: Arc<ProcessClocks>, mistake: Mistake) -> Self {
        let identity = RunnerIdentity {
            id: RunnerId::from_random(warrant_plane::random::bytes().unwrap()),
            key: fresh_key().unwrap(),
            pool: "default".parse().unwrap(),
        };
        let dir = dir.to_owned();
        Self { identity, clocks, dir, mistake, process: None, generation: 0, next_call: 0 }
    }

    pub(crate) fn known(&self) -> KnownRunner {
        KnownRunner { id: self.identity.id.clone(), key: self.identity.key.public().clone() }
    }

    pub(crate) const fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn clocks(&self) -> &ProcessClocks {
        &self.clocks
    }

    /// Returns whether it has nothing to do and nothing to tell.
    pub(crate) fn is_idle(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            matches!(process.work, RunnerWork::Idle | RunnerWork::Claiming)
                && process.left_behind.is_empty()
        })
    }

    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts a process; `order` puts what was left behind into an order that can be had again.
    pub(crate) fn start(&mut self, order: impl Fn(&RunId) -> usize) {
        if self.process.is_some() {
            return;
        }
        self.generation += 1;
        let outbox = Outbox::open_at(self.dir.clone()).unwrap();
        let mut left = outbox.left_behind().unwrap();
        left.sort_by_key(|entry| (order(&entry.key().run), entry.key().epoch));
        self.process = Some(RunnerProcess {
            outbox,
            left_behind: left.into(),
            work: RunnerWork::Idle,
            call: None,
            renewal: None,
            renewed_at: None,
        });
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, chance: &mut SeededRandom) -> Vec<Act> {
        let mut acts = Vec::new();
        let now = self.clocks.moment();
        let Some(process) = &mut self.process else { return acts };
        let patience = if matches!(process.work, RunnerWork::Claiming) {
            CLAIM_TIMEOUT_MS
        } else {
            CALL_TIMEOUT_MS
        };
        let is_late =
            |call: &PendingCall, most_ms: u64| now.since(call.sent).as_millis() >= most_ms.into();
        if process.call.as_ref().is_some_and(|call| is_late(call, patience)) {
            process.call = None;
            if matches!(process.work, RunnerWork::Claiming) {
                process.work = RunnerWork::Idle;
            }
        }
        if process.renewal.as_ref().is_some_and(|call| is_late(call, CALL_TIMEOUT_MS)) {
            process.renewal = None;
        }
        if matches!(process.work, RunnerWork::Idle) {
            self.look_for_work();
        }
        self.step(now, chance, &mut acts);
        self.send_due(now, &mut acts);
        acts
    }

    /// Takes up what was left behind, or asks for something new.
    fn look_for_work(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.work = match process.left_behind.pop_front() {
            Some(entry) => {
                let clocks = Arc::clone(&self.clocks);
                let clock = move || clocks.date();
                let end = entry.ending(&self.identity, &clock).unwrap();
                RunnerWork::Delivering(entry, end)
            }
            None => RunnerWork::Claiming,
        };
        process.call = None;
    }

    /// Moves the run that is held to its next phase, if it is time.
    fn step(&mut self, now: Moment, chance: &mut SeededRandom, acts: &mut Vec<Act>) {
        let Some(process) = &mut self.process else { return };
        let RunnerWork::Holding(held) = &mut process.work else { return };
        let is_over = held.timer.standing(now) == LeaseStanding::Over;
        match &held.phase {
            LeasePhase::Ending(_) => {}
            LeasePhase::Preparing { .. } | LeasePhase::Executing { .. }
                if held.is_over_on_arrival =>
            {
                let id = self.identity.id.to_string();
                let actor = ActorRef { kind: ActorKind::Service, id };
                held.end(&self.identity, self.clocks.date(), &cancelled(actor));
                process.call = None;
            }
            LeasePhase::Preparing { .. } | LeasePhase::Starting if is_over => {
                // Whether it was started is known to the plane alone.
                process.abandon();
            }
            LeasePhase::Executing { .. } if is_over => {
                let message = "the plane did not answer for longer than policy allows".to_owned();
                let failed = Event::RunFailed { failure: FailureClass::SessionFailed, message };
                held.end(&self.identity, self.clocks.date(), &failed);
            }
            LeasePhase::Preparing { until } if *until <= now => {
                if chance.percent(5) {
                    acts.push(Act::Refused(held.key.run.clone()));
                    let message = "not on this machine".to_owned();
                    let failed = Event::RunFailed { failure: FailureClass::SessionFailed, message };
                    held.end(&self.identity, self.clocks.date(), &failed);
                } else {
                    held.entry.starting(&[]).unwrap();
                    held.phase = LeasePhase::Starting;
                }
            }
            LeasePhase::Executing { until } => {
                if let Some(actor) = held.stop.clone() {
                    held.end(&self.identity, self.clocks.date(), &cancelled(actor));
                } else if *until <= now {
                    held.end(&self.identity, self.clocks.date(), &Event::RunCompleted {});
                }
            }
            LeasePhase::Preparing { .. } | LeasePhase::Starting => {}
        }
    }

    /// Sends what is not under way already.
    fn send_due(&mut self, now: Moment, acts: &mut Vec<Act>) {
        let generation = self.generation;
        let Some(process) = &mut self.process else { return };
        let due = match (&process.work, process.call) {
            (_, Some(_)) => None,
            (RunnerWork::Claiming, None) => Some(PlaneRequest::Claim { generation }),
            (RunnerWork::Delivering(entry, None), None) => {
                Some(PlaneRequest::HandBack(entry.key().clone()))
            }
            (RunnerWork::Delivering(entry, Some(end)), None) => Some(complete(entry.key(), end)),
            (RunnerWork::Holding(held), None) => match &held.phase {
                LeasePhase::Starting => Some(PlaneRequest::Start {
                    lease: held.key.clone(),
                    start_id: held.entry.start_id(),
                    events: Arc::default(),
                }),
                LeasePhase::Ending(end) => Some(complete(&held.key, end)),
                LeasePhase::Preparing { .. } | LeasePhase::Executing { .. } => None,
            },
            (RunnerWork::Idle, None) => None,
        };
        let renewal = match &process.work {
            RunnerWork::Holding(held) if process.renewal.is_none() => {
                let is_due = process
                    .renewed_at
                    .is_none_or(|at| now.since(at).as_millis() >= u128::from(RENEW_EVERY_MS));
                is_due.then(|| PlaneRequest::Renew(held.key.clone()))
            }
            _ => None,
        };
        if let Some(request) = due {
            self.next_call += 1;
            process.call = Some(PendingCall { number: self.next_call, sent: now });
            acts.push(Act::Send { call: self.next_call, request });
        }
        if let Some(request) = renewal {
            self.next_call += 1;
            process.renewal = Some(PendingCall { number: self.next_call, sent: now });
            process.renewed_at = Some(now);
            acts.push(Act::Send { call: self.next_call, request });
        }
    }

    /// Hears an answer. One that nobody waits for any more is not heard.
    pub(crate) fn receive_reply(
        &mut self,
        number: u64,
        reply: &PlaneReply,
        chance: &mut SeededRandom,
    ) -> Vec<Act> {
        let mut acts = Vec::new();
        let now = self.clocks.moment();
        let Some(process) = &mut self.process else { return acts };
        let is_it = |call: &PendingCall| call.number == number;
        if let Some(call) = process.renewal.take_if(|call| is_it(call)) {
            process.receive_renewal(call, now, reply);
            return acts;
        }
        let Some(call) = process.call.take_if(|call| is_it(call)) else { return acts };
        match (&mut process.work, reply) {
            (RunnerWork::Claiming, PlaneReply::Claimed(lease)) => {
                let timer = LeaseTimer::granted(now, TERMS.lease, TERMS.disconnect);
                let until = now.plus(std::time::Duration::from_millis(chance.range(0, 2_000)));
                let is_stale = now.since(call.sent) >= TERMS.lease;
                let mut held = process.hold(lease, timer, until);
                held.is_over_on_arrival = is_stale && self.mistake == Mistake::CountFromClaim;
                process.work = RunnerWork::Holding(Box::new(held));
            }
            (RunnerWork::Claiming, _) => process.work = RunnerWork::Idle,
            (
                RunnerWork::Delivering(entry, _),
                PlaneReply::Kept(..) | PlaneReply::HandedBack | PlaneReply::Fenced,
            )
            | (RunnerWork::Delivering(entry, _), PlaneReply::Refused(_)) => {
                entry.forget();
                process.work = RunnerWork::Idle;
            }
            (RunnerWork::Holding(held), PlaneReply::Started { events, .. }) => {
                if matches!(held.phase, LeasePhase::Starting) {
                    let takes = chance.range(0, 60_000);
                    held.start(events, now.plus(std::time::Duration::from_millis(takes)));
                    acts.push(Act::Executed(held.key.run.clone()));
                }
            }
            (RunnerWork::Holding(held), PlaneReply::Refused(message)) => match held.phase {
                // It may not start any more; the receipt says why.
                LeasePhase::Starting => {
                    let failure = FailureClass::SessionFailed;
                    let failed = Event::RunFailed { failure, message: message.clone() };
                    acts.push(Act::Refused(held.key.run.clone()));
                    held.end(&self.identity, self.clocks.date(), &failed);
                }
                _ => panic!("the plane refuses what its runner says: {message}"),
            },
            (RunnerWork::Holding(held), PlaneReply::Kept(..) | PlaneReply::Fenced) => {
                held.entry.forget();
                process.abandon();
            }
            (work, reply) => panic!("an answer that fits nothing: {work:?} {reply:?}"),
        }
        acts
    }
}

impl RunnerProcess {
    fn hold(&mut self, lease: &Lease, timer: LeaseTimer, until: Moment) -> HeldLease {
        let leased = LeasedRun {
            run_id: lease.key.run.clone(),
            contract: lease.contract.clone(),
            claim_token: format!("{}.{}", lease.key.run, lease.key.epoch),
            events: lease.chain.events().to_vec(),
            secrets: Vec::new(),
            epoch: Some(lease.key.epoch),
            lease_ms: None,
            disconnect_ms: None,
            policy_hash: None,
        };
        let entry = self.outbox.open(&lease.key, Dialect::Leases, &leased).unwrap();
        (self.renewal, self.renewed_at) = (None, None);
        HeldLease {
            key: lease.key.clone(),
            contract: lease.contract.clone(),
            chain: lease.chain.clone(),
            entry,
            timer,
            phase: LeasePhase::Preparing { until },
            stop: None,
            is_over_on_arrival: false,
        }
    }

    fn receive_renewal(&mut self, call: PendingCall, now: Moment, reply: &PlaneReply) {
        let RunnerWork::Holding(held) = &mut self.work else { return };
        match reply {
            PlaneReply::Renewed(stop) => {
                held.timer.renewed(call.sent, now, TERMS.lease);
                if stop.is_some() {
                    held.stop.clone_from(stop);
                }
            }
            // While the end is on its way its own answer decides.
            PlaneReply::Fenced if matches!(held.phase, LeasePhase::Ending(_)) => {}
            PlaneReply::Fenced => {
                held.entry.forget();
                self.abandon();
            }
            other => panic!("an answer that fits no renewal: {other:?}"),
        }
    }

    /// Lets go of the run; what the outbox has of it stays for the next process.
    fn abandon(&mut self) {
        self.work = RunnerWork::Idle;
        (self.call, self.renewal, self.renewed_at) = (None, None, None);
    }
}

impl HeldLease {
    fn start(&mut self, events: &[warrant_protocol::ChainedEvent], until: Moment) {
        for event in events {
            self.chain.push(event.clone()).unwrap();
        }
        self.entry.started(&[], events);
        self.phase = LeasePhase::Executing { until };
    }

    fn end(&mut self, identity: &RunnerIdentity, at: Timestamp, last: &Event) {
        let from = self.chain.events().len();
        self.chain.append(at, last).unwrap();
        let key_id = identity.key.public().id().clone();
        let sealer = Sealer::Runner { runner_id: identity.id.clone(), key_id };
        let body = fold(&self.contract, &self.chain, &sealer).unwrap();
        let receipt = Signed::seal(&body, Signer::Runner, &identity.key).unwrap();
        let end = End { events: self.chain.events()[from..].to_vec(), receipt };
        self.entry.ended(&end).unwrap();
        self.phase = LeasePhase::Ending(end);
    }
}

fn cancelled(actor: ActorRef) -> Event {
    Event::RunCancelled { actor, reason: None }
}

fn complete(lease: &LeaseKey, end: &End) -> PlaneRequest {
    PlaneRequest::Complete {
        lease: lease.clone(),
        events: Arc::new(end.events.clone()),
        receipt: Arc::new(end.receipt.clone()),
    }
}
