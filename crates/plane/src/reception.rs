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
use crate::files::FileLock;
use crate::leases::Held;
use crate::notary::{Case, Issued, Judgment, NotaryError, Refusal, SealedRun, rows, text};
use crate::random;
use crate::store::{Durability, Entry, NewRun, Sealing, StoreError, Submitted};

/// How long people may take to approve, unless the caller says otherwise: a day.
pub const APPROVAL_WAIT_MS: u64 = 24 * 3_600_000;

/// How many requests of one requester wait for people at once; a further one is denied.
// SECURITY: whoever floods the list hides in it what another one asked for.
pub const MOST_WAITING: u64 = 100;

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
        /// The digest of the request that came now.
        request_hash: Digest,
    },
}

/// A request of which nothing else happens than that it was judged: whole, signed, not kept yet.
#[derive(Debug, Clone)]
pub struct Note {
    pub(crate) run: NewRun,
    pub(crate) receipt: Digest,
}

impl Note {
    /// Returns the run it is.
    #[must_use]
    pub const fn run(&self) -> &RunId {
        &self.run.id
    }
}

/// A request that was judged, written down once.
struct Wish {
    request: RunRequest,
    /// Canonical.
    text: String,
    /// Of the text.
    hash: Digest,
    judgment: Judgment,
    idempotency_key: Option<String>,
    approval_wait_ms: u64,
}

