//! The policy document `warrant.policy.v1`: the first of the two layers a request is judged by.
//!
//! Only the document lives here; the decision is the policy room's.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::canonical::hash_canonical;
use crate::json::{self, InvalidJson};
use crate::{Digest, Host, PoolName, SecretName};

/// The version text of policy documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyVersion {
    /// The one there is.
    #[serde(rename = "warrant.policy.v1")]
    V1,
}

/// How many false claims end a runner's enrollment where the document does not say.
pub const DEFAULT_MAX_FALSE_CLAIMS: u64 = 3;

/// Which pools may be used, and for how long their runners are believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunnerRules {
    /// The pools.
    pub allow_pools: Vec<PoolName>,
    /// How many false claims end a runner's enrollment. Ours;
    /// [`DEFAULT_MAX_FALSE_CLAIMS`] where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_false_claims: Option<u64>,
}

/// Which agents may be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentRules {
    /// The agent kinds.
    pub allow: Vec<String>,
}

/// Where a class of data may go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataClassRule {
    /// The class.
    pub data_class: String,
    /// The pools it may go to.
    pub allow_pools: Vec<PoolName>,
}

/// What may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkRules {
    /// Whether everything not listed is refused.
    pub default_deny: bool,
    /// What is listed.
    pub allow_hosts: Vec<Host>,
}

/// A secret that may be released, what for, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleasableSecret {
    /// Its name.
    pub name: SecretName,
    /// What for.
    pub scope: String,
    /// Where.
    pub pools: Vec<PoolName>,
}

/// Which secrets may be released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRules {
    /// The secrets.
    pub releasable: Vec<ReleasableSecret>,
}

/// What a run may cost at most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BudgetCeiling {
    /// Money.
    pub max_spend_usd: f64,
    /// Time.
    pub max_duration_min: f64,
}

/// When people must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConsentTrigger {
    /// When a secret is wanted.
    SecretRelease,
    /// Always.
    AnyRun,
    /// When a certain agent is wanted.
    AgentKind,
}

/// One rule about consent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConsentRule {
    /// When it applies.
    pub when: ConsentTrigger,
    /// The agent kind, for [`ConsentTrigger::AgentKind`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#match: Option<String>,
    /// Who may agree.
    pub approvers: Vec<String>,
}

/// How long things are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetentionRules {
    /// Receipts and chains.
    pub receipts_days: u64,
    /// Blobs.
    pub artifacts_days: u64,
}

/// The members of a policy document. There is no default: use [`PolicyDocument::reference`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyBody {
    /// The version.
    pub version: PolicyVersion,
    /// Pools.
    pub runners: RunnerRules,
    /// Agents.
    pub agents: AgentRules,
    /// Data classes.
    pub data_classes: Vec<DataClassRule>,
    /// Network.
    pub network: NetworkRules,
    /// Secrets.
    pub secrets: SecretRules,
    /// Budget.
    pub budget: BudgetCeiling,
    /// Consent.
    pub consent: Vec<ConsentRule>,
    /// Retention.
    pub retention: RetentionRules,
    /// What the reference does not know: limits, files, isolation, approvals. The policy room
    /// reads it, as strictly as the rest; without it a document means what it means there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controls: Option<Value>,
}

/// A policy document: the received JSON beside its members.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyDocument {
    raw: Value,
    body: PolicyBody,
    hash: Digest,
}

/// Why JSON is not a policy document.
#[derive(Debug, Error)]
pub enum InvalidPolicy {
    /// A member is missing, unknown, or of the wrong kind.
    #[error("policy document: {0}")]
    Members(String),
    /// A number is out of its range.
    #[error("policy document: {0} must be a positive number")]
    Range(&'static str),
    /// A rule that can never apply, or applies to everyone by mistake.
    #[error("policy document: consent[{index}]: {message}")]
    Consent {
        /// Which rule.
        index: usize,
        /// What is wrong with it.
        message: &'static str,
    },
}

impl PolicyDocument {
    /// Reads a document from JSON; unknown members are refused, because a misspelled rule that
    /// is ignored permits.
    ///
    /// # Errors
    /// [`InvalidPolicy`] naming what is wrong.
    pub fn from_value(raw: Value) -> Result<Self, InvalidPolicy> {
        let members = |cause: InvalidJson| InvalidPolicy::Members(cause.detail());
        json::check_signable(&raw).map_err(|cause| InvalidPolicy::Members(cause.to_string()))?;
        let body: PolicyBody = json::view(&raw).map_err(members)?;
        check_body(&body)?;
        let hash = hash_canonical(&raw);
        Ok(Self { raw, body, hash })
    }

    /// Reads a document from JSON text.
    ///
    /// # Errors
    /// [`InvalidPolicy`] naming what is wrong.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, InvalidPolicy> {
        let value = json::parse(bytes).map_err(|cause| InvalidPolicy::Members(cause.detail()))?;
        Self::from_value(value)
    }

    /// Returns a document with these members.
    ///
    /// # Errors
    /// [`InvalidPolicy`] naming what is wrong.
    pub fn new(body: &PolicyBody) -> Result<Self, InvalidPolicy> {
        let raw = json::to_value(body).map_err(|cause| InvalidPolicy::Members(cause.detail()))?;
        Self::from_value(raw)
    }

    /// Returns the members of the document the reference starts with: the pool `default`, its
    /// five agents, no network, no secrets, 25 dollars, an hour, nobody asked.
    #[must_use]
    pub fn reference() -> Value {
        serde_json::json!({
            "version": "warrant.policy.v1",
            "runners": {"allowPools": ["default"]},
            "agents": {"allow": ["claude-code", "codex", "pi", "mock", "command"]},
            "dataClasses": [],
            "network": {"defaultDeny": true, "allowHosts": []},
            "secrets": {"releasable": []},
            "budget": {"maxSpendUsd": 25, "maxDurationMin": 60},
            "consent": [],
            "retention": {"receiptsDays": 365, "artifactsDays": 90},
        })
    }

    /// Returns the members.
    #[must_use]
    pub const fn body(&self) -> &PolicyBody {
        &self.body
    }

    /// Returns the JSON as it was received.
    #[must_use]
    pub const fn raw(&self) -> &Value {
        &self.raw
    }

    /// Returns the digest of the canonical JSON.
    #[must_use]
    pub const fn hash(&self) -> Digest {
        self.hash
    }
}

fn check_body(body: &PolicyBody) -> Result<(), InvalidPolicy> {
    if body.budget.max_spend_usd < 0.0 {
        return Err(InvalidPolicy::Range("budget.maxSpendUsd"));
    }
    if body.budget.max_duration_min <= 0.0 {
        return Err(InvalidPolicy::Range("budget.maxDurationMin"));
    }
    if body.runners.max_false_claims == Some(0) {
        return Err(InvalidPolicy::Range("runners.maxFalseClaims"));
    }
    for (index, rule) in body.consent.iter().enumerate() {
        let is_agent_rule = rule.when == ConsentTrigger::AgentKind;
        if is_agent_rule && rule.r#match.is_none() {
            let message = "a rule for an agent kind needs `match`, or it never applies";
            return Err(InvalidPolicy::Consent { index, message });
        }
        if rule.approvers.is_empty() {
            let message = "a rule without approvers can never be satisfied";
            return Err(InvalidPolicy::Consent { index, message });
        }
    }
    Ok(())
}
