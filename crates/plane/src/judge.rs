//! The judge: from the policy room's decision to the judgment that notary and approvals work with.

use std::collections::BTreeMap;

use warrant_policy::{
    Decision, Facts, PolicySnapshot, Surroundings, decide, decide_without_policy,
};
use warrant_protocol::request::SecretClaim;
use warrant_protocol::{DecisionSummary, Digest, RunRequest};

use crate::notary::{ApprovalRequirement, Judgment};

/// Returns what stands for the policy's digest where there is no policy; nothing has it.
#[must_use]
pub fn no_policy_hash() -> Digest {
    Digest::of(b"warrant: no policy")
}

/// Has the policy decide about a request in its surroundings. Without a policy the answer is no.
#[must_use]
pub fn judge(
    policy: Option<&PolicySnapshot>,
    request: &RunRequest,
    around: Surroundings,
) -> Judgment {
    let Some(policy) = policy else { return without_policy() };
    let decision = decide(policy, &Facts::of(request, around));
    let (terms, requirements) = match &decision {
        Decision::Allow { terms, .. } => (Some(terms), Vec::new()),
        Decision::Ask(ask) => {
            let wanted = ask.requirements.iter().map(|wanted| ApprovalRequirement {
                name: wanted.name.clone(),
                level: wanted.level,
                approvers: wanted.approvers.clone(),
                quorum: wanted.quorum,
                expires_min: wanted.expires_min,
            });
            (Some(&ask.terms), wanted.collect())
        }
        Decision::Deny { .. } => (None, Vec::new()),
    };
    Judgment {
        summary: decision.summary(policy),
        policy_hash: policy.hash(),
        secrets: claims(policy, request),
        requirements,
        limits: terms.map(|terms| terms.limits.clone()),
        masks: terms.map(|terms| terms.masks.iter().cloned().collect()).unwrap_or_default(),
        required_posture: terms
            .map(|terms| terms.posture.keys().cloned().collect())
            .unwrap_or_default(),
        evidence: terms.map(|terms| terms.evidence.clone()).unwrap_or_default(),
    }
}

fn without_policy() -> Judgment {
    let reasons = vec![decide_without_policy().reason()];
    let summary = DecisionSummary {
        decision: warrant_protocol::Decision::Deny,
        reasons,
        rules: Vec::new(),
        policy_hash: None,
        level: None,
    };
    Judgment {
        summary,
        policy_hash: no_policy_hash(),
        secrets: Vec::new(),
        requirements: Vec::new(),
        limits: None,
        masks: Vec::new(),
        required_posture: Vec::new(),
        evidence: BTreeMap::new(),
    }
}

/// The scope of a secret is that of the first rule with its name, else its pool.
fn claims(policy: &PolicySnapshot, request: &RunRequest) -> Vec<SecretClaim> {
    let rules = &policy.document().body().secrets.releasable;
    let claim = |name: &warrant_protocol::SecretName| {
        let rule = rules.iter().find(|rule| rule.name == *name);
        let scope =
            rule.map_or_else(|| format!("pool:{}", request.pool), |rule| rule.scope.clone());
        SecretClaim { name: name.clone(), scope }
    };
    request.secret_names.iter().map(claim).collect()
}
