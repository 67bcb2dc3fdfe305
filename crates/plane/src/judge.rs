//! The judge: from the policy room's decision to the judgment that notary and approvals work with.
//!
//! [`EmbeddedPlane::judge`] is what callers use: it adds what the store knows about a requester to
//! what the caller knows about the request.

use std::collections::{BTreeMap, BTreeSet};

use warrant_policy::{
    Decision, Facts, History, PolicySnapshot, Surroundings, decide, decide_without_policy,
};
use warrant_protocol::request::SecretClaim;
use warrant_protocol::{DecisionSummary, Digest, RunRequest};

use crate::embedded::EmbeddedPlane;
use crate::notary::{ApprovalRequirement, Judgment};
use crate::store::StoreError;

/// How far back the counts of a requester reach.
const RECENT_MS: u64 = 600_000;

/// Classes of data that leave every run: what it changed, and what it printed.
const OUTPUT_CLASSES: [&str; 2] = ["code-diff", "session-log"];

impl EmbeddedPlane {
    /// Has the policy decide about a request, with the requester's last minutes and the classes
    /// of its data as they are. What cannot be read decides as a denial.
    #[must_use]
    pub fn judge(
        &self,
        policy: Option<&PolicySnapshot>,
        request: &RunRequest,
        around: Surroundings,
    ) -> Judgment {
        let Some(policy) = policy else { return without_policy() };
        match self.surroundings(policy, request, around) {
            Ok(around) => judge(Some(policy), request, around),
            Err(error) => {
                tracing::error!(error = %error, "the last minutes of a requester cannot be read");
                let reason = "the last minutes of this requester cannot be read, so nothing runs";
                denied(policy.hash(), vec![reason.to_owned()])
            }
        }
    }

    /// Returns what is known around a request, with what the store knows in it.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn surroundings(
        &self,
        policy: &PolicySnapshot,
        request: &RunRequest,
        around: Surroundings,
    ) -> Result<Surroundings, StoreError> {
        let span = around.now_ms.saturating_sub(RECENT_MS)..=around.now_ms;
        let denies_10m = self.store().recent_denials(&around.requester, span.clone())?;
        let runs_10m = match policy.may_read_run_count() {
            true => self.store().recent_runs(&around.requester, span)?,
            false => around.history.runs_10m,
        };
        let history = History { runs_10m, denies_10m, ..around.history };
        let data_classes = data_classes(policy, request);
        Ok(Surroundings { history, data_classes, ..around })
    }
}

/// Returns the classes of a request's data: those it names, and of those that every run has the
/// ones that the policy knows.
fn data_classes(policy: &PolicySnapshot, request: &RunRequest) -> BTreeSet<String> {
    let listed = &policy.document().body().data_classes;
    let is_listed = |class: &&str| listed.iter().any(|rule| rule.data_class == *class);
    let outputs = OUTPUT_CLASSES.into_iter().filter(is_listed).map(str::to_owned);
    request.data_classes.iter().flatten().cloned().chain(outputs).collect()
}

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
    denied(no_policy_hash(), vec![decide_without_policy().reason()])
}

fn denied(policy_hash: Digest, reasons: Vec<String>) -> Judgment {
    let summary = DecisionSummary {
        decision: warrant_protocol::Decision::Deny,
        reasons,
        rules: Vec::new(),
        policy_hash: None,
        level: None,
    };
    Judgment {
        summary,
        policy_hash,
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
