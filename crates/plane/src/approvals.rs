//! Approvals on one machine: people say yes or no to one exact request.
//!
//! An approval is a signed statement over the canonical request and the policy. It counts once,
//! until it expires, only from those the policy names, and never from whoever asked. Someone with
//! a registered key signs the statement themselves ([`EmbeddedPlane::statement`], then
//! [`EmbeddedPlane::approve`]); for someone the caller authenticated in another way (another user
//! of the system) the plane signs ([`EmbeddedPlane::approve_authenticated`]).

mod record;

use std::collections::BTreeSet;
use std::io;

use thiserror::Error;
use warrant_protocol::approval::{Approval, ApprovalBody, ApprovalProblem};
use warrant_protocol::event::FailureClass;
use warrant_protocol::request::ActorRef;
use warrant_protocol::{
    Digest, Event, KeyRole, Outcome, RunId, RunRequest, RunState, Signed, Signer, Timestamp,
    TrustedKeys,
};

use crate::embedded::{EmbeddedError, EmbeddedPlane};
use crate::home::HomeError;
use crate::liveness::{Neighbor, UnreachableError};
use crate::notary::{ApprovalRequirement, Case, Judgment, NotaryError, Refusal};
use crate::random;
use crate::reception::sealing;
use crate::request_context::keep_cause;
use crate::store::{RunFilter, RunRow, StoreError};

/// How long a statement counts: an hour, and never beyond the request's own deadline.
const STATEMENT_MS: u64 = 3_600_000;

/// A request that waits for people.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The run.
    pub run: RunId,
    /// The exact request.
    pub request: RunRequest,
    /// Its digest.
    pub request_hash: Digest,
    /// What was decided, who may approve, and how many must.
    pub judgment: Judgment,
    /// Until when.
    pub deadline: Timestamp,
    /// Who approved so far.
    pub approved_by: Vec<String>,
}

impl Waiting {
    fn case(&self) -> Case<'_> {
        Case {
            run: &self.run,
            request: &self.request,
            request_hash: self.request_hash,
            judgment: &self.judgment,
        }
    }
}

/// What an approval led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approved {
    /// Enough people said yes: the contract is signed, the run is queued.
    Issued,
    /// These requirements still need somebody.
    Missing(Vec<String>),
}

/// What a wish to stop led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Nothing had started; the run is over.
    Ended,
    /// Its runner will hear of it with its next sign of life.
    Asked,
}

