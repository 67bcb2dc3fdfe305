//! Leases: what a runner may do with a run it holds, whoever the runner is.
//!
//! The runner in this process and runners behind HTTP come through here. Every write carries
//! the number of its lease; the store decides whether that lease still holds. Contract and chain
//! of a run on its way are kept in memory, so that an append costs what it adds.

mod checking;
mod starting;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warrant_protocol::event::FailureClass;
use warrant_protocol::port::{Lease, LeaseKey, PlaneError, SecretValue};
use warrant_protocol::receipt::ReceiptStatus;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::wire::{LEASE_MS, ProcessIdentity};
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Event, PublicKey, Receipt, RunId, RunState, RunnerId,
    SecretName, Signer, Timestamp,
};

use self::starting::{StartEvents, take_extended};
use crate::chain_limits::{Phase, check_limits};
use crate::embedded::EmbeddedPlane;
use crate::lease_table::LeaseTerms;
use crate::notary::{rows, text};
use crate::secrets::SecretsError;
use crate::store::{Completion, Durability, Owner, StoreError};

/// How many runs on their way are kept in memory; the rest is read from the store.
const MAX_UNDERWAY: usize = 4096;

/// How many bytes their chains may have together. In memory that is several times as much.
const MAX_UNDERWAY_BYTES: u64 = 8 * 1024 * 1024;

/// The runner that takes or holds a lease.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// Its id.
    pub id: &'a RunnerId,
    /// Its key.
    pub key: &'a PublicKey,
    /// The name under which its life can be checked, on this machine.
    pub liveness: Option<&'a str>,
    /// What is agreed with it.
    pub terms: LeaseTerms,
    /// Which process of it this is, if it says so.
    pub generation: Option<u64>,
    /// Which process of its machine this is, if it says so.
    pub process: Option<&'a ProcessIdentity>,
}

/// A runner's question whether the first program may start.
#[derive(Debug, Clone, Copy)]
pub struct StartCall<'a> {
    /// Which runner asks.
    pub holder: &'a RunnerId,
    /// Under which lease.
    pub lease: &'a LeaseKey,
    /// What it recorded so far and has not sent.
    pub events: &'a [ChainedEvent],
    /// Names this start, so that the same question again gets the same answer.
    pub start_id: Option<&'a str>,
}

impl Holder<'_> {
    /// Returns what the store keeps of it, when its lease begins now.
    fn owner(&self, now: Timestamp) -> Owner {
        let lease_ms = u64::try_from(self.terms.lease.as_millis()).unwrap_or(u64::MAX);
        Owner {
            liveness: self.liveness.map(ToOwned::to_owned),
            runner: self.id.to_string(),
            at: now,
            lease_ms,
            disconnect_ms: self.terms.disconnect.to_wire_ms(),
            generation: self.generation,
            process: self.process.cloned(),
        }
    }
}

/// Contract and chain of a run on its way.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) epoch: u64,
    pub(crate) contract: Contract,
    pub(crate) chain: Chain,
}

/// Contracts and chains of runs on their way, within bounds.
#[derive(Debug, Default)]
pub(crate) struct UnderwayRuns {
    runs: HashMap<RunId, Held>,
    bytes: u64,
}

pub(crate) type Underway = Mutex<UnderwayRuns>;

impl UnderwayRuns {
    /// Keeps a run; where it does not fit it is read from the store when it is wanted.
    fn keep(&mut self, run: &RunId, held: Held) {
        self.remove(run);
        let bytes = self.bytes + held.chain.size();
        if self.runs.len() < MAX_UNDERWAY && bytes <= MAX_UNDERWAY_BYTES {
            self.bytes = bytes;
            self.runs.insert(run.clone(), held);
        }
    }

    fn remove(&mut self, run: &RunId) -> Option<Held> {
        let held = self.runs.remove(run)?;
        self.bytes = self.bytes.saturating_sub(held.chain.size());
        Some(held)
    }
}

