//! The receipt: what happened, signed by the runner and countersigned by the plane.
//!
//! Nobody writes a receipt by hand: [`crate::fold()`] makes its body from the chain.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decision::DecisionSummary;
use crate::event::{AttestationTier, Direction, GapDecision, NetworkVerdict, StreamSummary};
use crate::observation::{
    FoldedDestinations, ReceiptCapture, ReceiptExport, ReceiptGitRef, ReceiptOperation,
};
use crate::preimage::Preimage;
use crate::request::ActorRef;
use crate::signed::{Signed, SignedBody};
use crate::{
    Digest, Evidence, Isolation, KeyId, Limits, Outcome, PoolName, Posture, RunId, RunnerId,
    SecretName, Timestamp, Usage,
};

/// A signed receipt.
pub type Receipt = Signed<ReceiptBody>;

/// How a run ended, in the reference's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiptStatus {
    /// The program exited with 0.
    Completed,
    /// It did not, or never started.
    Failed,
    /// Someone stopped it.
    Cancelled,
}

impl ReceiptStatus {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Who ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptRunner {
    /// The runner.
    pub runner_id: RunnerId,
    /// Its key.
    pub key_id: KeyId,
    /// Its pool.
    pub pool: PoolName,
    /// How much about its machine was proved.
    pub attestation_tier: AttestationTier,
    /// The tier the program ran in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// The workspace that went in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceIn {
    /// The commit.
    pub base_ref: String,
    /// The manifest's digest.
    pub manifest_hash: Digest,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceOut {
    /// The digest of the diff; on the wire an empty text where there is none.
    #[serde(with = "digest_or_empty")]
    pub diff_hash: Option<Digest>,
    /// The digests of everything kept, in order.
    pub artifact_hashes: Vec<Digest>,
}

/// A secret that was released, and when.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReleasedSecret {
    /// Its name.
    pub name: SecretName,
    /// What for.
    pub scope: String,
    /// When.
    pub ts: Timestamp,
}

/// A destination and what was decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkAccess {
    /// The host.
    pub host: String,
    /// The decision.
    pub decision: NetworkVerdict,
}

/// A model that was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Whose.
    pub provider: String,
    /// Which.
    pub model: String,
}

/// Something that crossed the boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BoundaryDisclosure {
    /// Which way.
    pub direction: Direction,
    /// Its digest.
    pub content_hash: Digest,
    /// What sort of thing.
    pub data_class: String,
}

/// Limits as asked for and as held: two different things.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptLimits {
    /// What the contract says, if it says anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<Limits>,
    /// What held.
    pub enforced: Limits,
    /// What was only looked at from time to time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Limits>,
}

/// A gap and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptGap {
    /// Its name within the run.
    pub gap: String,
    /// What sort.
    pub kind: String,
    /// What exactly.
    pub detail: String,
    /// What became of it; absent when nobody decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<GapDecision>,
}

/// Something given beyond the first invocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptGrant {
    /// What sort.
    pub kind: String,
    /// What exactly.
    pub value: String,
    /// Who gave it, when it was a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<ActorRef>,
}

/// Who sealed a receipt that no runner could sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SealedBy {
    /// The plane.
    Plane,
}

/// The members of a receipt. Those after `costUsd` are ours; the reference ignores them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptBody {
    /// The run.
    pub run_id: RunId,
    /// Its contract.
    pub contract_hash: Digest,
    /// Who ran it.
    pub runner: ReceiptRunner,
    /// When the chain began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How.
    pub status: ReceiptStatus,
    /// The hash of the last event.
    pub events_head: Digest,
    /// How many events.
    pub event_count: u64,
    /// What went in.
    pub workspace_in: WorkspaceIn,
    /// What came out.
    pub workspace_out: WorkspaceOut,
    /// Which secrets were released.
    pub secrets_released: Vec<ReleasedSecret>,
    /// Which destinations were decided.
    pub network_accessed: Vec<NetworkAccess>,
    /// Which models were used.
    pub models_used: Vec<ModelUse>,
    /// What crossed the boundary.
    pub boundary_disclosures: Vec<BoundaryDisclosure>,
    /// What it cost, when that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Who sealed it, when no runner could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealed_by: Option<SealedBy>,
    /// How the request was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionSummary>,
    /// How the program ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Its exit code, if it exited by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// What it used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What it said on standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<StreamSummary>,
    /// What it said on standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<StreamSummary>,
    /// What was enforced, and how that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posture: Option<Posture>,
    /// The evidence that was accepted for each demanded component.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence_accepted: Option<BTreeMap<String, Evidence>>,
    /// Limits as asked for and as held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ReceiptLimits>,
    /// The sandbox by six values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preimage: Option<Preimage>,
    /// What was missing, and what became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Vec<ReceiptGap>>,
    /// What was given later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grants: Option<Vec<ReceiptGrant>>,
    /// The sandbox's Lamport clock at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lamport: Option<u64>,
    /// What Warrant did itself, when no program ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<ReceiptOperation>,
    /// How much of what changed was seen; absent when that was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<ReceiptCapture>,
    /// What the export gate decided, when it named anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<ReceiptExport>,
    /// References of git that the program changed, when there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_refs: Option<Vec<ReceiptGitRef>>,
    /// Blocked destinations that are in an artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_folded: Option<FoldedDestinations>,
    /// For how long the runner did not hear its plane while the run went on, all in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disconnected_ms: Option<u64>,
}

impl SignedBody for ReceiptBody {
    const VERSION: &'static str = "warrant.receipt.v1";
    const NAME: &'static str = "receipt";
}

mod digest_or_empty {
    //! The reference writes an empty text where there is no diff.

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::Digest;

    pub(super) fn serialize<S: Serializer>(
        digest: &Option<Digest>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&digest.map(|digest| digest.to_hex()).unwrap_or_default())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Digest>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(D::Error::custom) }
    }
}
