//! Reception: a request comes in, is judged, and enters the store as queued, awaiting or denied.
//!
//! Who asks is decided by the caller's authentication and written over whatever the request says.
//! Nothing here executes, and a denial leaves as much evidence as a permission.

use thiserror::Error;
use warrant_protocol::event::FailureClass;
use warrant_protocol::request::ActorRef;
use warrant_protocol::{
    Decision, Digest, Outcome, Receipt, RunId, RunRequest, RunState, Timestamp, canonicalize,
};

use crate::embedded::{EmbeddedError, EmbeddedPlane};
use crate::leases::Held;
use crate::notary::{Case, Issued, Judgment, NotaryError, Refusal, SealedRun, rows};
use crate::random;
use crate::store::{Durability, Entry, NewRun, Sealing, StoreError, Submitted};

/// How long people may take to approve, unless the caller says otherwise: a day.
pub const APPROVAL_WAIT_MS: u64 = 24 * 3_600_000;

/// A request with who was authenticated.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The wish.
    pub request: RunRequest,
    /// Who asks, as authenticated.
    pub principal: ActorRef,
    /// The submitter's own name for this submission; the same again gives the same run.
    pub idempotency_key: Option<String>,
    /// How long people may take to approve.
    pub approval_wait_ms: u64,
}

