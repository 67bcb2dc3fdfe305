//! The one function that makes a receipt from a chain, used to write it and to check it.
//!
//! A chain with `outcome.recorded` was written by us and folds to every member. A chain without
//! it is the reference's: it folds to what the reference's runner writes, which never names
//! models or cost.

use thiserror::Error;

use crate::chain::{Chain, ChainedEvent};
use crate::contract::Contract;
use crate::decision::DecisionSummary;
use crate::event::{ArtifactKind, AttestationTier, Event};
use crate::observation::{FoldedDestinations, ReceiptCapture, ReceiptGitRef, ReceiptOperation};
use crate::receipt::{
    BoundaryDisclosure, ModelUse, NetworkAccess, ReceiptBody, ReceiptGap, ReceiptGrant,
    ReceiptLimits, ReceiptRunner, ReceiptStatus, ReleasedSecret, SealedBy, WorkspaceIn,
    WorkspaceOut,
};
use crate::{Digest, Isolation, KeyId, RunnerId};

/// Who seals the receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealer {
    /// The runner that ran it.
    Runner {
        /// Its id.
        runner_id: RunnerId,
        /// Its key.
        key_id: KeyId,
    },
    /// The plane, because no runner can.
    Plane {
        /// The plane's key.
        key_id: KeyId,
    },
}

/// Why a chain folds to no receipt.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FoldError {
    /// There is nothing to fold.
    #[error("event chain is empty")]
    EmptyChain,
    /// The run has not ended.
    #[error("the last event does not end the run")]
    NotEnded,
    /// The chain hangs on another contract.
    #[error("the chain belongs to another contract")]
    OtherContract,
}

/// Returns the receipt that follows from a contract and its chain.
///
/// # Errors
/// [`FoldError`] when the chain is empty, has not ended, or belongs to another contract.
pub fn fold(contract: &Contract, chain: &Chain, sealer: &Sealer) -> Result<ReceiptBody, FoldError> {
    fold_with(contract, contract.manifest_hash(), (chain, sealer))
}

/// Folds with the digest of the contract's manifest already at hand.
pub(crate) fn fold_with(
    contract: &Contract,
    manifest_hash: Digest,
    (chain, sealer): (&Chain, &Sealer),
) -> Result<ReceiptBody, FoldError> {
    if chain.contract_hash() != contract.hash() {
        return Err(FoldError::OtherContract);
    }
    let (Some(first), Some(last)) = (chain.events().first(), chain.events().last()) else {
        return Err(FoldError::EmptyChain);
    };
    let status = ended_as(last.event()).ok_or(FoldError::NotEnded)?;
    let mut body = ReceiptBody {
        run_id: contract.body().run_id.clone(),
        contract_hash: contract.hash(),
        runner: runner(contract, sealer),
        started_at: first.at(),
        ended_at: last.at(),
        status,
        events_head: chain.head(),
        event_count: chain.len(),
        workspace_in: WorkspaceIn {
            base_ref: contract.body().workspace.base_ref.clone(),
            manifest_hash,
        },
        workspace_out: WorkspaceOut { diff_hash: None, artifact_hashes: Vec::new() },
        secrets_released: Vec::new(),
        network_accessed: Vec::new(),
        models_used: Vec::new(),
        boundary_disclosures: Vec::new(),
        cost_usd: None,
        sealed_by: matches!(sealer, Sealer::Plane { .. }).then_some(SealedBy::Plane),
        decision: None,
        outcome: None,
        exit_code: None,
        usage: None,
        stdout: None,
        stderr: None,
        posture: None,
        evidence_accepted: None,
        limits: None,
        preimage: None,
        gaps: None,
        grants: None,
        lamport: None,
        operation: None,
        capture: None,
        export: None,
        git_refs: None,
        network_folded: None,
        disconnected_ms: None,
    };
    chain.events().iter().for_each(|event| fold_shared(&mut body, event));
    if is_ours(chain) {
        body.runner.isolation = None;
        chain.events().iter().for_each(|event| fold_ours(&mut body, contract, event.event()));
    }
    Ok(body)
}

/// Returns whether a chain carries what our receipts fold from.
#[must_use]
pub fn is_ours(chain: &Chain) -> bool {
    chain.events().iter().any(|event| matches!(event.event(), Event::OutcomeRecorded { .. }))
}

/// Returns the status a last event stands for; other events end nothing.
#[must_use]
pub const fn ended_as(event: &Event) -> Option<ReceiptStatus> {
    match event {
        Event::RunCompleted {} => Some(ReceiptStatus::Completed),
        Event::RunFailed { .. } => Some(ReceiptStatus::Failed),
        Event::RunCancelled { .. } => Some(ReceiptStatus::Cancelled),
        _ => None,
    }
}

fn runner(contract: &Contract, sealer: &Sealer) -> ReceiptRunner {
    let pool = contract.body().runner.pool.clone();
    let isolation: Option<Isolation> = Some(contract.body().isolation_or_default());
    let (runner_id, key_id) = match sealer {
        Sealer::Runner { runner_id, key_id } => (runner_id.clone(), key_id.clone()),
        Sealer::Plane { key_id } => (RunnerId::plane(), key_id.clone()),
    };
    ReceiptRunner { runner_id, key_id, pool, attestation_tier: AttestationTier::Mock, isolation }
}

