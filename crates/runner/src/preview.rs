//! What a request would become here, without running or storing anything: `--dry-run`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use warrant_protocol::contract::{IssuerRole, KeyRef, RunnerChoice, Task};
use warrant_protocol::request::{AgentSpec, PathGap, SecretClaim};
use warrant_protocol::{
    ContractBody, Digest, Isolation, KeyId, Limits, RunId, RunRequest, Timestamp,
};
use warrant_sandbox::lowering::{Asked, Gap, GapDecision, GapEvent, GapReason, Lowering, Root};
use warrant_sandbox::{Backend, Invocation, Refusal, Stdin};

use crate::own::keep_out;
use crate::site::Ownership;
use crate::{fit, gaps};

/// What policy adds to a request.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The limits it gives, if any.
    pub limits: Option<&'a Limits>,
    /// Globs of secret files that it hides.
    pub masks: &'a [String],
}

/// Returns the lowered plan of a request as JSON: effects, gaps, roots and the backend's artifact,
/// or where it would stop and why.
///
/// `terms` are those the policy gives; a request's own limits count where it gives none.
#[must_use]
pub fn preview(
    request: &RunRequest,
    terms: Terms<'_>,
    (workspace, own): (&Path, &Path),
    backend: &dyn Backend,
) -> Value {
    let Some(invocation) = invocation_of(request, terms, workspace) else {
        return json!({"refused": "this agent cannot be started here"});
    };
    let isolation = backend.isolation();
    let looks_at_gaps = gaps::is_looked_at(isolation);
    // What a request asks people for is shown as it will be when they agreed.
    let approval = gaps::approval("an approver".to_owned(), request.files.as_ref());
    let (invocation, lowering, found) = if looks_at_gaps {
        match gaps::lower(invocation.clone(), isolation, Some(&approval)) {
            Ok(lowered) => (lowered.invocation, lowered.lowering.to_value(), lowered.events),
            Err(stopped) => {
                let message = match stopped.asked {
                    Asked::Person { message } => message,
                    Asked::Nobody(refusal) => refusal.message,
                };
                return json!({
                    "lowering": gaps::survey(&invocation, isolation).to_value(),
                    "gaps": gaps_json(&stopped.events),
                    "refused": message,
                });
            }
        }
    } else {
        (invocation, Value::Null, Vec::new())
    };
    let kept_out = keep_out(invocation, own, (Ownership::Shared, None));
    match kept_out.and_then(|invocation| backend.prepare(invocation)) {
        Ok(plan) => json!({
            "lowering": lowering,
            "gaps": gaps_json(&found),
            "backend": plan.artifact,
        }),
        Err(refusal) => json!({
            "lowering": lowering,
            "gaps": gaps_json(&found),
            "refused": refusal.to_string(),
        }),
    }
}

/// What a request meets on this machine before anything starts.
#[derive(Debug)]
pub enum Foreseen {
    /// It has what it needs.
    Ready {
        /// What it will have.
        lowering: Lowering,
        /// What the backend will apply.
        artifact: Value,
    },
    /// It needs something that it was not given.
    Gap {
        /// What is missing.
        gap: Gap,
        /// What it would have without it.
        lowering: Lowering,
    },
    /// This machine or this backend does not do it.
    Refused {
        /// Why.
        refusal: Refusal,
        /// What it would have.
        lowering: Lowering,
    },
}

/// Returns what a request meets here, with no gap closed by anybody. Looks at files, to find where
/// links lead; starts and stores nothing.
#[must_use]
pub fn foresee(
    request: &RunRequest,
    terms: Terms<'_>,
    (workspace, own): (&Path, &Path),
    backend: &dyn Backend,
) -> Option<Foreseen> {
    let invocation = invocation_of(request, terms, workspace)?;
    let isolation = backend.isolation();
    let surveyed = gaps::survey(&invocation, isolation);
    let (invocation, lowering) = match gaps::is_looked_at(isolation) {
        false => (invocation, surveyed.clone()),
        true => match gaps::lower(invocation, isolation, None) {
            Ok(lowered) => (lowered.invocation, lowered.lowering),
            Err(stopped) => {
                let gap = stopped.events.into_iter().last()?.gap;
                return Some(Foreseen::Gap { gap, lowering: surveyed });
            }
        },
    };
    let kept_out = keep_out(invocation, own, (Ownership::Shared, None));
    Some(match kept_out.and_then(|invocation| backend.prepare(invocation)) {
        Ok(plan) => Foreseen::Ready { lowering, artifact: plan.artifact },
        Err(refusal) => Foreseen::Refused { refusal, lowering },
    })
}

