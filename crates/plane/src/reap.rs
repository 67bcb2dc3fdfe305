//! Seals what a killed process left behind: every run that was started has exactly one receipt.

use std::fs;
use std::time::Duration;

use warrant_protocol::event::FailureClass;
use warrant_protocol::port::{LeaseKey, PlaneError};
use warrant_protocol::wire::{DisconnectRule, LEASE_MS};
use warrant_protocol::{Event, Outcome, RunId, RunState, Timestamp};

use crate::embedded::{EmbeddedError, EmbeddedPlane};
use crate::lease_table::{HolderStatus, LeaseFacts, LeaseTerms, LeaseVerdict, LossCause};
use crate::leases::{Held, store_error};
use crate::liveness;
use crate::notary::{Refusal, rows};
use crate::reception::sealing;
use crate::store::{LiveRun, RunRow, StoreError};

/// What the end of leases led to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Queued again: nothing had started.
    pub requeued: Vec<RunId>,
    /// Sealed: something may have happened.
    pub lost: Vec<RunId>,
}

impl EmbeddedPlane {
    /// Seals every run whose process is gone, and what waited for approval too long.
    /// Returns which ones.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store failed; what was sealed until then stays sealed.
    pub fn seal_lost(&self) -> Result<Vec<RunId>, EmbeddedError> {
        let live = self.store().live()?;
        let mut sealed = Vec::new();
        if live.is_empty() {
            // Who was killed before its run was written left nothing but its sign of life.
            liveness::sweep(&self.home().data().join("alive"))?;
            return Ok(sealed);
        }
        let now = self.now();
        for run in live {
            let is_over = match run.state {
                RunState::AwaitingApproval => run.deadline.is_some_and(|until| until <= now),
                _ => self.is_abandoned(&run, now)?,
            };
            if !is_over {
                continue;
            }
            // First, because whoever is killed after the seal leaves nobody who would look here
            // again, and what lies here is as the program wrote it, secrets and all.
            self.remove_session(&run.id);
            if self.seal_one(&run, LossCause::HolderGone)? {
                sealed.push(run.id);
            }
        }
        liveness::sweep(&self.home().data().join("alive"))?;
        Ok(sealed)
    }

    /// Ends the leases that ran out: what had not started is queued again, what had is sealed as
    /// lost. `holder_of` says whether the process that took a run can still be there.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store failed; what was ended until then stays ended.
    pub fn reap_leases(
        &self,
        holder_of: impl Fn(&LiveRun) -> HolderStatus,
    ) -> Result<Reaped, EmbeddedError> {
        let mut reaped = Reaped::default();
        // Also where nobody holds anything: time that nobody looks at is a pause.
        self.running_time();
        let live = self.store().leased_remotely()?;
        let key_of = |run: &LiveRun| LeaseKey { run: run.id.clone(), epoch: run.epoch };
        self.lease_table().keep_only(&live.iter().map(key_of).collect());
        for run in live {
            let (key, holder) = (key_of(&run), holder_of(&run));
            let facts = LeaseFacts { key: &key, state: run.state, terms: terms_of(&run), holder };
            let now = self.time().moment();
            let verdict = self.lease_table().judge(now, facts);
            match verdict {
                LeaseVerdict::Holds => {}
                LeaseVerdict::Requeue(_) => {
                    if self.requeue(&run)? {
                        reaped.requeued.push(run.id);
                    }
                }
                LeaseVerdict::Lost(cause) => {
                    if self.seal_one(&run, cause)? {
                        reaped.lost.push(run.id);
                    }
                }
            }
        }
        Ok(reaped)
    }