fn fold_shared(body: &mut ReceiptBody, event: &ChainedEvent) {
    match event.event() {
        Event::RunClaimed { attestation_tier: Some(tier), .. } => {
            body.runner.attestation_tier = *tier;
        }
        Event::SecretReleased { name, scope } => body.secrets_released.push(ReleasedSecret {
            name: name.clone(),
            scope: scope.clone(),
            ts: event.at(),
        }),
        Event::NetworkConnected { host, decision, .. } => {
            let access = NetworkAccess { host: host.clone(), decision: *decision };
            add_network(&mut body.network_accessed, access);
        }
        Event::BoundaryCrossed { direction, content_hash, data_class } => {
            body.boundary_disclosures.push(BoundaryDisclosure {
                direction: *direction,
                content_hash: *content_hash,
                data_class: data_class.clone(),
            });
        }
        Event::ArtifactCreated { kind, hash } => {
            body.workspace_out.artifact_hashes.push(*hash);
            if *kind == ArtifactKind::Diff {
                body.workspace_out.diff_hash = Some(*hash);
            }
        }
        _ => {}
    }
}

/// Distinct decisions, grouped by host in the order hosts were first seen.
fn add_network(list: &mut Vec<NetworkAccess>, access: NetworkAccess) {
    if list.contains(&access) {
        return;
    }
    match list.iter().rposition(|other| other.host == access.host) {
        Some(last) => list.insert(last + 1, access),
        None => list.push(access),
    }
}

fn fold_ours(body: &mut ReceiptBody, contract: &Contract, event: &Event) {
    match event {
        Event::DecisionMade { decision, reasons, rules, policy_hash, level } => {
            body.decision = Some(DecisionSummary {
                decision: *decision,
                reasons: reasons.clone(),
                rules: rules.clone(),
                policy_hash: *policy_hash,
                level: *level,
            });
        }
        Event::RunStarted { lamport, .. } => body.lamport = *lamport,
        Event::RunDisconnected { duration_ms, .. } => {
            let before = body.disconnected_ms.unwrap_or(0);
            body.disconnected_ms = Some(before.saturating_add(*duration_ms));
        }
        Event::PreflightChecked { evidence_accepted, .. } => {
            body.evidence_accepted = Some(evidence_accepted.clone());
            fold_boundary(body, contract, event);
        }
        Event::PostureObserved { .. } => fold_boundary(body, contract, event),
        Event::OperationPerformed { .. }
        | Event::CaptureRecorded { .. }
        | Event::ExportJudged { .. }
        | Event::GitRefUpdated { .. }
        | Event::NetworkFolded { .. } => fold_observation(body, event),
        Event::GapFound { gap, kind, detail } => {
            body.gaps.get_or_insert_default().push(ReceiptGap {
                gap: gap.clone(),
                kind: kind.clone(),
                detail: detail.clone(),
                decision: None,
            });
        }
        Event::GapDecided { gap, decision, .. } => {
            let found = body.gaps.iter_mut().flatten().find(|found| found.gap == *gap);
            if let Some(found) = found {
                found.decision = Some(*decision);
            }
        }
        Event::GrantAdded { kind, value, by } => {
            let grant = ReceiptGrant { kind: kind.clone(), value: value.clone(), by: by.clone() };
            body.grants.get_or_insert_default().push(grant);
        }
        Event::PreimageBound { preimage } => body.preimage = Some(preimage.clone()),
        Event::ModelCalled { provider, model, cost_usd } => {
            let used = ModelUse { provider: provider.clone(), model: model.clone() };
            if !body.models_used.contains(&used) {
                body.models_used.push(used);
            }
            if let Some(cost) = cost_usd {
                body.cost_usd = Some(body.cost_usd.unwrap_or(0.0) + cost);
            }
        }
        Event::OutputRecorded { stdout, stderr } => {
            body.stdout = Some(*stdout);
            body.stderr = Some(*stderr);
        }
        Event::OutcomeRecorded { outcome, exit_code, usage } => {
            body.outcome = Some(outcome.clone());
            body.exit_code = *exit_code;
            body.usage = Some(usage.clone());
        }
        _ => {}
    }
}

/// What the boundary held: of preflight and run the later counts, because it saw this very run.
fn fold_boundary(body: &mut ReceiptBody, contract: &Contract, event: &Event) {
    let (Event::PreflightChecked { posture, limits_enforced, limits_observed, .. }
    | Event::PostureObserved { posture, limits_enforced, limits_observed }) = event
    else {
        return;
    };
    body.runner.isolation = Some(posture.isolation);
    body.posture = Some(posture.clone());
    body.limits = Some(ReceiptLimits {
        requested: contract.body().limits.clone(),
        enforced: limits_enforced.clone(),
        observed: limits_observed.clone(),
    });
}

fn fold_observation(body: &mut ReceiptBody, event: &Event) {
    match event {
        Event::OperationPerformed { operation, succeeded, guards, .. } => {
            body.operation = Some(ReceiptOperation {
                name: operation.clone(),
                succeeded: *succeeded,
                guards: guards.clone(),
            });
            // No program ran: whatever boundary stood ready held nothing of this.
            body.runner.isolation = None;
            body.posture = None;
            body.evidence_accepted = None;
            body.limits = None;
        }
        Event::CaptureRecorded { extent, files, reason } => {
            let (extent, files, reason) = (*extent, *files, reason.clone());
            body.capture = Some(ReceiptCapture { extent, files, reason });
        }
        Event::ExportJudged { verdict, count, .. } => {
            body.export.get_or_insert_default().add(*verdict, count.unwrap_or(1));
        }
        Event::GitRefUpdated { reference, repository, old, new } => {
            body.git_refs.get_or_insert_default().push(ReceiptGitRef {
                reference: reference.clone(),
                repository: repository.clone(),
                old: old.clone(),
                new: new.clone(),
            });
        }
        Event::NetworkFolded { destinations, attempts, hash } => {
            let (destinations, attempts, hash) = (*destinations, *attempts, *hash);
            body.network_folded = Some(FoldedDestinations { destinations, attempts, hash });
        }
        _ => {}
    }
}
