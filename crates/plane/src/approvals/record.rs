//! Takes approvals: a statement and the contract it leads to are kept in one transaction.
//!
//! ```text
//! statement ─► check ─► count with the others ─► enough?  ─► approval + contract + queued
//!     │                     ▲                       └ no  ─► approval
//!     └ by somebody who approved before ─► the answer they got then
//! ```
//!
//! Older versions kept approval and contract in two transactions. What was cut between them still
//! waits with all its approvals; [`EmbeddedPlane::issue_approved`] completes it.

use std::collections::BTreeSet;
use std::error::Error as _;

use warrant_protocol::approval::{Approval, ApprovalProblem, Wanted, check_approval};
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Event, RunId, RunState, Timestamp, TrustedKeys};

use super::{ApproveError, Approved, Waiting, is_named_approver};
use crate::embedded::{EmbeddedError, EmbeddedPlane};
use crate::notary::{ApprovalRequirement, GrantedApproval, rows};
use crate::store::{ApprovalRow, ApprovalStep, ApprovedContract, StoreError};

/// How often an approval is counted again because another one came in between.
const ATTEMPTS: usize = 16;

/// What somebody approved before.
pub(super) struct EarlierApproval {
    pub(super) approval: Approval,
    /// Whether a contract was issued by it.
    pub(super) is_used: bool,
}

/// A statement that came in, and whose signatures count for it.
struct IncomingStatement<'a> {
    run: &'a RunId,
    approval: &'a Approval,
    trusted: &'a TrustedKeys,
}

impl EmbeddedPlane {
    /// Issues the contracts of runs that wait although enough people approved them. Returns which
    /// ones.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store failed. A run that cannot be read is logged and left.
    pub fn issue_approved(&self) -> Result<Vec<RunId>, EmbeddedError> {
        let mut issued = Vec::new();
        for run in self.store().approved_and_waiting()? {
            match self.count_approvals(&run) {
                Ok(Approved::Issued) => issued.push(run),
                // It waits on, or somebody else was faster.
                Ok(Approved::Missing(_))
                | Err(ApproveError::Expired(_) | ApproveError::PolicyChanged(_))
                | Err(ApproveError::Store(
                    StoreError::Conflict { .. } | StoreError::ApprovalsChanged(_),
                )) => {}
                Err(ApproveError::Store(error)) => return Err(error.into()),
                Err(error) => {
                    let cause = error.source().map(ToString::to_string);
                    tracing::error!(run.id = %run, %error, cause, "an approved run cannot be issued");
                }
            }
        }
        Ok(issued)
    }

    /// Counts the approvals that a run has, and issues its contract if they are enough.
    fn count_approvals(&self, run: &RunId) -> Result<Approved, ApproveError> {
        let now = self.now();
        let (_, waiting) = self.open_question(run, now)?;
        let held = self.granted(run, now)?;
        self.keep_approval(&waiting, (None, held), now)
    }

    pub(super) fn take_approval(
        &self,
        run: &RunId,
        approval: &Approval,
        trusted: TrustedKeys,
    ) -> Result<Approved, ApproveError> {
        let incoming = IncomingStatement { run, approval, trusted: &trusted };
        for _ in 1..ATTEMPTS {
            match self.try_approval(&incoming) {
                Err(ApproveError::Store(StoreError::ApprovalsChanged(_))) => {}
                done => return done,
            }
        }
        self.try_approval(&incoming)
    }

    fn try_approval(&self, incoming: &IncomingStatement<'_>) -> Result<Approved, ApproveError> {
        let IncomingStatement { run, approval, .. } = *incoming;
        let now = self.now();
        let body = approval.body();
        let earlier = self.earlier_approval(run, &body.approver, now)?;
        if let Some(earlier) = &earlier
            && earlier.is_used
        {
            // Exactly the statement that was checked when it came needs no second look.
            if earlier.approval.hash() != approval.hash() {
                self.check_statement(incoming, now)?;
            }
            return Ok(Approved::Issued);
        }
        let (_, waiting) = self.open_question(run, now)?;
        let level = self.level_of(&waiting, &body.approver)?;
        self.check_statement(incoming, now)?;
        // SECURITY: nobody signs themselves above the level the policy gives them.
        if body.level > level {
            let problems = vec![ApprovalProblem::Level(body.level)];
            return Err(ApproveError::Statement { problems });
        }
        let mut held = self.granted(run, now)?;
        if earlier.is_some() {
            return self.keep_approval(&waiting, (None, held), now);
        }
        held.push(granted_by(approval));
        self.keep_approval(&waiting, (Some(approval_row(approval, now)), held), now)
    }

