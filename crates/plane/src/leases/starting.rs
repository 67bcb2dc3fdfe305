//! The start of a leased run: recorded durably first, then the secrets leave, and the same start
//! again gets the same answer.

use std::sync::{Arc, Mutex, PoisonError};

use warrant_protocol::port::{LeaseKey, PlaneError, Started};
use warrant_protocol::{Chain, ChainedEvent, Contract, Event, Timestamp};

use super::{Held, StartCall, check_holder, store_error};
use crate::chain_limits::{Phase, check_limits};
use crate::embedded::EmbeddedPlane;
use crate::notary::rows;
use crate::request_context::keep_cause;
use crate::store::{EventRow, StoreError};

impl EmbeddedPlane {
    /// Records the runner's events so far and that the run starts now, durably, and only then
    /// hands the secrets over. The same start again, by its id, gets the same answer as long as
    /// the run is held by that start.
    ///
    /// # Errors
    /// [`PlaneError::Refused`] when the run may not start any more.
    pub fn start_lease(&self, call: &StartCall<'_>) -> Result<Started, PlaneError> {
        match self.start_once(call) {
            // The same question may have arrived twice at the same time; the answer to the other
            // one can be read once everything before it is written.
            Err(PlaneError::Fenced(run)) if call.start_id.is_some() => {
                self.store().settle().map_err(store_error(&call.lease.run))?;
                let held = self.take_held(call.lease)?;
                check_holder(call.holder, call.lease, &held.chain)?;
                self.started_before(call, &held)?.ok_or(PlaneError::Fenced(run))
            }
            other => other,
        }
    }

    fn start_once(&self, call: &StartCall<'_>) -> Result<Started, PlaneError> {
        let held = self.take_held(call.lease)?;
        check_holder(call.holder, call.lease, &held.chain)?;
        match self.started_before(call, &held)? {
            Some(started) => {
                self.keep_held(&call.lease.run, held);
                Ok(started)
            }
            None => self.start_now(call, held),
        }
    }

    fn start_now(&self, call: &StartCall<'_>, mut held: Held) -> Result<Started, PlaneError> {
        let (lease, now) = (call.lease, self.now());
        self.extend(call.holder, lease, (&mut held.chain, call.events))?;
        check_limits(&held.chain, Phase::Before)?;
        let secrets = self.release(&held.contract, now)?;
        let start = StartEvents::of(&held.contract, (lease, call.start_id), held.chain, now);
        let extended = Arc::clone(&start.extended);
        let runner_rows = rows(call.events);
        let build = move |lamport| start.build(None, runner_rows, lamport);
        self.store().start(lease, now, build).map_err(store_error(&lease.run))?;
        self.heard(lease);
        let (chain, events) = take_extended(&extended)?;
        let (epoch, contract) = (lease.epoch, held.contract);
        self.keep_held(&lease.run, Held { epoch, contract, chain });
        // SECURITY: only now, after the start is durable, do the values leave.
        Ok(Started { events, secrets })
    }

    /// Returns the answer to a start that was recorded before under the same id, if there was one
    /// and its run is still held by it.
    fn started_before(
        &self,
        call: &StartCall<'_>,
        held: &Held,
    ) -> Result<Option<Started>, PlaneError> {
        let lease = call.lease;
        let Some(wanted) = call.start_id else { return Ok(None) };
        let events = held.chain.events();
        let is_same = |event: &ChainedEvent| match event.event() {
            Event::RunStarted { epoch, start_id, .. } => {
                *epoch == lease.epoch && start_id.as_deref() == Some(wanted)
            }
            _ => false,
        };
        let Some(place) = events.iter().position(is_same) else { return Ok(None) };
        // SECURITY: secrets go to started runs alone; one that ended gets none again.
        if !self.store().holds(&lease.run, lease.epoch).map_err(PlaneError::failed)? {
            return Err(PlaneError::Fenced(lease.run.clone()));
        }
        self.extend(call.holder, lease, (&mut held.chain.clone(), call.events))?;
        let recorded = events.get(place..).unwrap_or_default();
        let is_of_start = |event: &&ChainedEvent| {
            matches!(event.event(), Event::RunStarted { .. } | Event::SecretReleased { .. })
        };
        let recorded = recorded.iter().take_while(is_of_start).cloned().collect();
        let claims = held.contract.body().secrets.iter();
        let names: Vec<_> = claims.map(|claim| claim.name.clone()).collect();
        Ok(Some(Started { events: recorded, secrets: self.values_of(&names)? }))
    }
}

/// The chain after a start, and what the plane added; filled inside the transaction.
pub(super) type Extended = Mutex<Option<(Chain, Vec<ChainedEvent>)>>;

/// Makes the plane's own events of a start, inside the transaction that records it.
pub(super) struct StartEvents {
    chain: Chain,
    now: Timestamp,
    epoch: u64,
    start_id: Option<String>,
    releases: Vec<Event>,
    pub(super) extended: Arc<Extended>,
}

impl StartEvents {
    pub(super) fn of(
        contract: &Contract,
        (lease, start_id): (&LeaseKey, Option<&str>),
        chain: Chain,
        now: Timestamp,
    ) -> Self {
        let release = |claim: &warrant_protocol::request::SecretClaim| Event::SecretReleased {
            name: claim.name.clone(),
            scope: claim.scope.clone(),
        };
        let releases = contract.body().secrets.iter().map(release).collect();
        let (epoch, start_id) = (lease.epoch, start_id.map(ToOwned::to_owned));
        Self { chain, now, epoch, start_id, releases, extended: Arc::default() }
    }

    pub(super) fn build(
        mut self,
        claimed: Option<&Event>,
        runner_rows: Vec<EventRow>,
        lamport: u64,
    ) -> Result<Vec<EventRow>, StoreError> {
        let from = self.chain.events().len();
        let start_id = self.start_id.clone();
        let started = Event::RunStarted { epoch: self.epoch, lamport: Some(lamport), start_id };
        for event in claimed.into_iter().chain([&started]).chain(&self.releases) {
            let added = self.chain.append(self.now, event);
            added.map_err(|error| keep_cause(&error, StoreError::Malformed("event")))?;
        }
        let new = self.chain.events().get(from..).unwrap_or_default().to_vec();
        let all = runner_rows.into_iter().chain(rows(&new)).collect();
        *self.extended.lock().unwrap_or_else(PoisonError::into_inner) = Some((self.chain, new));
        Ok(all)
    }
}

pub(super) fn take_extended(extended: &Extended) -> Result<(Chain, Vec<ChainedEvent>), PlaneError> {
    let taken = extended.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| PlaneError::failed(StoreError::Commit))
}
