//! The plane over HTTP, as the port that every run uses.
//!
//! [`RemotePlane`] speaks our wire (claim, start, renew, complete, hand back) and falls back to
//! the reference's (claim with the secrets in it, events, complete) with a plane that does not
//! know ours, which shows in the answer to a claim. [`Enrolled`] is who this runner is and which
//! plane it believes. What a run leaves is written into the [`Outbox`] first, so
//! neither an outage of the plane nor a kill of the runner loses it.

mod blobs;
mod enroll;
mod generation;
mod http;
mod keep;
mod outbox;
mod stream;

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use warrant_protocol::event::FailureClass;
use warrant_protocol::port::{
    BlobWrite, Lease, LeaseKey, Plane, PlaneError, Renewal, SecretValue, Started,
};
use warrant_protocol::wire::{
    AppendEvents, ClaimResult, ClaimRun, CompleteResult, CompleteRun, Directive, DisconnectRule,
    HandBack, LeasedRun, ProcessIdentity, RenewLease, RenewResult, RunnerAbilities, StartResult,
    StartRun,
};
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Moment, Receipt, RunId, TimeSource, json,
};

pub use self::blobs::{BlobCache, LeaseBlobs};
pub use self::enroll::{EnrollError, EnrollOptions, Enrolled, PinnedBy};
pub use self::generation::next_generation;
pub use self::http::{CallError, ClientError, EventsFrom, Http, KeyedCall};
pub use self::keep::{Outage, Stop, StopSlot, Watched};
pub use self::outbox::{End, Entry, Outbox, OutboxError, StartKnown};
pub use self::stream::BlobStream;
use crate::lease_timer::{LeaseStanding, LeaseTimer};

/// How long a claim waits for work.
const CLAIM_WAIT: Duration = Duration::from_secs(15);
/// An empty answer that comes sooner than this was not waited for.
const PARKED_AT_LEAST: Duration = Duration::from_secs(2);
/// How long to wait between two attempts, at first and at the most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A plane somewhere else.
#[derive(Debug)]
pub struct RemotePlane {
    http: Arc<Http>,
    enrolled: Enrolled,
    abilities: RunnerAbilities,
    outbox: Outbox,
    time: Arc<dyn TimeSource>,
    generation: Option<u64>,
    process: Option<ProcessIdentity>,
    held: Arc<Mutex<HashMap<LeaseKey, Held>>>,
}

/// What a [`RemotePlane`] is made of.
#[derive(Debug)]
pub struct RemoteParts {
    /// The connections to the plane.
    pub http: Arc<Http>,
    /// Who this runner is.
    pub enrolled: Enrolled,
    /// What this runner can do.
    pub abilities: RunnerAbilities,
    /// Where evidence lies until the plane has it.
    pub outbox: Outbox,
    /// The clocks.
    pub time: Arc<dyn TimeSource>,
    /// Which process of this runner this is, see [`next_generation`].
    pub generation: Option<u64>,
    /// Which process of this machine this is, for a plane of the same machine.
    pub process: Option<ProcessIdentity>,
}

/// What this runner knows of a lease it holds.
#[derive(Debug)]
struct Held {
    token: String,
    dialect: Dialect,
    /// Released with the claim, for runs of the reference's wire.
    secrets: Vec<SecretValue>,
    entry: Entry,
    timer: LeaseTimer,
}

/// Which wire a run is spoken of in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Ours: start, renew, hand back.
    Leases,
    /// The reference's: the claim was the start, and nothing ends by itself.
    Plain,
}

/// What is to be done about a run of an earlier life whose start was not answered.
enum Settling {
    /// It is known what the plane recorded.
    Settled,
    /// It is no longer this runner's.
    Over,
    /// The plane cannot be asked now.
    Later,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claimed {
    /// A run to work on.
    Run(Box<Lease>),
    /// Nothing to do; the plane waited for it.
    Nothing,
    /// Nothing to do, said at once: ask again later.
    NothingYet,
}

impl RemotePlane {
    /// Returns the plane that this runner is enrolled at.
    #[must_use]
    pub fn new(parts: RemoteParts) -> Self {
        let RemoteParts { http, enrolled, abilities, outbox, time, generation, process } = parts;
        let held = Arc::default();
        Self { http, enrolled, abilities, outbox, time, generation, process, held }
    }

