//! What the plane shows of runs and runners.

use serde::{Deserialize, Serialize};

use crate::decision::Decision;
use crate::event::FailureClass;
use crate::execution::ExecutionSpec;
use crate::request::{
    ActorRef, AgentSpec, BudgetSpec, ContinuationRef, Disclosure, NetworkPolicy, SecretClaim,
};
use crate::{
    ChainedEvent, Digest, Isolation, KeyId, PoolName, RelPath, RunId, RunState, RunnerId,
    Timestamp, WireStatus,
};

/// The answer to a submitted run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubmitResult {
    /// Which run.
    pub run_id: RunId,
    /// Where it stands.
    pub status: WireStatus,
    /// What people must agree to.
    pub consent_requirements: Vec<String>,
    /// Why no enrolled runner can serve it, and what would help. Ours; absent when one can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unserved: Option<String>,
}

/// One run with its chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    /// Which run.
    pub run_id: RunId,
    /// Where it stands, in the reference's word.
    pub status: WireStatus,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What people must agree to.
    pub consent_requirements: Vec<String>,
    /// Why it failed, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
    /// Where it stands, in our word. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// Who approved so far, while people are asked. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approved_by: Vec<String>,
    /// Until when people may answer. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Its chain.
    pub events: Vec<ChainedEvent>,
}

/// One run in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Which run.
    pub run_id: RunId,
    /// Where it stands, in the reference's word.
    pub status: WireStatus,
    /// Which agent.
    pub agent_kind: String,
    /// Where.
    pub pool: PoolName,
    /// The task.
    pub prompt: String,
    /// Who asked.
    pub requested_by: ActorRef,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What people must agree to.
    pub consent_requirements: Vec<String>,
    /// Whether a receipt exists.
    pub has_receipt: bool,
    /// Where it goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<ContinuationRef>,
    /// Where it stands, in our word. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
}

/// One enrolled runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunnerSummary {
    /// Which runner.
    pub runner_id: RunnerId,
    /// Where it works.
    pub pool: PoolName,
    /// Its key.
    pub key_id: KeyId,
    /// Since when.
    pub enrolled_at: Timestamp,
    /// Whether it was sent away. Ours.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// When it last asked for work. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// Whether it has not been heard for longer than a runner that works is ever silent. Ours.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreachable: bool,
}

/// What would travel of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisclosedWorkspace {
    /// The commit.
    pub base_ref: String,
    /// The bundle's digest.
    pub bundle_hash: Digest,
    /// The digest of the uncommitted changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_diff_hash: Option<Digest>,
    /// Untracked files that would travel.
    pub untracked_paths: Vec<RelPath>,
    /// Paths that were held back.
    pub denied_paths: Vec<RelPath>,
}

/// What the policy says to a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDecisionView {
    /// The answer.
    pub decision: Decision,
    /// Why.
    pub reason: String,
    /// What people must agree to.
    pub consent_requirements: Vec<String>,
}

/// The answer to a dry run: what a run would disclose and use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisclosureReport {
    /// Always true.
    pub dry_run: bool,
    /// Which agent.
    pub agent: AgentSpec,
    /// Where.
    pub pool: PoolName,
    /// What would travel.
    pub workspace: DisclosedWorkspace,
    /// Which secrets would be released.
    pub secrets: Vec<SecretClaim>,
    /// What it could reach.
    pub network: NetworkPolicy,
    /// What it could cost.
    pub budget: BudgetSpec,
    /// What may be told.
    pub disclosure: Disclosure,
    /// What would start.
    pub execution: ExecutionSpec,
    /// Which tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Where it would go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<ContinuationRef>,
    /// What the policy says.
    pub policy_decision: PolicyDecisionView,
}

/// The body of every refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong, for people.
    pub error: String,
    /// What went wrong, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Every issue of the body, each `path: message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issues: Option<Vec<String>>,
    /// Every reason of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<String>>,
    /// Why in a word, for the receipt of a run that may not go on. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureClass>,
    /// The run whose receipt says the same. Ours.
    #[serde(rename = "runId", skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
}

impl ErrorBody {
    /// Returns a refusal in words alone.
    #[must_use]
    pub fn text(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            code: None,
            issues: None,
            reasons: None,
            failure: None,
            run_id: None,
        }
    }
}