impl EmbeddedPlane {
    /// Leases one queued run; `epoch` is the number of its last lease.
    ///
    /// # Errors
    /// [`PlaneError::Fenced`] when it is not queued any more, [`PlaneError::Refused`] when its
    /// contract has expired; then it is still queued.
    pub fn lease_to(
        &self,
        holder: &Holder<'_>,
        run: &RunId,
        epoch: u64,
    ) -> Result<Lease, PlaneError> {
        let (lease, owner, event) = self.give(holder, &LeaseKey { run: run.clone(), epoch })?;
        self.store().claim(run, epoch, (owner, rows(&[event]))).map_err(store_error(run))?;
        self.heard(&lease.key);
        Ok(lease)
    }

    /// Leases a run that this process submitted for itself and nobody else has seen: it is written
    /// together with its start.
    pub(crate) fn lease_own(&self, holder: &Holder<'_>, run: &RunId) -> Result<Lease, PlaneError> {
        let (lease, owner, event) = self.give(holder, &LeaseKey { run: run.clone(), epoch: 0 })?;
        self.store().claim_own(run, (owner, rows(&[event]))).map_err(store_error(run))?;
        self.remember(lease.clone());
        Ok(lease)
    }

    /// Makes the lease that follows `last`, and what the store keeps of it.
    fn give(
        &self,
        holder: &Holder<'_>,
        last: &LeaseKey,
    ) -> Result<(Lease, Owner, ChainedEvent), PlaneError> {
        let now = self.now();
        let Held { contract, mut chain, .. } = self.take_held(last)?;
        check_live(&contract, now)?;
        let key = LeaseKey { run: last.run.clone(), epoch: last.epoch + 1 };
        let claimed = claimed_by(holder, key.epoch);
        let event = chain.append(now, &claimed).map_err(PlaneError::failed)?.clone();
        let owner = holder.owner(now);
        Ok((Lease { key, contract, chain, policy_hash: self.policy_hash() }, owner, event))
    }

    /// Leases one queued run to a runner that will not say when it starts: the lease is the
    /// start, and the secrets come with it.
    ///
    /// # Errors
    /// [`PlaneError::Refused`] when the run may not start any more; it is still queued.
    pub fn lease_started(
        &self,
        holder: &Holder<'_>,
        run: &RunId,
        epoch: u64,
    ) -> Result<(Lease, Vec<SecretValue>), PlaneError> {
        let now = self.now();
        let Held { contract, chain, .. } = self.take_held(&LeaseKey { run: run.clone(), epoch })?;
        let secrets = self.release(&contract, now)?;
        let key = LeaseKey { run: run.clone(), epoch: epoch + 1 };
        let owner = holder.owner(now);
        let claimed = claimed_by(holder, key.epoch);
        let start = StartEvents::of(&contract, (&key, None), chain, now);
        let extended = Arc::clone(&start.extended);
        let build = move |lamport| start.build(Some(&claimed), Vec::new(), lamport);
        self.store().claim_started(&key, owner, build).map_err(store_error(run))?;
        self.heard(&key);
        let (chain, _) = take_extended(&extended)?;
        Ok((Lease { key, contract, chain, policy_hash: self.policy_hash() }, secrets))
    }

    /// Records further events of the runner. The same events again are no change.
    ///
    /// # Errors
    /// [`PlaneError`] when the events do not follow or the lease is over.
    pub fn append_events(
        &self,
        holder: &RunnerId,
        lease: &LeaseKey,
        events: &[ChainedEvent],
    ) -> Result<(), PlaneError> {
        let mut held = self.take_held(lease)?;
        check_holder(holder, lease, &held.chain)?;
        self.extend(holder, lease, (&mut held.chain, events))?;
        check_limits(&held.chain, Phase::Before)?;
        let durability = if self.is_service() { Durability::Now } else { Durability::WithNext };
        self.store()
            .append_with(durability, lease, rows(events))
            .map_err(store_error(&lease.run))?;
        self.heard(lease);
        self.keep_held(&lease.run, held);
        Ok(())
    }