/// What became of a request.
#[derive(Debug, Clone)]
pub enum Reception {
    /// Allowed: a contract exists.
    Queued {
        /// The run.
        run: RunId,
    },
    /// People are asked first.
    AwaitingApproval {
        /// The run.
        run: RunId,
        /// What was decided, and who may approve.
        judgment: Judgment,
        /// Until when.
        deadline: Timestamp,
    },
    /// It may not run; the receipt says why.
    Denied {
        /// The run.
        run: RunId,
        /// Every reason.
        judgment: Judgment,
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// The same submission came before; this is its run.
    Repeated {
        /// The run.
        run: RunId,
    },
}

/// Why a request could not be received.
#[derive(Debug, Error)]
pub enum SubmitError {
    /// The plane failed.
    #[error(transparent)]
    Plane(#[from] EmbeddedError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing could be signed.
    #[error(transparent)]
    Notary(#[from] NotaryError),
    /// The request has no JSON form.
    #[error("the request cannot be written down")]
    Request(#[from] warrant_protocol::json::InvalidJson),
    /// No randomness or no clock.
    #[error("the system has no randomness or no clock")]
    System(#[from] std::io::Error),
    /// The judge used another policy than the one in force.
    #[error("judged by policy {judged}, but {in_force} is in force")]
    OtherPolicy {
        /// Which one it used.
        judged: Digest,
        /// Which one it should have used.
        in_force: Digest,
    },
}

impl EmbeddedPlane {
    /// Receives a request and has it judged.
    ///
    /// A request that is exactly one that waits for approval already is that one.
    ///
    /// # Errors
    /// [`SubmitError`] when nothing could be kept; then nothing may run.
    pub fn submit(
        &self,
        submission: Submission,
        judge: impl FnOnce(&RunRequest) -> Judgment,
    ) -> Result<Reception, SubmitError> {
        self.submit_at(0, submission, judge)
    }

    /// Receives a request that goes before others in its queue (above 0) or after them (below).
    ///
    /// # Errors
    /// [`SubmitError`] when nothing could be kept; then nothing may run.
    pub fn submit_at(
        &self,
        priority: i32,
        submission: Submission,
        judge: impl FnOnce(&RunRequest) -> Judgment,
    ) -> Result<Reception, SubmitError> {
        let now = random::now()?;
        let mut request = submission.request;
        // SECURITY: identity comes from authentication, never from the request.
        request.requested_by = submission.principal;
        let judgment = judge(&request);
        if judgment.policy_hash != self.policy_hash() {
            let (judged, in_force) = (judgment.policy_hash, self.policy_hash());
            return Err(SubmitError::OtherPolicy { judged, in_force });
        }
        let value = request.to_value()?;
        let request_hash = warrant_protocol::hash_canonical(&value);
        // Behind HTTP an idempotency key says that two submissions are one.
        if judgment.summary.decision == Decision::Ask
            && !self.is_service()
            && let Some(waiting) = self.waiting_twin(&request_hash, now)?
        {
            return Ok(Reception::Repeated { run: waiting });
        }
        let run = RunId::from_random(random::bytes()?);
        let deadline = now.plus_ms(submission.approval_wait_ms);
        let case = Case { run: &run, request: &request, judgment: &judgment };
        let (entry, reception, issued) = self.enter(&case, now, deadline)?;
        let durability = match &entry {
            // The start makes a queued run durable; nobody was told anything before.
            Entry::Queued { .. } if !self.is_service() => Durability::WithNext,
            Entry::Queued { .. } | Entry::AwaitingApproval { .. } | Entry::Sealed(_) => {
                Durability::Now
            }
        };
        let new = NewRun {
            id: run,
            pool: request.pool.to_string(),
            agent_kind: request.agent_kind.clone(),
            isolation: request.isolation.map(|isolation| isolation.to_string()),
            prompt: request.prompt.clone(),
            requested_by: request.requested_by.label(),
            request_hash,
            policy_hash: judgment.policy_hash,
            judgment: warrant_protocol::json::to_value(&judgment)?.to_string(),
            request: canonicalize(&value),
            created_at: now,
            idempotency_key: submission.idempotency_key,
            priority,
            is_local: !self.is_service(),
            entry,
        };
        let run = new.id.clone();
        match self.store().submit(new, durability)? {
            Submitted::New => {
                if let Some(Issued { contract, chain }) = issued.filter(|_| self.is_service()) {
                    self.keep_held(&run, Held { epoch: 0, contract, chain });
                }
                Ok(reception)
            }
            Submitted::Repeated(run) => Ok(Reception::Repeated { run }),
        }
    }

    fn enter(
        &self,
        case: &Case<'_>,
        now: Timestamp,
        deadline: Timestamp,
    ) -> Result<(Entry, Reception, Option<Issued>), SubmitError> {
        let (run, judgment) = (case.run.clone(), case.judgment);
        Ok(match judgment.summary.decision {
            Decision::Allow => {
                let issued = self.notary(now).issue(case, &[])?;
                let contract = issued.contract.to_value().to_string();
                let events = rows(issued.chain.events());
                (Entry::Queued { contract, events }, Reception::Queued { run }, Some(issued))
            }
            Decision::Ask => {
                let judgment = judgment.clone();
                let reception = Reception::AwaitingApproval { run, judgment, deadline };
                (Entry::AwaitingApproval { deadline }, reception, None)
            }
            Decision::Deny => {
                let refusal = Refusal {
                    events: Vec::new(),
                    outcome: Outcome::Denied,
                    failure: FailureClass::PolicyDenied,
                    message: format!("policy denied: {}", judgment.summary.reasons.join("; ")),
                    cancelled_by: None,
                };
                let sealed = self.notary(now).deny(case, &refusal)?;
                let receipt = Box::new(sealed.receipt.clone());
                let entry = Entry::Sealed(sealing(&sealed, RunState::Denied, 0, now));
                (entry, Reception::Denied { run, judgment: judgment.clone(), receipt }, None)
            }
        })
    }

    fn waiting_twin(
        &self,
        request_hash: &Digest,
        now: Timestamp,
    ) -> Result<Option<RunId>, SubmitError> {
        let waiting = self.store().awaiting(request_hash)?;
        let is_current = |row: &crate::store::RunRow| {
            row.policy_hash == self.policy_hash()
                && row.deadline.is_some_and(|deadline| now < deadline)
        };
        Ok(waiting.into_iter().find(is_current).map(|row| row.id))
    }
}

/// Returns a sealed run as the store takes it, with the events from place `from` on.
pub(crate) fn sealing(sealed: &SealedRun, state: RunState, from: usize, at: Timestamp) -> Sealing {
    Sealing {
        state,
        contract: (from == 0).then(|| sealed.contract.to_value().to_string()),
        events: rows(sealed.chain.events().get(from..).unwrap_or_default()),
        receipt_hash: sealed.receipt.hash(),
        receipt: sealed.receipt.to_value().to_string(),
        at,
    }
}
