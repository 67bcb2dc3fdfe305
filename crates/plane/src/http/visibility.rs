//! Which runs and blobs a caller may read: their own, and everything for auditors and admins.
//!
//! Approvers read what waits for them and what they answered. A run that somebody may not read
//! looks to them like one that does not exist.

use warrant_protocol::wire::PrincipalRole;
use warrant_protocol::{Digest, Event, RunId, RunState};

use super::error::HttpError;
use super::registry::Principal;
use super::service::PlaneService;
use crate::approvals::is_named_approver;
use crate::notary::Judgment;
use crate::store::{ListingFilter, RunRow, StoreError, SummaryRow};

impl Principal {
    /// Whether they read the runs of everybody.
    pub(super) const fn reads_all(&self) -> bool {
        match self.role {
            PrincipalRole::Admin | PrincipalRole::Auditor => true,
            PrincipalRole::Requester | PrincipalRole::Approver | PrincipalRole::Enroller => false,
        }
    }
}

impl PlaneService {
    /// Returns the run that a path names, if the caller may read it.
    pub(super) fn readable_run(&self, caller: &Principal, id: &str) -> Result<RunRow, HttpError> {
        let row = self.run_row(id)?;
        if self.may_read_run(caller, &row)? {
            return Ok(row);
        }
        Err(HttpError::missing("run not found"))
    }

    /// Whether the caller may read a run.
    pub(super) fn may_read_run(
        &self,
        caller: &Principal,
        row: &RunRow,
    ) -> Result<bool, StoreError> {
        let label = caller.actor.label();
        if caller.reads_all() || row.requested_by == label {
            return Ok(true);
        }
        if caller.role != PrincipalRole::Approver {
            return Ok(false);
        }
        if row.state == RunState::AwaitingApproval && self.waits_for(caller, &row.judgment) {
            return Ok(true);
        }
        if self.plane.store().has_approved(&row.id, &label)? {
            return Ok(true);
        }
        Ok(row.state == RunState::Denied && self.was_refused_by(caller, &row.id)?)
    }

    /// Whether the caller may read the run of that id; one that is gone nobody may.
    pub(super) fn may_read_named(&self, caller: &Principal, id: &RunId) -> bool {
        let row = self.plane.store().run(id);
        matches!(row.and_then(|row| self.may_read_run(caller, &row)), Ok(true))
    }

    /// Narrows a list to what the caller may read; nothing when that is nothing.
    pub(super) fn readable_filter(
        &self,
        caller: &Principal,
        mut filter: ListingFilter,
    ) -> Option<ListingFilter> {
        let label = caller.actor.label();
        if caller.reads_all() {
            return Some(filter);
        }
        if caller.role == PrincipalRole::Approver {
            filter.readable_by = Some(label);
            return Some(filter);
        }
        if filter.requested_by.as_ref().is_some_and(|wanted| *wanted != label) {
            return None;
        }
        filter.requested_by = Some(label);
        Some(filter)
    }

    /// Whether a run of a narrowed list is shown: of those that wait, an approver sees their own.
    pub(super) fn is_listed(&self, caller: &Principal, row: &SummaryRow) -> bool {
        let is_others_question = !caller.reads_all()
            && row.state == RunState::AwaitingApproval
            && row.requested_by != caller.actor.label();
        !is_others_question || self.may_read_named(caller, &row.id)
    }

    /// Whether the caller may read a blob.
    pub(super) fn may_read_blob(
        &self,
        caller: &Principal,
        digest: &Digest,
    ) -> Result<bool, StoreError> {
        let label = caller.actor.label();
        if caller.reads_all() || self.plane.store().may_read_blob(digest, &label)? {
            return Ok(true);
        }
        if caller.role != PrincipalRole::Approver {
            return Ok(false);
        }
        let waiting = self.plane.store().awaiting_with_blob(digest)?;
        Ok(waiting.iter().any(|run| self.may_read_named(caller, run)))
    }

    fn waits_for(&self, caller: &Principal, judgment: &str) -> bool {
        let Ok(judgment) = serde_json::from_str::<Judgment>(judgment) else { return false };
        let groups = self.plane.groups_of(&caller.actor.label());
        let mut wanted = judgment.requirements.iter();
        wanted.any(|wanted| is_named_approver(wanted, &caller.actor, &groups))
    }

    fn was_refused_by(&self, caller: &Principal, run: &RunId) -> Result<bool, StoreError> {
        let is_theirs = |body: &str| {
            let event: Option<warrant_protocol::ChainedEvent> = serde_json::from_str(body).ok();
            let event = event.as_ref().map(warrant_protocol::ChainedEvent::event);
            matches!(event, Some(Event::ApprovalDenied { actor, .. }) if *actor == caller.actor)
        };
        Ok(self.plane.store().events(run)?.iter().any(|event| is_theirs(&event.body)))
    }
}