    /// Returns the clocks that leases are counted on.
    #[must_use]
    pub fn time(&self) -> &dyn TimeSource {
        &*self.time
    }

    /// Returns who this runner is.
    #[must_use]
    pub const fn enrolled(&self) -> &Enrolled {
        &self.enrolled
    }

    /// Ends waiting claims, now and from now on.
    pub fn stop_claiming(&self) {
        self.http.give_up_parked();
    }

    /// Asks for a run and waits for one.
    ///
    /// # Errors
    /// [`CallError`]; a refusal means that this runner is not wanted.
    pub fn claim_waiting(&self) -> Result<Claimed, CallError> {
        let body = ClaimRun {
            runner_token: self.enrolled.token().to_owned(),
            pool: self.enrolled.identity().pool.clone(),
            leases: Some(true),
            abilities: Some(self.abilities.clone()),
            wait_ms: Some(u64::try_from(CLAIM_WAIT.as_millis()).unwrap_or(u64::MAX)),
            generation: self.generation,
            process: self.process.clone(),
        };
        let sent = self.time.moment();
        let answer = self.http.claim(self.enrolled.token(), &value(&body)?, CLAIM_WAIT)?;
        let arrived = self.time.moment();
        let malformed = |error: json::InvalidJson| CallError::Malformed(error.detail());
        match ClaimResult::from_value(&answer).map_err(malformed)? {
            ClaimResult::Empty if arrived.since(sent) >= PARKED_AT_LEAST => Ok(Claimed::Nothing),
            ClaimResult::Empty => Ok(Claimed::NothingYet),
            ClaimResult::Leased(run) => {
                self.follow_issuer(&run.contract);
                self.take(*run, arrived).map(Claimed::Run)
            }
        }
    }

    /// Moves the pin when a contract names another issuer and the pinned key signed a succession.
    /// If it does not move, the contract is refused where every contract is checked.
    fn follow_issuer(&self, contract: &Contract) {
        if contract.body().issuer.key_id == *self.enrolled.plane_key().id() {
            return;
        }
        if let Err(error) = self.enrolled.follow_plane(&self.http) {
            tracing::warn!(%error, "the plane's key successions cannot be read");
        }
    }

    /// Returns the blobs of a lease, kept in `cache` once fetched.
    #[must_use]
    pub fn blobs_of<'a>(&'a self, lease: &LeaseKey, cache: &'a BlobCache) -> LeaseBlobs<'a> {
        LeaseBlobs { http: &self.http, token: self.token(lease).unwrap_or_default(), cache }
    }

    /// Delivers what an earlier life of this runner left behind; what it had begun is sealed as
    /// unobserved, what it had not is handed back. Returns how many runs that were.
    ///
    /// # Errors
    /// [`OutboxError`] when the outbox cannot be read.
    pub fn recover(
        &self,
        clock: &(dyn Fn() -> warrant_protocol::Timestamp + Sync),
        give_up: &dyn Fn() -> bool,
    ) -> Result<usize, OutboxError> {
        let left = self.outbox.left_behind()?;
        let count = left.len();
        for entry in left {
            match self.settle_start(&entry) {
                Settling::Settled => {}
                Settling::Over => {
                    entry.forget();
                    continue;
                }
                Settling::Later => continue,
            }
            match entry.ending(self.enrolled.identity(), clock) {
                Ok(Some(end)) => {
                    let sent = self.deliver(&entry, &end, give_up);
                    tracing::info!(run.id = %entry.run(), delivered = sent.is_ok(), "a run of before was told");
                    if matches!(sent, Err(PlaneError::Failed(_))) {
                        continue;
                    }
                }
                Ok(None) => {
                    if self.give_back(&entry).is_err_and(|error| error.is_transient()) {
                        continue;
                    }
                }
                Err(error) => {
                    tracing::warn!(run.id = %entry.run(), %error, "a run of before is unreadable")
                }
            }
            entry.forget();
        }
        Ok(count)
    }

