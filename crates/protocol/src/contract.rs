//! The contract: a plane's signed permission for one run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::hash_canonical;
use crate::decision::DecisionSummary;
use crate::execution::ExecutionSpec;
use crate::manifest::WorkspaceManifest;
use crate::request::{
    ActorRef, AgentSpec, BudgetSpec, ContinuationRef, Disclosure, EgressRule, FileGrants,
    NetworkPolicy, SecretClaim, WorkspaceMode,
};
use crate::signed::{Signed, SignedBody};
use crate::{Digest, Evidence, Isolation, KeyId, Limits, PoolName, RunId, Timestamp};

/// How long a contract lasts: an hour.
pub const CONTRACT_LIFETIME_MS: u64 = 3_600_000;

/// A signed contract. Its hash is the first link of the run's chain.
pub type Contract = Signed<ContractBody>;

/// The role of a contract's issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IssuerRole {
    /// An organization.
    Org,
    /// The plane.
    Plane,
    /// A runner.
    Runner,
}

/// Which key issued the contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// The key.
    pub key_id: KeyId,
    /// Whose it is.
    pub role: IssuerRole,
}

/// The task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// What to do.
    pub prompt: String,
}

/// Where to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerChoice {
    /// The pool.
    pub pool: PoolName,
}

/// The members of a contract. The last ones are ours; the reference ignores them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContractBody {
    /// The run it permits.
    pub run_id: RunId,
    /// When it was signed.
    pub issued_at: Timestamp,
    /// Who signed.
    pub issuer: KeyRef,
    /// Who asked.
    pub requested_by: ActorRef,
    /// Who approved, when approval was needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<Vec<ActorRef>>,
    /// Which agent.
    pub agent: AgentSpec,
    /// The task.
    pub task: Task,
    /// Where.
    pub runner: RunnerChoice,
    /// The workspace.
    pub workspace: WorkspaceManifest,
    /// The policy snapshot it was judged by.
    pub policy_hash: Digest,
    /// The secrets it releases.
    pub secrets: Vec<SecretClaim>,
    /// What the run may reach.
    pub network: NetworkPolicy,
    /// What it may cost.
    pub budget: BudgetSpec,
    /// What may be told.
    pub disclosure: Disclosure,
    /// What to start. The plane always writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionSpec>,
    /// Which tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Where it goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<ContinuationRef>,
    /// When it ends.
    pub expires_at: Timestamp,
    /// The digest of the request it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_hash: Option<Digest>,
    /// How it was decided, and by which rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionSummary>,
    /// Limits for the whole process tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Posture components that must hold, or nothing runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_posture: Option<Vec<String>>,
    /// How the workspace may be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<WorkspaceMode>,
    /// Further files of the runner's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FileGrants>,
    /// Destinations with ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<EgressRule>>,
    /// Globs of files that exist inside but cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<Vec<String>>,
    /// The image or template, for tiers that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The weakest evidence that counts for a component, where it is not the usual `reported`.
    /// `unavailable` accepts that the provider does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_evidence: Option<BTreeMap<String, Evidence>>,
    /// Whether a run that was lost may be started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_safe: Option<bool>,
    /// Members a reader must understand, or refuse the contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical: Option<Vec<String>>,
}

impl ContractBody {
    /// Returns what to start: as written, or by agent and prompt.
    #[must_use]
    pub fn execution_or_default(&self) -> ExecutionSpec {
        self.execution.clone().unwrap_or_else(|| {
            let version = self.agent.version.as_deref();
            ExecutionSpec::by_agent(&self.agent.kind, version, &self.task.prompt)
        })
    }

    /// Returns the tier, which is `process` where the contract is silent.
    #[must_use]
    pub fn isolation_or_default(&self) -> Isolation {
        self.isolation.unwrap_or(Isolation::Process)
    }
}

impl Contract {
    /// Returns the digest of the workspace manifest as it was received.
    #[must_use]
    pub fn manifest_hash(&self) -> Digest {
        hash_canonical(self.raw().get("workspace").unwrap_or(&Value::Null))
    }

    /// Returns whether the contract still permits anything at `now`.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        now < self.body().expires_at
    }
}

impl SignedBody for ContractBody {
    const VERSION: &'static str = "warrant.contract.v1";
    const NAME: &'static str = "contract";
}