impl Wish {
    const fn case<'a>(&'a self, run: &'a RunId) -> Case<'a> {
        Case { run, request: &self.request, request_hash: self.hash, judgment: &self.judgment }
    }
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
        let now = self.now();
        let mut wish = self.judged(submission, judge)?;
        // Behind HTTP an idempotency key says that two submissions are one.
        let asks = wish.judgment.summary.decision == Decision::Ask && !self.is_service();
        // Held until it is kept: who asks the same at the same moment finds it.
        let lock = self.home().data().join("asking.lock");
        let _asking =
            asks.then(|| FileLock::wait(&lock)).transpose().map_err(EmbeddedError::from)?;
        if asks {
            if let Some(waiting) = self.waiting_twin(&wish.hash, now)? {
                return Ok(Reception::Repeated { run: waiting, request_hash: wish.hash });
            }
            let asker = wish.request.requested_by.label();
            if self.store().count_awaiting(&asker, now)? >= MOST_WAITING {
                refuse_crowd(&mut wish.judgment, &asker);
            }
        }
        let deadline = now.plus_ms(wish.approval_wait_ms);
        let run = RunId::from_random(random::bytes()?);
        let (entry, reception, issued) = self.enter(&wish.case(&run), now, deadline)?;
        let request_hash = wish.hash;
        let new = NewRun { priority, ..self.new_run(wish, (run.clone(), now), entry)? };
        let kept = if self.is_service() || issued.is_none() || new.idempotency_key.is_some() {
            self.store().submit(new, Durability::Now)?
        } else {
            // Its own process performs it: the start makes it durable, and nobody was told
            // anything before.
            self.store().submit_later(new);
            Submitted::New
        };
        match kept {
            Submitted::New => {
                if let Some(Issued { contract, chain }) = issued {
                    self.keep_held(&run, Held { epoch: 0, contract, chain });
                }
                Ok(reception)
            }
            Submitted::Repeated(run) => Ok(Reception::Repeated { run, request_hash }),
        }
    }

    /// Writes down a request of which nothing else happens than that it was judged; nothing when
    /// people are to be asked. Whoever keeps it makes it true.
    ///
    /// # Errors
    /// [`SubmitError`] when nothing could be written down.
    pub fn note(
        &self,
        submission: Submission,
        judgment: Judgment,
    ) -> Result<Option<Note>, SubmitError> {
        let now = self.now();
        let wish = self.judged(submission, |_| judgment)?;
        let run = RunId::from_random(random::bytes()?);
        let case = wish.case(&run);
        let (sealed, state) = match wish.judgment.summary.decision {
            Decision::Allow => (self.notary(now).note(&case)?, RunState::Completed),
            Decision::Deny => (self.denied(&case, now)?, RunState::Denied),
            Decision::Ask => return Ok(None),
        };
        let entry = Entry::Sealed(sealing(&sealed, state, 0, now));
        let receipt = sealed.receipt.hash();
        let run = self.new_run(wish, (run, now), entry)?;
        Ok(Some(Note { run, receipt }))
    }

    /// Keeps a note, on the disk when it returns.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn keep(&self, note: Note) -> Result<RunId, StoreError> {
        let run = note.run.id.clone();
        self.store().submit(note.run, Durability::Now)?;
        Ok(run)
    }

    /// Has a request judged as whoever was authenticated.
    fn judged(
        &self,
        submission: Submission,
        judge: impl FnOnce(&RunRequest) -> Judgment,
    ) -> Result<Wish, SubmitError> {
        let Submission { mut request, principal, idempotency_key, approval_wait_ms } = submission;
        // SECURITY: identity comes from authentication, never from the request.
        request.requested_by = principal;
        let judgment = judge(&request);
        if judgment.policy_hash != self.policy_hash() {
            let (judged, in_force) = (judgment.policy_hash, self.policy_hash());
            return Err(SubmitError::OtherPolicy { judged, in_force });
        }
        let text = canonicalize(&request.to_value()?);
        let hash = Digest::of(text.as_bytes());
        Ok(Wish { request, text, hash, judgment, idempotency_key, approval_wait_ms })
    }

    fn new_run(
        &self,
        wish: Wish,
        (id, now): (RunId, Timestamp),
        entry: Entry,
    ) -> Result<NewRun, SubmitError> {
        let Wish { request, text: request_text, hash, judgment, idempotency_key, .. } = wish;
        Ok(NewRun {
            id,
            pool: request.pool.to_string(),
            agent_kind: request.agent_kind,
            isolation: request.isolation.map(|isolation| isolation.to_string()),
            prompt: request.prompt,
            requested_by: request.requested_by.label(),
            request_hash: hash,
            policy_hash: judgment.policy_hash,
            judgment: warrant_protocol::json::to_value(&judgment)?.to_string(),
            request: request_text,
            created_at: now,
            idempotency_key,
            priority: 0,
            is_local: !self.is_service(),
            entry,
        })
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
                let contract = text(issued.contract.raw());
                let events = rows(issued.chain.events());
                (Entry::Queued { contract, events }, Reception::Queued { run }, Some(issued))
            }
            Decision::Ask => {
                let judgment = judgment.clone();
                let reception = Reception::AwaitingApproval { run, judgment, deadline };
                (Entry::AwaitingApproval { deadline }, reception, None)
            }
            Decision::Deny => {
                let sealed = self.denied(case, now)?;
                let receipt = Box::new(sealed.receipt.clone());
                let entry = Entry::Sealed(sealing(&sealed, RunState::Denied, 0, now));
                (entry, Reception::Denied { run, judgment: judgment.clone(), receipt }, None)
            }
        })
    }

    fn denied(&self, case: &Case<'_>, now: Timestamp) -> Result<SealedRun, NotaryError> {
        let refusal = Refusal {
            events: Vec::new(),
            outcome: Outcome::Denied,
            failure: FailureClass::PolicyDenied,
            message: format!("policy denied: {}", case.judgment.summary.reasons.join("; ")),
            cancelled_by: None,
        };
        self.notary(now).deny(case, &refusal)
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

/// Turns a question to people into a denial, because too many of the same requester wait.
fn refuse_crowd(judgment: &mut Judgment, asker: &str) {
    let reason = format!(
        "{MOST_WAITING} requests of {asker} wait for approval already; have some of them answered \
         first (warrant approvals)"
    );
    judgment.summary.decision = Decision::Deny;
    judgment.summary.level = None;
    judgment.summary.reasons.push(reason);
    judgment.summary.rules.push("waiting-requests".to_owned());
    judgment.requirements.clear();
}

/// Returns a sealed run as the store takes it, with the events from place `from` on.
pub(crate) fn sealing(sealed: &SealedRun, state: RunState, from: usize, at: Timestamp) -> Sealing {
    Sealing {
        state,
        contract: (from == 0).then(|| text(sealed.contract.raw())),
        events: rows(sealed.chain.events().get(from..).unwrap_or_default()),
        receipt_hash: sealed.receipt.hash(),
        receipt: text(sealed.receipt.raw()),
        at,
    }
}