/// Why a run of this machine could not be stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// It is over, or the plane failed.
    #[error(transparent)]
    Cancel(#[from] ApproveError),
    /// It goes on in another process.
    #[error("the run goes on")]
    Unreachable(#[from] UnreachableError),
}

/// Why an approval or a refusal was not taken.
#[derive(Debug, Error)]
pub enum ApproveError {
    /// The plane failed.
    #[error(transparent)]
    Plane(#[from] EmbeddedError),
    /// The store failed, or the run does not wait.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing could be signed.
    #[error(transparent)]
    Notary(#[from] NotaryError),
    /// The home cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// No randomness or no clock.
    #[error("the system has no randomness or no clock")]
    System(#[from] io::Error),
    /// It waited too long; it is sealed as expired.
    #[error("run {0} waited too long for approval")]
    Expired(RunId),
    /// The policy changed since; ask again.
    #[error("the policy changed since {0} was asked about")]
    PolicyChanged(RunId),
    /// The policy names others.
    #[error("{actor} may not approve this: the policy names {named}")]
    NotAnApprover {
        /// Who tried.
        actor: String,
        /// Who may.
        named: String,
    },
    /// Nobody approves their own request.
    #[error("{0} asked for this and cannot approve it")]
    OwnRequest(String),
    /// Their key is not registered here.
    #[error("no key is registered for the approver {0}")]
    NoKey(String),
    /// The statement does not fit.
    #[error("the approval does not count: {}", list(problems))]
    Statement {
        /// Everything that is wrong.
        problems: Vec<ApprovalProblem>,
    },
}

fn list(problems: &[ApprovalProblem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl EmbeddedPlane {
    /// Returns everything that waits for people, newest first.
    ///
    /// # Errors
    /// [`ApproveError`] when the store cannot be read.
    pub fn waiting(&self) -> Result<Vec<Waiting>, ApproveError> {
        let state = Some(RunState::AwaitingApproval);
        let filter = RunFilter { state, before: None, limit: Some(1000) };
        let rows = self.store().list(&filter)?.runs;
        rows.iter().map(|row| self.read_waiting(row)).collect()
    }

    /// Returns the statement that someone would have to sign, or that they signed already.
    ///
    /// # Errors
    /// [`ApproveError`] when the run does not wait or this person may not approve it.
    pub fn statement(&self, run: &RunId, actor: &ActorRef) -> Result<ApprovalBody, ApproveError> {
        let now = self.now();
        if let Some(earlier) = self.earlier_approval(run, actor, now)? {
            return Ok(earlier.approval.body().clone());
        }
        let (row, waiting) = self.open_question(run, now)?;
        let level = self.level_of(&waiting, actor)?;
        let expires_min = waiting.judgment.requirements.iter().filter_map(|r| r.expires_min).min();
        let lasts_ms = expires_min.map_or(STATEMENT_MS, |minutes| u64::from(minutes) * 60_000);
        let nonce = format!("{:032x}", u128::from_be_bytes(random::bytes()?));
        Ok(ApprovalBody {
            run_id: run.clone(),
            request_hash: row.request_hash,
            policy_hash: row.policy_hash,
            approver: actor.clone(),
            level,
            issued_at: now,
            expires_at: now.plus_ms(lasts_ms).min(waiting.deadline),
            nonce,
        })
    }

    /// Takes a statement that its approver signed with their registered key. Again, it gets the
    /// same answer and changes nothing.
    ///
    /// # Errors
    /// [`ApproveError`] naming everything that is wrong with it.
    pub fn approve(&self, run: &RunId, approval: &Approval) -> Result<Approved, ApproveError> {
        let name = &approval.body().approver.id;
        let key = self.home().approver(name)?;
        let key = key.ok_or_else(|| ApproveError::NoKey(name.clone()))?;
        self.take_approval(run, approval, TrustedKeys::none().and(KeyRole::Approver, key))
    }

    /// Approves for someone whom the caller authenticated; the plane signs that it did. Again, it
    /// gets the same answer and changes nothing.
    ///
    /// # Errors
    /// [`ApproveError`] when the run does not wait or this person may not approve it.
    pub fn approve_authenticated(
        &self,
        run: &RunId,
        actor: &ActorRef,
    ) -> Result<Approved, ApproveError> {
        // The caller vouches for who this is, so what they approved before needs no other proof.
        if let Some(earlier) = self.earlier_approval(run, actor, self.now())?
            && earlier.is_used
        {
            return Ok(Approved::Issued);
        }
        let body = self.statement(run, actor)?;
        let key = self.home().plane_key();
        let approval = Signed::seal(&body, Signer::Plane, key).map_err(NotaryError::from)?;
        let trusted = TrustedKeys::none().and(KeyRole::Plane, key.public().clone());
        self.take_approval(run, &approval, trusted)
    }

    /// Says no for someone whom the caller authenticated. The run ends with a receipt. The same
    /// again is no change.
    ///
    /// # Errors
    /// [`ApproveError`] when the run does not wait any more.
    pub fn refuse(&self, run: &RunId, actor: &ActorRef, reason: &str) -> Result<(), ApproveError> {
        let now = self.now();
        if self.was_refused_by(run, actor, reason)? {
            return Ok(());
        }
        let (row, waiting) = self.open_question(run, now)?;
        let denied = Event::ApprovalDenied { actor: actor.clone(), reason: reason.to_owned() };
        let refusal = Refusal {
            events: vec![denied],
            outcome: Outcome::Denied,
            failure: FailureClass::PolicyDenied,
            message: format!("{} refused: {reason}", actor.label()),
            cancelled_by: None,
        };
        self.end_waiting(&row, &waiting, (&refusal, RunState::Denied))?;
        Ok(())
    }

    /// Cancels a run that nobody has started. The run ends with a receipt.
    ///
    /// # Errors
    /// [`ApproveError`] when it was started or is over.
    pub fn cancel(&self, run: &RunId, actor: &ActorRef) -> Result<(), ApproveError> {
        let now = self.now();
        let row = self.store().run(run)?;
        let refusal = Refusal {
            events: Vec::new(),
            outcome: Outcome::Cancelled,
            failure: FailureClass::SessionFailed,
            message: "cancelled before it started".to_owned(),
            cancelled_by: Some(actor.clone()),
        };
        let conflict = || {
            let (run, state) = (run.to_string(), row.state.to_string());
            ApproveError::Store(StoreError::Conflict { run, state })
        };
        let is_kept = match row.state {
            RunState::AwaitingApproval => {
                let waiting = self.read_waiting(&row)?;
                self.end_waiting(&row, &waiting, (&refusal, RunState::Cancelled))?
            }
            // Nothing was started, and the seal fences whoever holds the lease.
            RunState::Queued | RunState::Leased => {
                let contract = self.contract_of(&row)?;
                let chain = self.chain_of(run, &contract)?;
                let from = chain.events().len();
                let sealed = self.notary(now).seal(contract, chain, &refusal)?;
                self.keep_seal(&row, sealing(&sealed, RunState::Cancelled, from, now))?
            }
            _ => return Err(conflict()),
        };
        if is_kept { Ok(()) } else { Err(conflict()) }
    }

    /// Cancels a run, wherever it stands: what has not started ends at once, what runs is asked
    /// to stop.
    ///
    /// # Errors
    /// [`ApproveError`] when it is over.
    pub fn stop(&self, run: &RunId, actor: &ActorRef) -> Result<Stopped, ApproveError> {
        // A runner may start it between the look and the stop; then the second look asks it to.
        for _ in 0..3 {
            match self.store().run(run)?.state {
                RunState::Running | RunState::Stopping => {
                    let now = self.now();
                    match self.store().request_stop(run, &actor.label(), now) {
                        Ok(()) => return Ok(Stopped::Asked),
                        Err(StoreError::Conflict { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                _ => match self.cancel(run, actor) {
                    Ok(()) => return Ok(Stopped::Ended),
                    Err(ApproveError::Store(StoreError::Conflict { .. })) => {}
                    Err(error) => return Err(error),
                },
            }
        }
        let state = self.store().run(run)?.state.to_string();
        Err(StoreError::Conflict { run: run.to_string(), state }.into())
    }

    /// Cancels a run of this machine, wherever it stands: what has not started ends at once, and
    /// the process that performs it is asked to stop what runs.
    ///
    /// # Errors
    /// [`StopError`] when it is over, or when that process cannot be asked.
    pub fn stop_here(&self, run: &RunId, actor: &ActorRef) -> Result<Stopped, StopError> {
        let live = self.store().live().map_err(ApproveError::from)?;
        let is_running = |state| matches!(state, RunState::Running | RunState::Stopping);
        let running = live.into_iter().find(|one| one.id == *run && is_running(one.state));
        let neighbor = match running.and_then(|running| running.owner) {
            Some(owner) if owner != self.sign_of_life() => {
                Some(Neighbor::find(&self.home().data().join("alive"), &owner)?)
            }
            Some(_) | None => None,
        };
        let stopped = self.stop(run, actor)?;
        if let (Stopped::Asked, Some(neighbor)) = (stopped, neighbor) {
            neighbor.wake().map_err(UnreachableError::from)?;
        }
        Ok(stopped)
    }

    /// Seals a run that waited too long; false when somebody else was faster.
    pub(crate) fn expire(&self, row: &RunRow) -> Result<bool, EmbeddedError> {
        let damaged = |_| EmbeddedError::Damaged { what: "request", run: row.id.clone() };
        let waiting = self.read_waiting(row).map_err(damaged)?;
        let refusal = Refusal {
            events: Vec::new(),
            outcome: Outcome::ApprovalExpired,
            failure: FailureClass::ConsentTimeout,
            message: "nobody approved this in time".to_owned(),
            cancelled_by: None,
        };
        self.end_waiting(row, &waiting, (&refusal, RunState::Expired))
    }

    /// Returns a run that can still be approved, under the policy in force.
    fn open_question(
        &self,
        run: &RunId,
        now: Timestamp,
    ) -> Result<(RunRow, Waiting), ApproveError> {
        let row = self.store().run(run)?;
        if row.state != RunState::AwaitingApproval {
            let (run, state) = (run.to_string(), row.state.to_string());
            return Err(StoreError::Conflict { run, state }.into());
        }
        let waiting = self.read_waiting(&row)?;
        if waiting.deadline <= now {
            self.expire(&row)?;
            return Err(ApproveError::Expired(run.clone()));
        }
        if row.policy_hash != self.policy_hash() {
            return Err(ApproveError::PolicyChanged(run.clone()));
        }
        Ok((row, waiting))
    }

    fn read_waiting(&self, row: &RunRow) -> Result<Waiting, ApproveError> {
        let damaged = |what| EmbeddedError::Damaged { what, run: row.id.clone() };
        let request = serde_json::from_str(&row.request)
            .map_err(|error| keep_cause(&error, damaged("request")))?;
        let judgment = serde_json::from_str(&row.judgment)
            .map_err(|error| keep_cause(&error, damaged("judgment")))?;
        let approvals = self.store().approvals(&row.id)?;
        Ok(Waiting {
            run: row.id.clone(),
            request,
            request_hash: row.request_hash,
            judgment,
            deadline: row.deadline.ok_or_else(|| damaged("deadline"))?,
            approved_by: approvals.into_iter().map(|given| given.approver).collect(),
        })
    }

    /// Returns the highest level at which someone may approve a request.
    fn level_of(&self, waiting: &Waiting, actor: &ActorRef) -> Result<u8, ApproveError> {
        // SECURITY: the requester's name in the request is the authenticated one.
        if *actor == waiting.request.requested_by {
            return Err(ApproveError::OwnRequest(actor.label()));
        }
        let groups = self.groups_of(&actor.label());
        let requirements = &waiting.judgment.requirements;
        let named = requirements.iter().filter(|wanted| is_named_approver(wanted, actor, &groups));
        named.map(|wanted| wanted.level).max().ok_or_else(|| {
            let named: BTreeSet<_> =
                requirements.iter().flat_map(|wanted| &wanted.approvers).collect();
            let named: Vec<_> = named.into_iter().map(String::as_str).collect();
            ApproveError::NotAnApprover { actor: actor.label(), named: named.join(", ") }
        })
    }

    fn end_waiting(
        &self,
        row: &RunRow,
        waiting: &Waiting,
        (refusal, state): (&Refusal, RunState),
    ) -> Result<bool, EmbeddedError> {
        let now = self.now();
        let notary = self.notary(now);
        let sealed = notary.deny(&waiting.case(), refusal)?;
        self.keep_seal(row, sealing(&sealed, state, 0, now))
    }
}

/// Whether a requirement names somebody, directly or by one of their groups.
pub(crate) fn is_named_approver(
    requirement: &ApprovalRequirement,
    actor: &ActorRef,
    groups: &[String],
) -> bool {
    let is_in = |name: &str| groups.iter().any(|group| group == name);
    requirement.approvers.iter().any(|name| {
        name == "*"
            || *name == actor.id
            || *name == actor.label()
            || is_in(name.strip_prefix("group:").unwrap_or(name))
    })
}