    fn check_statement(
        &self,
        incoming: &IncomingStatement<'_>,
        now: Timestamp,
    ) -> Result<(), ApproveError> {
        let IncomingStatement { run, approval, trusted } = *incoming;
        let row = self.store().run(run)?;
        let wanted = Wanted {
            run_id: run,
            request_hash: row.request_hash,
            policy_hash: row.policy_hash,
            level: 1,
        };
        check_approval(approval, &wanted, trusted, now)
            .map_err(|problems| ApproveError::Statement { problems })
    }

    /// Keeps an approval, if it is not kept already, and the contract if these are enough.
    fn keep_approval(
        &self,
        waiting: &Waiting,
        (given, held): (Option<ApprovalRow>, Vec<GrantedApproval>),
        at: Timestamp,
    ) -> Result<Approved, ApproveError> {
        let missing: Vec<String> = waiting
            .judgment
            .requirements
            .iter()
            .filter(|requirement| !self.is_satisfied(requirement, &held))
            .map(|requirement| requirement.name.clone())
            .collect();
        let issued = match missing.is_empty() {
            true => {
                let issued = self.notary(at).issue(&waiting.case(), &held)?;
                let contract = issued.contract.to_value().to_string();
                Some(ApprovedContract { contract, events: rows(issued.chain.events()) })
            }
            false => None,
        };
        let mut counted: Vec<String> = held.iter().map(|given| given.actor.label()).collect();
        counted.sort_unstable();
        if given.is_some() || issued.is_some() {
            self.store().approve(&waiting.run, ApprovalStep { given, counted, issued, at })?;
        }
        Ok(if missing.is_empty() { Approved::Issued } else { Approved::Missing(missing) })
    }

    /// Returns what somebody approved of this run before, if it was used or still counts.
    pub(super) fn earlier_approval(
        &self,
        run: &RunId,
        actor: &ActorRef,
        now: Timestamp,
    ) -> Result<Option<EarlierApproval>, ApproveError> {
        let kept = self.store().approval_by(run, &actor.label())?;
        let Some(kept) = kept.filter(|kept| kept.is_used || now < kept.row.expires_at) else {
            return Ok(None);
        };
        let approval = self.read_approval(run, &kept.row)?;
        Ok(Some(EarlierApproval { approval, is_used: kept.is_used }))
    }

    /// Whether this person refused this run before, for this reason.
    pub(super) fn was_refused_by(
        &self,
        run: &RunId,
        actor: &ActorRef,
        reason: &str,
    ) -> Result<bool, ApproveError> {
        let row = self.store().run(run)?;
        if row.state != RunState::Denied {
            return Ok(false);
        }
        let contract = self.contract_of(&row)?;
        let chain = self.chain_of(run, &contract)?;
        let refused = Event::ApprovalDenied { actor: actor.clone(), reason: reason.to_owned() };
        Ok(chain.events().iter().any(|event| *event.event() == refused))
    }

    /// Returns the approvals of a run that count now.
    fn granted(&self, run: &RunId, now: Timestamp) -> Result<Vec<GrantedApproval>, ApproveError> {
        let live = self.store().approvals(run)?.into_iter().filter(|row| now < row.expires_at);
        live.map(|row| Ok(granted_by(&self.read_approval(run, &row)?))).collect()
    }

    fn read_approval(&self, run: &RunId, row: &ApprovalRow) -> Result<Approval, EmbeddedError> {
        Approval::from_slice(row.statement.as_bytes()).map_err(|error| {
            tracing::error!(run.id = %run, %error, "a stored approval does not read back");
            EmbeddedError::Damaged { what: "approval", run: run.clone() }
        })
    }

    /// Whether enough different people agreed to one requirement.
    fn is_satisfied(&self, requirement: &ApprovalRequirement, held: &[GrantedApproval]) -> bool {
        let counts = |given: &&GrantedApproval| {
            let groups = self.groups_of(&given.actor.label());
            given.level >= requirement.level
                && is_named_approver(requirement, &given.actor, &groups)
        };
        let people: BTreeSet<&ActorRef> =
            held.iter().filter(counts).map(|given| &given.actor).collect();
        let quorum = usize::try_from(requirement.quorum).unwrap_or(usize::MAX);
        quorum > 0 && people.len() >= quorum
    }
}

fn granted_by(approval: &Approval) -> GrantedApproval {
    let body = approval.body();
    GrantedApproval {
        actor: body.approver.clone(),
        level: body.level,
        statement_hash: approval.hash(),
        statement: approval.to_value(),
        expires_at: body.expires_at,
    }
}

fn approval_row(approval: &Approval, at: Timestamp) -> ApprovalRow {
    let body = approval.body();
    let signature = approval.signatures().first();
    ApprovalRow {
        approver: body.approver.label(),
        key_id: signature.map_or_else(String::new, |entry| entry.key_id.to_string()),
        level: body.level,
        statement: approval.to_value().to_string(),
        expires_at: body.expires_at,
        created_at: at,
    }
}
