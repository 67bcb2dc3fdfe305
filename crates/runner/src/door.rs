//! The side door: a contract is let in only if the pinned plane signed it, for this runner, now.

use warrant_protocol::event::FailureClass;
use warrant_protocol::port::Lease;
use warrant_protocol::signed::SignedBody as _;
use warrant_protocol::{ContractBody, Decision, Outcome, PublicKey, Signer, Timestamp};

use crate::halt::Halt;
use crate::run::RunnerIdentity;

/// How far the plane's clock may be ahead of ours.
const CLOCK_SKEW_MS: u64 = 5 * 60_000;

/// The members of a contract that change what is permitted and that this runner understands.
const UNDERSTOOD: &[&str] = &[
    "decision",
    "limits",
    "requiredPosture",
    "mode",
    "files",
    "egress",
    "masks",
    "image",
    "requiredEvidence",
    "requestHash",
    "retrySafe",
];

/// Checks that a lease's contract permits this runner to run it at `now`.
pub(crate) fn verify_contract(
    lease: &Lease,
    identity: &RunnerIdentity,
    plane_key: &PublicKey,
    now: Timestamp,
) -> Result<(), Halt> {
    let contract = &lease.contract;
    let body = contract.body();
    if contract.version() != Some(ContractBody::VERSION) {
        return Err(refuse("the contract has another version"));
    }
    // SECURITY: the key is the one pinned at enrollment, never one that came along.
    if contract.check_signature(Signer::Plane, plane_key).is_err()
        || body.issuer.key_id != *plane_key.id()
    {
        return Err(refuse("the contract is not signed by the pinned plane"));
    }
    if body.run_id != lease.key.run || lease.chain.contract_hash() != contract.hash() {
        return Err(refuse("the contract belongs to another run"));
    }
    if !contract.is_live(now) || now.plus_ms(CLOCK_SKEW_MS) < body.issued_at {
        return Err(refuse("the contract is not valid at this time"));
    }
    if body.policy_hash != lease.policy_hash {
        return Err(refuse("the contract was made under another policy"));
    }
    if body.runner.pool != identity.pool {
        return Err(refuse("the contract is for another pool"));
    }
    check_decision(body)?;
    let critical = body.critical.iter().flatten();
    if let Some(unknown) = critical.into_iter().find(|name| !UNDERSTOOD.contains(&name.as_str())) {
        return Err(refuse(format!("the contract demands to understand {unknown}")));
    }
    Ok(())
}

fn check_decision(body: &ContractBody) -> Result<(), Halt> {
    let is_approved = body.approved_by.as_ref().is_some_and(|approvers| !approvers.is_empty());
    match body.decision.as_ref().map(|summary| summary.decision) {
        None | Some(Decision::Allow) => Ok(()),
        Some(Decision::Ask) if is_approved => Ok(()),
        Some(Decision::Ask) => Err(refuse("the contract lacks the approval it needs")),
        Some(Decision::Deny) => Err(refuse("the contract permits nothing")),
    }
}

fn refuse(message: impl Into<String>) -> Halt {
    Halt::new(Outcome::Denied, FailureClass::PolicyDenied, message)
}
