//! What plane, runners and people say to each other in a simulation.

use std::sync::Arc;

use warrant_protocol::port::{Lease, LeaseKey};
use warrant_protocol::request::ActorRef;
use warrant_protocol::{ChainedEvent, Digest, Receipt, RunId};

/// Who sends a request and gets its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// The runner of this number.
    Runner(usize),
    /// Whoever asks for the run of this number, approves it and cancels it.
    Person(usize),
}

/// A request to the plane.
#[derive(Debug, Clone)]
pub(crate) enum PlaneRequest {
    Submit(SimulatedRun),
    Approve(RunId),
    Cancel(RunId),
    Claim { generation: u64 },
    Start { lease: LeaseKey, start_id: String, events: Arc<Vec<ChainedEvent>> },
    Renew(LeaseKey),
    Complete { lease: LeaseKey, events: Arc<Vec<ChainedEvent>>, receipt: Arc<Receipt> },
    HandBack(LeaseKey),
}

/// What somebody wants to be run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimulatedRun {
    pub(crate) number: usize,
    pub(crate) approval: ApprovalNeed,
    pub(crate) secret: SecretUse,
}

/// Whether people are asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApprovalNeed {
    None,
    One,
}

/// Whether a run is given a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretUse {
    None,
    One,
}

/// An answer of the plane.
#[derive(Debug, Clone)]
pub(crate) enum PlaneReply {
    Submitted(RunId),
    Approved,
    Cancelled,
    /// There is nothing to do.
    Empty,
    Claimed(Arc<Lease>),
    Started {
        events: Arc<Vec<ChainedEvent>>,
        secrets: usize,
    },
    Renewed(Option<ActorRef>),
    /// The receipt is kept.
    Kept(RunId, Digest),
    HandedBack,
    /// The lease is over.
    Fenced,
    /// No, and no again.
    Refused(String),
}

/// A mistake of earlier versions that is put back, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// The runner counts its lease from when it sent the claim, and cancels when it is over.
    CountFromClaim,
    /// The plane counts leases on the wall clock.
    WallClockLeases,
    /// A start that comes again is refused.
    StartOnce,
}

/// Returns one line for the log.
pub(crate) fn brief(request: &PlaneRequest) -> String {
    match request {
        PlaneRequest::Submit(spec) => format!("submit {}", spec.number),
        PlaneRequest::Approve(run) => format!("approve {run}"),
        PlaneRequest::Cancel(run) => format!("cancel {run}"),
        PlaneRequest::Claim { generation } => format!("claim of process {generation}"),
        PlaneRequest::Start { lease, .. } => format!("start {} {}", lease.run, lease.epoch),
        PlaneRequest::Renew(lease) => format!("renew {} {}", lease.run, lease.epoch),
        PlaneRequest::Complete { lease, .. } => format!("complete {} {}", lease.run, lease.epoch),
        PlaneRequest::HandBack(lease) => format!("hand back {} {}", lease.run, lease.epoch),
    }
}

/// Returns one line for the log.
pub(crate) fn brief_reply(reply: &PlaneReply) -> String {
    match reply {
        PlaneReply::Claimed(lease) => format!("claimed {} {}", lease.key.run, lease.key.epoch),
        PlaneReply::Started { events, secrets } => {
            format!("started, {} events, {secrets} secrets", events.len())
        }
        other => format!("{other:?}"),
    }
}