    /// Puts a run that was not started back into the queue; false when somebody was faster.
    fn requeue(&self, run: &LiveRun) -> Result<bool, EmbeddedError> {
        let now = self.now();
        let row = self.store().run(&run.id)?;
        let contract = self.contract_of(&row)?;
        let mut chain = self.chain_of(&run.id, &contract)?;
        let event = Event::RunRequeued { epoch: run.epoch };
        let event = chain.append(now, &event).map_err(crate::notary::NotaryError::from)?.clone();
        self.forget_held(&run.id);
        let lease = LeaseKey { run: run.id.clone(), epoch: run.epoch };
        match self.store().requeue(&lease, now, rows(&[event])) {
            Ok(()) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a run that its runner gave back, not started, into the queue again. The same again is
    /// no change.
    ///
    /// # Errors
    /// [`PlaneError::Fenced`] when the lease is over or it was started.
    pub fn hand_back_lease(&self, lease: &LeaseKey) -> Result<(), PlaneError> {
        match self.hand_back_now(lease) {
            Err(PlaneError::Fenced(_)) if self.was_requeued(lease)? => Ok(()),
            other => other,
        }
    }

    fn hand_back_now(&self, lease: &LeaseKey) -> Result<(), PlaneError> {
        let now = self.now();
        let held = self.take_held(lease)?;
        let mut chain = held.chain;
        let event = Event::RunRequeued { epoch: lease.epoch };
        let event = chain.append(now, &event).map_err(PlaneError::failed)?.clone();
        let requeued = self.store().requeue(lease, now, rows(&[event]));
        requeued.map_err(store_error(&lease.run))?;
        self.lease_table().ended(lease);
        self.keep_held(&lease.run, Held { epoch: held.epoch, contract: held.contract, chain });
        Ok(())
    }

    /// Returns whether the chain of a run says that this lease of it ended before the start.
    fn was_requeued(&self, lease: &LeaseKey) -> Result<bool, PlaneError> {
        let row = self.store().run(&lease.run).map_err(store_error(&lease.run))?;
        let contract = self.contract_of(&row).map_err(PlaneError::failed)?;
        let chain = self.chain_of(&lease.run, &contract).map_err(PlaneError::failed)?;
        let requeued = Event::RunRequeued { epoch: lease.epoch };
        Ok(chain.events().iter().any(|event| *event.event() == requeued))
    }

    /// Seals a queued run that may not start any more.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store failed.
    pub fn refuse_queued(
        &self,
        run: &RunId,
        failure: FailureClass,
        message: &str,
    ) -> Result<(), EmbeddedError> {
        let row = self.store().run(run)?;
        if row.state != RunState::Queued {
            return Ok(());
        }
        let now = self.now();
        let contract = self.contract_of(&row)?;
        let mut chain = self.chain_of(run, &contract)?;
        let from = chain.events().len();
        let state = if contract.is_live(now) {
            RunState::Failed
        } else {
            let expired = Event::ContractExpired { expires_at: contract.body().expires_at };
            chain.append(now, &expired).map_err(crate::notary::NotaryError::from)?;
            RunState::Expired
        };
        let outcome = match failure {
            FailureClass::PolicyDenied | FailureClass::SecretReleaseDenied => Outcome::Denied,
            _ => Outcome::Failed,
        };
        let refusal = Refusal {
            events: Vec::new(),
            outcome,
            failure,
            message: message.to_owned(),
            cancelled_by: None,
        };
        let sealed = self.notary(now).seal(contract, chain, &refusal)?;
        self.keep_seal(&row, sealing(&sealed, state, from.max(1), now))?;
        Ok(())
    }

    /// Whether nobody works on a run any more. A queued run of this machine belongs to the
    /// process that submitted it; the contract's end is its last deadline.
    fn is_abandoned(&self, run: &LiveRun, now: Timestamp) -> Result<bool, EmbeddedError> {
        match &run.owner {
            Some(owner) if owner == self.sign_of_life() => Ok(false),
            Some(owner) => Ok(liveness::is_gone(&self.home().data().join("alive"), owner)),
            // Leases that came over the network end by time, see `reap_leases`.
            None if run.state != RunState::Queued => Ok(false),
            None => {
                let row = self.store().run(&run.id)?;
                Ok(!self.contract_of(&row)?.is_live(now))
            }
        }
    }

    /// Seals one run; false when somebody else was faster.
    fn seal_one(&self, run: &LiveRun, cause: LossCause) -> Result<bool, EmbeddedError> {
        let now = self.now();
        let row = self.store().run(&run.id)?;
        let sealed = match run.state {
            RunState::AwaitingApproval => return self.expire(&row),
            RunState::Queued => {
                let contract = self.contract_of(&row)?;
                let expires_at = contract.body().expires_at;
                let events = vec![Event::ContractExpired { expires_at }];
                let message = "the contract expired before anything started";
                (RunState::Expired, contract, events, (Outcome::Failed, message))
            }
            RunState::Leased => {
                let contract = self.contract_of(&row)?;
                let message = "the process that held this run ended before it started";
                (RunState::Failed, contract, Vec::new(), (Outcome::Failed, message))
            }
            _ => {
                let contract = self.contract_of(&row)?;
                let lost = Event::RunLost { epoch: row.epoch, last_heard_at: row.updated_at };
                let stopping = row.stop_by.as_deref().map(|label| {
                    let actor = crate::leases::actor_of(label);
                    Event::RunStopping { actor, reason: None }
                });
                let message = cause.as_str();
                let events = stopping.into_iter().chain([lost]).collect();
                (RunState::Lost, contract, events, (Outcome::Lost, message))
            }
        };
        let (state, contract, events, (outcome, message)) = sealed;
        let mut chain = self.chain_of(&run.id, &contract)?;
        let from = chain.events().len();
        for event in &events {
            chain.append(now, event).map_err(crate::notary::NotaryError::from)?;
        }
        let refusal = Refusal {
            events: Vec::new(),
            outcome,
            failure: FailureClass::SessionFailed,
            message: message.to_owned(),
            cancelled_by: None,
        };
        let sealed = self.notary(now).seal(contract, chain, &refusal)?;
        let sealing = sealing(&sealed, state, from.max(1), now);
        self.keep_seal(&row, sealing)
    }

    pub(crate) fn keep_seal(
        &self,
        row: &RunRow,
        sealing: crate::store::Sealing,
    ) -> Result<bool, EmbeddedError> {
        self.forget_held(&row.id);
        match self.store().seal(&row.id, row.epoch, sealing) {
            Ok(()) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what a run kept on disk while it was running.
    fn remove_session(&self, run: &RunId) {
        let dir = self.home().sessions().join(run.as_str());
        // Leftovers cost space, not truth.
        let _ = fs::remove_dir_all(dir);
    }
}

/// Returns what was agreed with the runner of a lease.
fn terms_of(run: &LiveRun) -> LeaseTerms {
    LeaseTerms {
        lease: Duration::from_millis(run.lease_ms.unwrap_or(LEASE_MS)),
        disconnect: DisconnectRule::from_wire_ms(run.disconnect_ms),
    }
}
