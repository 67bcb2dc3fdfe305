//! Records: what was decided and done in a session, in order, each signed and naming the one
//! before it.
//!
//! ```text
//! create ─► decision (ALLOW) ─► execution   an execution names the decision it used up
//!           decision (DENY, ASK)            refusal: an execution that no decision allows
//!           approval (ALLOW, ASK, DENY)     a person's word about a decision that asked
//! ```
//!
//! A record names its run; the run's bundle is the proof of what happened, the record is the proof
//! of the order. Commands are told as digests: their words are in the runs.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Digest, RunId, Timestamp, canonicalize};

use crate::EmbeddedPlane;
use crate::doors::{Verdict, WorkshopError};
use crate::random;
use crate::reception::Note;
use crate::store::{NewRecord, NewRun, RecordRow};

pub(crate) const VERSION: &str = "warrant.record.v1";

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Create,
    Decision,
    Execution,
    Refusal,
    File,
    Approval,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Decision => "decision",
            Self::Execution => "execution",
            Self::Refusal => "refusal",
            Self::File => "file",
            Self::Approval => "approval",
        }
    }
}

/// Something that is to be recorded.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) run: RunId,
    pub(crate) verdict: Verdict,
    pub(crate) reason: &'static str,
    pub(crate) reasons: Vec<String>,
    /// The decision that an execution used up.
    pub(crate) decision: Option<RunId>,
    /// The command, when it is about one.
    pub(crate) command: Option<Digest>,
    /// What was answered.
    pub(crate) output: Option<Digest>,
    /// Whose word it is, when it is not that of the session's owner.
    pub(crate) by: Option<String>,
}

impl Entry {
    /// Returns the record of something that was allowed.
    pub(crate) const fn allowed(kind: Kind, run: RunId) -> Self {
        Self {
            kind,
            run,
            verdict: Verdict::Allowed,
            reason: "ALLOW",
            reasons: Vec::new(),
            decision: None,
            command: None,
            output: None,
            by: None,
        }
    }
}

/// Keeps a record; without it nothing is allowed.
pub(crate) fn keep(
    plane: &EmbeddedPlane,
    who: (&str, &ActorRef),
    entry: Entry,
) -> Result<RecordRow, WorkshopError> {
    let receipt = plane.store().receipt_hash(&entry.run).map_err(WorkshopError::of_error)?;
    keep_with(plane, who, (entry, receipt), None)
}

/// Keeps a record together with the run that it tells of.
pub(crate) fn keep_noted(
    plane: &EmbeddedPlane,
    who: (&str, &ActorRef),
    entry: Entry,
    note: Note,
) -> Result<RecordRow, WorkshopError> {
    let Note { run, receipt } = note;
    keep_with(plane, who, (entry, Some(receipt)), Some(run))
}

fn keep_with(
    plane: &EmbeddedPlane,
    (session, guest): (&str, &ActorRef),
    (entry, receipt): (Entry, Option<Digest>),
    run: Option<NewRun>,
) -> Result<RecordRow, WorkshopError> {
    let at = random::now().map_err(WorkshopError::of_error)?;
    let key = plane.home().plane_key().clone();
    let (owner, told) = (guest.label(), session.to_owned());
    let principal = entry.by.clone().unwrap_or_else(|| owner.clone());
    let make = move |lamport, previous: Option<Digest>| {
        let body = body(&entry, (&told, &principal), (lamport, previous), (at, receipt));
        let body = canonicalize(&body);
        let signature = key.sign(body.as_bytes());
        let signature = hex(&signature);
        NewRecord { run: entry.run, hash: Digest::of(body.as_bytes()), body, signature, at }
    };
    plane.store().record((session, &owner), run, make).map_err(WorkshopError::of_error)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn body(
    entry: &Entry,
    (session, principal): (&str, &str),
    (lamport, previous): (u64, Option<Digest>),
    (at, receipt): (Timestamp, Option<Digest>),
) -> Value {
    let decision = match entry.verdict {
        Verdict::Allowed => "ALLOW",
        Verdict::Denied => "DENY",
        Verdict::Waiting => "ASK",
    };
    let digest = |digest: Option<Digest>| digest.map(|digest| digest.to_string());
    json!({
        "version": VERSION,
        "session": session,
        "lamport": lamport,
        "prev": digest(previous),
        "at": at.to_string(),
        "principal": principal,
        "kind": entry.kind.as_str(),
        "decision": decision,
        "reason": entry.reason,
        "reasons": entry.reasons,
        "run": entry.run.as_str(),
        "usedDecision": entry.decision.as_ref().map(RunId::as_str),
        "command": digest(entry.command),
        "output": digest(entry.output),
        "receipt": digest(receipt),
    })
}

/// Returns the session of the tools that run at a client's, which have no sandbox: one for all of
/// its token.
pub(crate) fn tools_of(guest: &ActorRef) -> String {
    let name: String = Digest::of(guest.label().as_bytes()).to_string().chars().take(20).collect();
    format!("tools-{name}")
}

/// Returns a digest as that SDK spells it.
pub(crate) fn spelled(digest: &Digest) -> String {
    format!("sha256:{digest}")
}

/// Returns a record in the SDK's words.
pub(crate) fn receipt(row: &RecordRow) -> Value {
    let body: Map<String, Value> = serde_json::from_str(&row.body).unwrap_or_default();
    let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
    let status = match text("decision") {
        "ALLOW" => "APPROVED",
        "ASK" => "PENDING",
        _ => "DENIED",
    };
    let decision = match text("usedDecision") {
        "" => text("run"),
        used => used,
    };
    let digest = |name: &str| match text(name) {
        "" => String::new(),
        hex => format!("sha256:{hex}"),
    };
    json!({
        "receipt_id": text("run"),
        "decision_id": decision,
        "effect_id": digest("command"),
        "status": status,
        "reason_code": text("reason"),
        "output_hash": digest("output"),
        "blob_hash": spelled(&row.hash),
        "prev_hash": digest("prev"),
        "lamport_clock": row.lamport,
        "signature": row.signature,
        "timestamp": text("at"),
        "principal": text("principal"),
    })
}