/// Returns the roots that the local tiers bring by themselves.
#[must_use]
pub fn runtime_roots() -> Vec<Root> {
    gaps::runtime_roots()
}

/// Returns the paths that people would have to approve for a request to run on this machine;
/// nothing when no approval would help or none is needed.
///
/// Looks at files, to find where links lead; starts and stores nothing.
#[must_use]
pub fn needed_paths(
    request: &RunRequest,
    workspace: &Path,
    isolation: Isolation,
) -> Option<Vec<PathGap>> {
    if !gaps::is_looked_at(isolation) {
        return None;
    }
    let terms = Terms { limits: None, masks: &[] };
    gaps::needs(&invocation_of(request, terms, workspace)?, isolation)
}

/// Returns what the backend would be asked to run.
fn invocation_of(request: &RunRequest, terms: Terms<'_>, workspace: &Path) -> Option<Invocation> {
    let contract = unsigned(request, terms, Timestamp::from_unix_ms(0).ok()?);
    let execution = fit::prepare_execution(&contract, &BTreeMap::new(), None).ok()?;
    let limits = fit::limits_of(&contract, &execution, None);
    let place = fit::Place {
        workspace,
        ownership: Ownership::Shared,
        read: None,
        stdin: &Stdin::Empty,
        tty: None,
    };
    Some(fit::invocation(&contract, &execution, place, limits))
}

fn gaps_json(events: &[GapEvent]) -> Vec<Value> {
    let row = |event: &GapEvent| {
        json!({
            "reason": event.gap.reason.as_str(),
            "path": event.gap.path,
            "message": event.gap.message,
            "decision": match event.decision {
                GapDecision::Grant(_) | GapDecision::Rewrite { .. } if by_people(event) => "ask",
                GapDecision::Grant(_) => "grant",
                GapDecision::Rewrite { .. } => "rewrite",
                GapDecision::Ask { .. } => "ask",
                GapDecision::Deny(_) => "deny",
            },
        })
    };
    events.iter().map(row).collect()
}

/// Whether a gap was closed by people, not by policy alone.
const fn by_people(event: &GapEvent) -> bool {
    !matches!(event.gap.reason, GapReason::CwdOutsideDeclaredRoots)
}

/// The members of the contract that the request would get; nobody signs it.
fn unsigned(request: &RunRequest, terms: Terms<'_>, never: Timestamp) -> ContractBody {
    let masks = request.masks.iter().flatten().chain(terms.masks).cloned();
    let secrets = request.secret_names.iter();
    let claim = |name: &warrant_protocol::SecretName| SecretClaim {
        name: name.clone(),
        scope: "requested".to_owned(),
    };
    ContractBody {
        run_id: RunId::from_random([0; 16]),
        issued_at: never,
        issuer: KeyRef { key_id: KeyId::of_pem("nobody"), role: IssuerRole::Plane },
        requested_by: request.requested_by.clone(),
        approved_by: None,
        agent: AgentSpec {
            kind: request.agent_kind.clone(),
            version: request.agent_version.clone(),
        },
        task: Task { prompt: request.prompt.clone() },
        runner: RunnerChoice { pool: request.pool.clone() },
        workspace: request.workspace.clone(),
        policy_hash: Digest::DELETED,
        secrets: secrets.map(claim).collect(),
        network: request.network.clone(),
        budget: request.budget.clone(),
        disclosure: request.disclosure,
        execution: Some(request.execution_or_default()),
        isolation: request.isolation,
        continuation: None,
        expires_at: never,
        request_hash: None,
        decision: None,
        limits: terms.limits.or(request.limits.as_ref()).cloned(),
        required_posture: request.required_posture.clone(),
        mode: request.mode,
        files: request.files.clone(),
        egress: request.egress.clone(),
        masks: Some(masks.collect::<BTreeSet<_>>().into_iter().collect()),
        image: request.image.clone(),
        required_evidence: None,
        retry_safe: None,
        critical: None,
    }
}