    /// Extends a lease; returns who wants the run stopped, if somebody does.
    ///
    /// # Errors
    /// [`PlaneError::Fenced`] when the lease is over.
    pub fn renew_lease(&self, lease: &LeaseKey) -> Result<Option<ActorRef>, PlaneError> {
        let until = self.now().plus_ms(LEASE_MS);
        let stop = self.store().renew(&lease.run, lease.epoch, until);
        let stop = stop.map_err(store_error(&lease.run))?;
        self.heard(lease);
        Ok(stop.map(|label| actor_of(&label)))
    }

    /// Ends a run: records the last events and the receipt, and returns it countersigned. The
    /// same receipt again is no change; a receipt that is refused leaves the lease as it was.
    ///
    /// # Errors
    /// [`PlaneError::Refused`] when the receipt does not follow from contract and chain.
    pub fn complete_run(
        &self,
        holder: &Holder<'_>,
        lease: &LeaseKey,
        (events, receipt): (&[ChainedEvent], Receipt),
    ) -> Result<Receipt, PlaneError> {
        let mut held = self.take_held(lease)?;
        check_holder(holder.id, lease, &held.chain)?;
        self.extend(holder.id, lease, (&mut held.chain, events))?;
        check_limits(&held.chain, Phase::End)?;
        let receipt = self.check_ending(holder, lease, (held, receipt))?;
        let signed = receipt
            .countersign(Signer::Plane, self.home().plane_key())
            .map_err(PlaneError::failed)?;
        let blobs = self
            .finished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(lease)
            .unwrap_or_default();
        let completion = Completion {
            state: state_of(signed.body().status),
            events: rows(events),
            receipt_hash: signed.hash(),
            receipt: text(signed.raw()),
            blobs,
            at: self.now(),
        };
        self.store()
            .complete(&lease.run, lease.epoch, completion)
            .map_err(store_error(&lease.run))?;
        self.lease_table().ended(lease);
        Ok(signed)
    }

    /// Notes that the runner of a lease was heard just now.
    fn heard(&self, lease: &LeaseKey) {
        let now = self.time().moment();
        self.lease_table().heard(now, lease);
    }

    /// Returns for how long this plane has been running, its pauses left out.
    pub fn running_time(&self) -> Duration {
        let now = self.time().moment();
        self.lease_table().elapsed(now)
    }

    /// Returns how much is left of a lease that lasts `lease` without renewal.
    #[must_use]
    pub fn lease_left(&self, key: &LeaseKey, lease: Duration) -> Duration {
        let now = self.time().moment();
        self.lease_table().time_left(now, key, lease)
    }

    /// Returns the values of the contract's secrets after checking that it may start now.
    fn release(&self, contract: &Contract, now: Timestamp) -> Result<Vec<SecretValue>, PlaneError> {
        let body = contract.body();
        check_live(contract, now)?;
        if body.policy_hash != self.policy_hash() {
            return Err(PlaneError::Refused {
                failure: FailureClass::PolicyDenied,
                message: "the policy changed since this was decided".to_owned(),
            });
        }
        let names: Vec<_> = body.secrets.iter().map(|claim| claim.name.clone()).collect();
        self.values_of(&names)
    }

    fn values_of(&self, names: &[SecretName]) -> Result<Vec<SecretValue>, PlaneError> {
        let values = self.secrets().release(names).map_err(secrets_error)?;
        let value = |secret: crate::secrets::ReleasedSecret| SecretValue {
            name: secret.name,
            value: secret.value.to_string(),
        };
        Ok(values.into_iter().map(value).collect())
    }

