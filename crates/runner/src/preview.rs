//! What a request would become here, without running or storing anything: `--dry-run`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use warrant_protocol::contract::{IssuerRole, KeyRef, RunnerChoice, Task};
use warrant_protocol::request::{AgentSpec, SecretClaim};
use warrant_protocol::{ContractBody, Digest, KeyId, Limits, RunId, RunRequest, Timestamp};
use warrant_sandbox::lowering::Asked;
use warrant_sandbox::{Backend, Stdin};

use crate::site::Ownership;
use crate::{fit, gaps};

/// Returns the lowered plan of a request as JSON: effects, gaps, roots and the backend's artifact,
/// or where it would stop and why.
///
/// `limits` are those the policy gives; a request's own count where it gives none.
#[must_use]
pub fn preview(
    request: &RunRequest,
    limits: &Option<Limits>,
    workspace: &Path,
    backend: &dyn Backend,
) -> Value {
    let Ok(never) = Timestamp::from_unix_ms(0) else { return Value::Null };
    let contract = unsigned(request, limits, never);
    let execution = match fit::prepare_execution(&contract, &BTreeMap::new(), None) {
        Ok(execution) => execution,
        Err(_) => return json!({"refused": "this agent cannot be started here"}),
    };
    let limits = fit::limits_of(&contract, &execution, None);
    let place = fit::Place {
        workspace,
        ownership: Ownership::Shared,
        read: None,
        stdin: &Stdin::Empty,
        tty: None,
    };
    let invocation = fit::invocation(&contract, &execution, place, limits);
    let isolation = backend.isolation();
    let looks_at_gaps = gaps::is_looked_at(isolation);
    let (invocation, lowering, found) = if looks_at_gaps {
        match gaps::lower(invocation, isolation, None) {
            Ok(lowered) => (lowered.invocation, lowered.lowering.to_value(), lowered.events),
            Err(stopped) => {
                let message = match stopped.asked {
                    Asked::Person { message } => message,
                    Asked::Nobody(refusal) => refusal.message,
                };
                return json!({"refused": message, "gaps": gaps_json(&stopped.events)});
            }
        }
    } else {
        (invocation, Value::Null, Vec::new())
    };
    match backend.prepare(invocation) {
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

fn gaps_json(events: &[warrant_sandbox::lowering::GapEvent]) -> Vec<Value> {
    let row = |event: &warrant_sandbox::lowering::GapEvent| {
        json!({
            "reason": event.gap.reason.as_str(),
            "path": event.gap.path,
            "message": event.gap.message,
        })
    };
    events.iter().map(row).collect()
}

/// The members of the contract that the request would get; nobody signs it.
fn unsigned(request: &RunRequest, limits: &Option<Limits>, never: Timestamp) -> ContractBody {
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
        limits: limits.clone().or_else(|| request.limits.clone()),
        required_posture: request.required_posture.clone(),
        mode: request.mode,
        files: request.files.clone(),
        egress: request.egress.clone(),
        masks: request.masks.clone(),
        image: request.image.clone(),
        required_evidence: None,
        retry_safe: None,
        critical: None,
    }
}