    /// Finds out whether a run counts as started whose start was asked for in an earlier life and
    /// not answered. It is given back, or the same start is asked for again, which tells what the
    /// plane recorded.
    fn settle_start(&self, entry: &Entry) -> Settling {
        let told = match entry.start_known() {
            Ok(StartKnown::Unanswered { told }) => told,
            // What cannot be read is reported where the end is made.
            Ok(StartKnown::Settled) | Err(_) => return Settling::Settled,
        };
        match self.give_back(entry) {
            Ok(()) => return Settling::Over,
            Err(error) if error.is_transient() => return Settling::Later,
            Err(_) => {}
        }
        let start_id = Some(entry.start_id());
        let body = StartRun { claim_token: entry.token(), events: told.clone(), start_id };
        let path = format!("/v1/runs/{}/start", entry.run());
        let asked = value(&body).and_then(|body| self.http.post_as(&path, &entry.token(), &body));
        match asked.map(|answer| json::view::<StartResult>(&answer)) {
            Ok(Ok(started)) => {
                entry.started(&told, &started.events);
                Settling::Settled
            }
            Err(error) if error.is_transient() => Settling::Later,
            // The lease is over: the plane ends the run, or has.
            Ok(Err(_)) | Err(_) => Settling::Over,
        }
    }

    /// Gives a run of an earlier life back that was not started.
    fn give_back(&self, entry: &Entry) -> Result<(), CallError> {
        let body = value(&HandBack { claim_token: entry.token() })?;
        let path = format!("/v1/runs/{}/hand-back", entry.run());
        self.http.post_as(&path, &entry.token(), &body).map(drop)
    }

    fn take(&self, run: LeasedRun, arrived: Moment) -> Result<Box<Lease>, CallError> {
        let dialect = if run.epoch.is_some() { Dialect::Leases } else { Dialect::Plain };
        let key = LeaseKey { run: run.run_id.clone(), epoch: run.epoch.unwrap_or(1) };
        let unreadable = |why: String| CallError::Malformed(why);
        let entry =
            self.outbox.open(&key, dialect, &run).map_err(|error| unreadable(error.to_string()))?;
        let chain = Chain::from_events(run.contract.hash(), run.events.clone())
            .map_err(|broken| unreadable(broken.to_string()))?;
        let lease = Duration::from_millis(run.lease_ms.unwrap_or(u64::from(u32::MAX)));
        let rule = DisconnectRule::from_wire_ms(run.disconnect_ms);
        let secrets = run.secrets.into_iter();
        let held = Held {
            token: run.claim_token,
            dialect,
            secrets: secrets.map(|s| SecretValue { name: s.name, value: s.value }).collect(),
            entry,
            timer: LeaseTimer::granted(arrived, lease, rule),
        };
        self.held().insert(key.clone(), held);
        // A plane that does not say which policy is in force leaves the check to itself.
        let policy_hash = run.policy_hash.unwrap_or(run.contract.body().policy_hash);
        Ok(Box::new(Lease { key, contract: run.contract, chain, policy_hash }))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<LeaseKey, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self, lease: &LeaseKey) -> Option<String> {
        self.held().get(lease).map(|held| held.token.clone())
    }

    /// Returns token, dialect and outbox of a lease that this runner holds.
    fn hold(&self, lease: &LeaseKey) -> Result<(String, Dialect, Entry), PlaneError> {
        let held = self.held();
        let held = held.get(lease).ok_or_else(|| PlaneError::Fenced(lease.run.clone()))?;
        Ok((held.token.clone(), held.dialect, held.entry.clone()))
    }