    /// Takes contract and chain of a run out of memory, or reads them. Whoever succeeds puts
    /// them back; whoever fails leaves them to be read again.
    pub(crate) fn take_held(&self, lease: &LeaseKey) -> Result<Held, PlaneError> {
        let known = self.underway.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease.run);
        if let Some(held) = known
            && held.epoch == lease.epoch
        {
            return Ok(held);
        }
        let row = self.store().run(&lease.run).map_err(store_error(&lease.run))?;
        if row.epoch != lease.epoch {
            return Err(PlaneError::Fenced(lease.run.clone()));
        }
        let contract = self.contract_of(&row).map_err(PlaneError::failed)?;
        let chain = self.chain_of(&lease.run, &contract).map_err(PlaneError::failed)?;
        Ok(Held { epoch: row.epoch, contract, chain })
    }

    pub(crate) fn keep_held(&self, run: &RunId, held: Held) {
        let mut underway = self.underway.lock().unwrap_or_else(PoisonError::into_inner);
        underway.keep(run, held);
    }

    /// Whether contract and chain of this lease are in memory.
    pub(crate) fn is_held(&self, run: &RunId, epoch: u64) -> bool {
        let underway = self.underway.lock().unwrap_or_else(PoisonError::into_inner);
        underway.runs.get(run).is_some_and(|held| held.epoch == epoch)
    }

    pub(crate) fn forget_held(&self, run: &RunId) {
        self.underway.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }

    /// Keeps contract and chain of a lease in memory until its next write.
    pub fn remember(&self, lease: Lease) {
        let Lease { key, contract, chain, .. } = lease;
        self.keep_held(&key.run, Held { epoch: key.epoch, contract, chain });
    }
}

fn claimed_by(holder: &Holder<'_>, epoch: u64) -> Event {
    Event::RunClaimed {
        runner_id: holder.id.clone(),
        runner_key_id: holder.key.id().clone(),
        epoch: Some(epoch),
        attestation_tier: None,
    }
}

/// Checks that a contract has not expired: a lease after its end would be evidence against the
/// plane.
fn check_live(contract: &Contract, now: Timestamp) -> Result<(), PlaneError> {
    if contract.is_live(now) {
        return Ok(());
    }
    let expires_at = contract.body().expires_at;
    Err(refused(&format!(
        "the contract has expired: it was valid until {expires_at}; submit the request again"
    )))
}

/// Checks that the chain says that this runner has this lease.
///
/// A lease given just before a power cut may be forgotten and its number given again; then two
/// runners show the same number, and the chain knows only one of them.
fn check_holder(holder: &RunnerId, lease: &LeaseKey, chain: &Chain) -> Result<(), PlaneError> {
    let claimed = chain.events().iter().rev().find_map(|event| match event.event() {
        Event::RunClaimed { runner_id, epoch, .. } => Some((runner_id, *epoch)),
        _ => None,
    });
    if claimed == Some((holder, Some(lease.epoch))) {
        return Ok(());
    }
    Err(PlaneError::Fenced(lease.run.clone()))
}

const fn state_of(status: ReceiptStatus) -> RunState {
    match status {
        ReceiptStatus::Completed => RunState::Completed,
        ReceiptStatus::Failed => RunState::Failed,
        ReceiptStatus::Cancelled => RunState::Cancelled,
    }
}

/// Returns the actor of a label like `human:alice`.
pub(crate) fn actor_of(label: &str) -> ActorRef {
    match label.split_once(':') {
        Some(("service", id)) => ActorRef { kind: ActorKind::Service, id: id.to_owned() },
        Some((_, id)) => ActorRef { kind: ActorKind::Human, id: id.to_owned() },
        None => ActorRef { kind: ActorKind::Human, id: label.to_owned() },
    }
}

pub(crate) fn refused(message: &str) -> PlaneError {
    PlaneError::Refused { failure: FailureClass::SessionFailed, message: message.to_owned() }
}

fn secrets_error(error: SecretsError) -> PlaneError {
    PlaneError::Refused { failure: FailureClass::SecretReleaseDenied, message: error.to_string() }
}

pub(crate) fn store_error(run: &RunId) -> impl Fn(StoreError) -> PlaneError + '_ {
    move |error| match error {
        StoreError::Conflict { .. } => PlaneError::Fenced(run.clone()),
        StoreError::Fork { .. } | StoreError::UnknownRun(_) => refused(&error.to_string()),
        other => PlaneError::failed(other),
    }
}
