//! Approvals and denials: signed statements about one exact request.
//!
//! An approval names the digest of the canonical request and of the policy snapshot, so it fits
//! nothing else; it has a level, an end, and a nonce that whoever accepts it uses up once.
//! A denial is the evidence that a request was refused before any contract existed.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::decision::DecisionSummary;
use crate::keys::{KeyRole, TrustedKeys};
use crate::request::ActorRef;
use crate::signed::{Signed, SignedBody, Signer};
use crate::{Digest, Outcome, PublicKey, RunId, Timestamp};

/// A signed approval.
pub type Approval = Signed<ApprovalBody>;

/// A signed denial.
pub type Denial = Signed<DenialBody>;

/// What an approval says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalBody {
    /// The run that was asked about.
    pub run_id: RunId,
    /// The digest of the canonical request.
    pub request_hash: Digest,
    /// The digest of the policy snapshot that asked.
    pub policy_hash: Digest,
    /// Who approves.
    pub approver: ActorRef,
    /// At which level.
    pub level: u8,
    /// When it was signed.
    pub issued_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
    /// Used up by whoever accepts it.
    pub nonce: String,
}

/// What an approval must fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The run.
    pub run_id: &'a RunId,
    /// The digest of its canonical request.
    pub request_hash: Digest,
    /// The digest of the policy snapshot.
    pub policy_hash: Digest,
    /// The level that is wanted.
    pub level: u8,
}

/// Why an approval does not count.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ApprovalProblem {
    /// Another version.
    #[error("approval version is not {}", ApprovalBody::VERSION)]
    Version,
    /// Not signed by a key the caller trusts for approvals.
    #[error("approval signature invalid or its key is not trusted")]
    Signature,
    /// For another run.
    #[error("approval is for another run")]
    OtherRun,
    /// For another request.
    #[error("approval is for another request")]
    OtherRequest,
    /// Under another policy.
    #[error("approval is under another policy")]
    OtherPolicy,
    /// Too low.
    #[error("approval level {0} is below the level that is wanted")]
    Level(u8),
    /// Over, or not yet begun.
    #[error("approval is not valid at this time")]
    Time,
}

/// Checks that an approval fits what is wanted at `now`; the caller then uses up its nonce.
///
/// An approver's own key must be trusted for [`KeyRole::Approver`]; the plane may sign for an
/// approver it authenticated.
///
/// # Errors
/// Every [`ApprovalProblem`] at once.
pub fn check_approval(
    approval: &Approval,
    wanted: &Wanted<'_>,
    trusted: &TrustedKeys,
    now: Timestamp,
) -> Result<(), Vec<ApprovalProblem>> {
    let body = approval.body();
    let is_timely = body.issued_at <= now && now < body.expires_at;
    let problems: Vec<_> = [
        (approval.version() == Some(ApprovalBody::VERSION), ApprovalProblem::Version),
        (is_signed_by_trusted(approval, trusted), ApprovalProblem::Signature),
        (body.run_id == *wanted.run_id, ApprovalProblem::OtherRun),
        (body.request_hash == wanted.request_hash, ApprovalProblem::OtherRequest),
        (body.policy_hash == wanted.policy_hash, ApprovalProblem::OtherPolicy),
        (body.level >= wanted.level, ApprovalProblem::Level(body.level)),
        (is_timely, ApprovalProblem::Time),
    ]
    .into_iter()
    .filter_map(|(holds, problem)| (!holds).then_some(problem))
    .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Returns whether an approver the caller trusts signed, or the plane for one.
#[must_use]
pub fn is_signed_by_trusted(approval: &Approval, trusted: &TrustedKeys) -> bool {
    let signed_by = |signer: Signer, key: &PublicKey| approval.check_signature(signer, key).is_ok();
    trusted.of(KeyRole::Approver).any(|key| signed_by(Signer::Approver, key))
        || trusted.of(KeyRole::Plane).any(|key| signed_by(Signer::Plane, key))
}

impl SignedBody for ApprovalBody {
    const VERSION: &'static str = "warrant.approval.v1";
    const NAME: &'static str = "approval";
}

/// What a denial says. The plane signs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DenialBody {
    /// The run that will not be.
    pub run_id: RunId,
    /// The digest of the canonical request.
    pub request_hash: Digest,
    /// The digest of the policy snapshot.
    pub policy_hash: Digest,
    /// Who asked.
    pub requested_by: ActorRef,
    /// When it was refused.
    pub decided_at: Timestamp,
    /// How: denied, approval expired, or cancelled.
    pub outcome: Outcome,
    /// Why, and by which rules.
    pub decision: DecisionSummary,
    /// Who refused, when it was a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_by: Option<ActorRef>,
    /// The sandbox's Lamport clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lamport: Option<u64>,
}

/// Checks a denial against the planes the caller trusts.
#[must_use]
pub fn is_denial_by_trusted(denial: &Denial, trusted: &TrustedKeys) -> bool {
    denial.version() == Some(DenialBody::VERSION)
        && trusted.of(KeyRole::Plane).any(|key| denial.check_signature(Signer::Plane, key).is_ok())
}

impl SignedBody for DenialBody {
    const VERSION: &'static str = "warrant.denial.v1";
    const NAME: &'static str = "denial";
}