    /// Says something to the plane until it hears, but not beyond the lease.
    fn say<B: Serialize>(
        &self,
        lease: &LeaseKey,
        (verb, token): (&str, &str),
        body: &B,
    ) -> Result<Value, PlaneError> {
        let path = format!("/v1/runs/{}/{verb}", lease.run);
        let body = value(body).map_err(PlaneError::failed)?;
        let mut pause = RETRY.0;
        loop {
            let error = match self.http.post_as(&path, token, &body) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let next = self.time.moment().plus(pause);
            let standing = self.held().get_mut(lease).map(|held| held.timer.standing(next));
            let has_time = standing.is_some_and(|standing| standing != LeaseStanding::Over);
            if !error.is_transient() || !has_time || self.outbox.is_giving_up() {
                return Err(plane_error(&lease.run, error));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Sends what an entry holds: blobs, last events, receipt.
    fn deliver(
        &self,
        entry: &Entry,
        end: &End,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Receipt, PlaneError> {
        let mut pause = RETRY.0;
        loop {
            let token = self.token(entry.key()).unwrap_or_else(|| entry.token());
            match self.deliver_once(entry, end, &token) {
                Ok(receipt) => return Ok(receipt),
                Err(error) if error.is_transient() && !give_up() => {
                    tracing::warn!(run.id = %entry.run(), %error, "the receipt waits for the plane");
                    entry.make_durable();
                }
                Err(error) => return Err(plane_error(entry.run(), error)),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(RETRY.1);
        }
    }

    fn deliver_once(&self, entry: &Entry, end: &End, token: &str) -> Result<Receipt, CallError> {
        for blob in entry.blobs() {
            self.http.put_blob(&blob, token)?;
        }
        let mut events = end.events.clone();
        if entry.dialect() == Dialect::Plain && !events.is_empty() {
            let body =
                AppendEvents { claim_token: token.to_owned(), events: std::mem::take(&mut events) };
            let path = format!("/v1/runs/{}/events", entry.run());
            match self.http.post_as(&path, token, &value(&body)?) {
                // The reference has no word for "the same again"; the receipt decides.
                Ok(_) | Err(CallError::Refused { status: 400, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let body =
            CompleteRun { claim_token: token.to_owned(), receipt: end.receipt.clone(), events };
        let path = format!("/v1/runs/{}/complete", entry.run());
        let answer = self.http.post_as(&path, token, &value(&body)?)?;
        let result: CompleteResult =
            json::view(&answer).map_err(|error| CallError::Malformed(error.detail()))?;
        Ok(result.receipt)
    }
}

impl Plane for RemotePlane {
    fn claim(&self) -> Result<Option<Lease>, PlaneError> {
        match self.claim_waiting().map_err(PlaneError::failed)? {
            Claimed::Run(lease) => Ok(Some(*lease)),
            Claimed::Nothing | Claimed::NothingYet => Ok(None),
        }
    }

    fn start(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<Started, PlaneError> {
        let (claim_token, dialect, entry) = self.hold(lease)?;
        entry.starting(events).map_err(|error| {
            tracing::error!(run.id = %lease.run, %error, "a start cannot be noted, so nothing starts");
            let message = "the runner cannot note that the run starts".to_owned();
            PlaneError::Refused { failure: FailureClass::SessionFailed, message }
        })?;
        let started = match dialect {
            Dialect::Leases => {
                let body = StartRun {
                    claim_token: claim_token.clone(),
                    events: events.to_vec(),
                    start_id: Some(entry.start_id()),
                };
                let answer = self.say(lease, ("start", &claim_token), &body)?;
                let result: StartResult = json::view(&answer).map_err(PlaneError::failed)?;
                let secrets = result.secrets.into_iter();
                let secrets = secrets.map(|s| SecretValue { name: s.name, value: s.value });
                Started { events: result.events, secrets: secrets.collect() }
            }
            Dialect::Plain => {
                let body =
                    AppendEvents { claim_token: claim_token.clone(), events: events.to_vec() };
                self.say(lease, ("events", &claim_token), &body)?;
                let secrets =
                    self.held().get_mut(lease).map(|held| std::mem::take(&mut held.secrets));
                Started { events: Vec::new(), secrets: secrets.unwrap_or_default() }
            }
        };
        entry.started(events, &started.events);
        Ok(started)
    }

    fn append(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<(), PlaneError> {
        let (claim_token, _, _) = self.hold(lease)?;
        let body = AppendEvents { claim_token: claim_token.clone(), events: events.to_vec() };
        self.say(lease, ("events", &claim_token), &body).map(drop)
    }

    fn renew(&self, lease: &LeaseKey) -> Result<Renewal, PlaneError> {
        let (claim_token, dialect, _) = self.hold(lease)?;
        if dialect == Dialect::Plain {
            return Ok(Renewal::Continue);
        }
        let sent = self.time.moment();
        let body = RenewLease { claim_token: claim_token.clone(), wait_ms: None };
        let answer = self.say(lease, ("renew", &claim_token), &body)?;
        let renewed: RenewResult = json::view(&answer).map_err(PlaneError::failed)?;
        let arrived = self.time.moment();
        let mut held = self.held();
        if let Some(held) = held.get_mut(lease) {
            held.renewed(&renewed, sent, arrived);
        }
        match renewed.directive {
            Directive::Continue => Ok(Renewal::Continue),
            Directive::Stop => Ok(Renewal::Stop(renewed.actor)),
            Directive::Fenced => Err(PlaneError::Fenced(lease.run.clone())),
        }
    }

    fn new_blob(&self, lease: &LeaseKey) -> Result<Box<dyn BlobWrite>, PlaneError> {
        let (_, _, entry) = self.hold(lease)?;
        Ok(Box::new(entry.new_blob()))
    }

    fn blob(&self, digest: &Digest) -> Result<Box<dyn Read + Send>, PlaneError> {
        match self.http.open_blob(digest, self.enrolled.token()) {
            Ok(stream) => Ok(Box::new(stream)),
            Err(CallError::Refused { status: 404, .. }) => Err(PlaneError::Refused {
                failure: FailureClass::TransferFailed,
                message: format!("there is no blob {digest}"),
            }),
            Err(error) => Err(PlaneError::failed(error)),
        }
    }

    fn complete(
        &self,
        lease: &LeaseKey,
        events: &[ChainedEvent],
        receipt: Receipt,
    ) -> Result<Receipt, PlaneError> {
        let (_, _, entry) = self.hold(lease)?;
        let end = End { events: events.to_vec(), receipt };
        entry.ended(&end).map_err(PlaneError::failed)?;
        let told = self.deliver(&entry, &end, &|| self.outbox.is_giving_up());
        if !matches!(told, Err(PlaneError::Failed(_))) {
            entry.forget();
        }
        self.held().remove(lease);
        told
    }

    fn hand_back(&self, lease: &LeaseKey) -> Result<(), PlaneError> {
        let (claim_token, _, entry) = self.hold(lease)?;
        let body = HandBack { claim_token: claim_token.clone() };
        self.say(lease, ("hand-back", &claim_token), &body)?;
        entry.forget();
        self.held().remove(lease);
        Ok(())
    }
}

impl RemotePlane {
    /// Lets undelivered receipts wait for the next life of this runner.
    pub fn leave_the_rest(&self) {
        self.outbox.give_up();
    }

    /// Lets go of a lease without forgetting it on disk: the next life of this runner gives it
    /// back if this one could not.
    pub fn let_go(&self, lease: &LeaseKey) {
        self.held().remove(lease);
    }

    /// Forgets a lease that is over.
    pub fn forget(&self, lease: &LeaseKey) {
        if let Some(held) = self.held().remove(lease) {
            held.entry.forget();
        }
    }

    /// Sends output of a run for whoever watches it; losing it loses no evidence.
    pub(crate) fn show(&self, lease: &LeaseKey) -> Option<Show> {
        let held = self.held();
        let held = held.get(lease).filter(|held| held.dialect == Dialect::Leases)?;
        let path = format!("/v1/runs/{}/logs", lease.run);
        Some(Show { http: Arc::clone(&self.http), path, token: held.token.clone() })
    }
}

/// Where the output of a run is shown while it runs.
pub(crate) struct Show {
    pub(crate) http: Arc<Http>,
    path: String,
    token: String,
}

impl Show {
    /// Sends the piece of the output that begins at byte `at`.
    pub(crate) async fn send(&self, at: u64, bytes: Vec<u8>) -> Result<(), CallError> {
        let path = format!("{}?at={at}", self.path);
        self.http.sending_bytes(&path, &self.token, bytes).await.map(drop)
    }
}

impl Held {
    /// Counts the lease anew; returns for how long the plane had been away, if it had.
    fn renewed(
        &mut self,
        renewed: &RenewResult,
        sent: Moment,
        arrived: Moment,
    ) -> Option<Duration> {
        self.token.clone_from(&renewed.claim_token);
        self.timer.renewed(sent, arrived, Duration::from_millis(renewed.lease_ms))
    }
}

/// Returns what a failed call means for a run.
fn plane_error(run: &RunId, error: CallError) -> PlaneError {
    match error {
        CallError::Refused { failure: None, status: 401 | 409, .. } => {
            PlaneError::Fenced(run.clone())
        }
        CallError::Refused { status, message, code, failure, .. }
            if status < 500 && status != 429 =>
        {
            let failure = match (failure, code.as_deref()) {
                (Some(failure), _) => failure,
                (None, Some("policy_denied")) => FailureClass::PolicyDenied,
                (None, _) => FailureClass::SessionFailed,
            };
            PlaneError::Refused { failure, message }
        }
        other => PlaneError::failed(other),
    }
}

fn value<B: Serialize>(body: &B) -> Result<Value, CallError> {
    json::to_value(body).map_err(|error| CallError::Malformed(error.detail()))
}
