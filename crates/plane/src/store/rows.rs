//! What goes into the store and comes out of it, a run at a time.

use warrant_protocol::wire::ProcessIdentity;
use warrant_protocol::{Digest, RunId, RunState, Timestamp};

use super::blobs::NewBlob;

/// A request as it enters the store.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its name.
    pub id: RunId,
    /// Where it is to run.
    pub pool: String,
    /// Which agent.
    pub agent_kind: String,
    /// Which tier was asked for.
    pub isolation: Option<String>,
    /// The task.
    pub prompt: String,
    /// Who asks, as `human:alice`.
    pub requested_by: String,
    /// The digest of the canonical request.
    pub request_hash: Digest,
    /// The digest of the policy snapshot it was judged by.
    pub policy_hash: Digest,
    /// The whole judgment as JSON text.
    pub judgment: String,
    /// The request as canonical JSON text.
    pub request: String,
    /// When it came.
    pub created_at: Timestamp,
    /// The submitter's own name for this submission, if it gave one.
    pub idempotency_key: Option<String>,
    /// Higher goes first; 0 is usual.
    pub priority: i32,
    /// Whether its workspace lies on this machine and never travels, so that no runner of a fleet
    /// may have it.
    pub is_local: bool,
    /// How it enters.
    pub entry: Entry,
}

/// How a run enters the store: the decision's consequence.
#[derive(Debug, Clone)]
pub enum Entry {
    /// Allowed: it waits for a runner.
    Queued {
        /// The signed contract as JSON text.
        contract: String,
        /// The first events of its chain.
        events: Vec<EventRow>,
    },
    /// Allowed, and leased to the runner of this process at once.
    Leased {
        /// The signed contract as JSON text.
        contract: String,
        /// The first events of its chain.
        events: Vec<EventRow>,
        /// Who holds it, for the first time.
        owner: Owner,
    },
    /// People are asked first.
    AwaitingApproval {
        /// Until when.
        deadline: Timestamp,
    },
    /// Denied: its receipt is written at once.
    Sealed(Sealing),
}

/// How a run ends where no runner can sign.
#[derive(Debug, Clone)]
pub struct Sealing {
    /// The state it ends in.
    pub state: RunState,
    /// The contract as JSON text, unless the run has one already.
    pub contract: Option<String>,
    /// The events that are added.
    pub events: Vec<EventRow>,
    /// The digest of the receipt.
    pub receipt_hash: Digest,
    /// The receipt as JSON text.
    pub receipt: String,
    /// When.
    pub at: Timestamp,
}

/// One event of a chain, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// Its place.
    pub seq: u64,
    /// Its time.
    pub ts: Timestamp,
    /// Its hash.
    pub hash: Digest,
    /// The whole chained event as JSON text.
    pub body: String,
}

/// Whether a submission was new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It was kept.
    New,
    /// The same submitter's key names this run already.
    Repeated(RunId),
}

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name under which the holder's life can be checked, on one machine.
    pub liveness: Option<String>,
    /// The runner.
    pub runner: String,
    /// When it was given.
    pub at: Timestamp,
    /// How long the lease lasts without renewal.
    pub lease_ms: u64,
    /// For how long the runner goes on while the plane does not answer, if it does.
    pub disconnect_ms: Option<u64>,
    /// Which process of the runner took it.
    pub generation: Option<u64>,
    /// Which process of its machine that is.
    pub process: Option<ProcessIdentity>,
}

impl Owner {
    /// Returns until when the lease would last without renewal, for people; it decides nothing.
    pub(super) const fn lease_until(&self) -> Timestamp {
        self.at.plus_ms(self.lease_ms)
    }
}

/// How many events a chain has after an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// How many.
    pub event_count: u64,
}

/// A run's end as its runner tells it, checked and countersigned.
#[derive(Debug)]
pub struct Completion {
    /// The state it ends in.
    pub state: RunState,
    /// The events that were not yet appended.
    pub events: Vec<EventRow>,
    /// The digest of the receipt.
    pub receipt_hash: Digest,
    /// The countersigned receipt as JSON text.
    pub receipt: String,
    /// The blobs it names.
    pub blobs: Vec<NewBlob>,
    /// When.
    pub at: Timestamp,
}

/// One signed approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRow {
    /// Who approved.
    pub approver: String,
    /// With which key.
    pub key_id: String,
    /// At which level.
    pub level: u8,
    /// The signed statement as JSON text.
    pub statement: String,
    /// Until when it counts.
    pub expires_at: Timestamp,
    /// When it was given.
    pub created_at: Timestamp,
}

/// An approval as it is kept, and whether a contract was issued by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptApproval {
    /// The approval.
    pub row: ApprovalRow,
    /// Whether a contract was issued by it.
    pub is_used: bool,
}

/// The contract of a run that was approved, with the first events of its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovedContract {
    /// The contract as JSON text.
    pub contract: String,
    /// The events.
    pub events: Vec<EventRow>,
}

/// An approval and what it leads to: kept together, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalStep {
    /// The approval; absent when all of them are kept already.
    pub given: Option<ApprovalRow>,
    /// Everyone whose approval was counted, this one included.
    pub counted: Vec<String>,
    /// The contract, when these are enough.
    pub issued: Option<ApprovedContract>,
    /// When.
    pub at: Timestamp,
}
