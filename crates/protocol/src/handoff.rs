//! Handing work over: checkpoints, envelopes and tool journals.
//!
//! They are content-addressed blobs, not signed objects: the contract names an envelope by its
//! digest, and the uploaded blob is exactly the canonical text.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::canonicalize;
use crate::contract::Task;
use crate::execution::ExecutionSpec;
use crate::json::{self, InvalidJson};
use crate::request::{
    ActorRef, AgentSpec, BudgetSpec, ContinuationTier, Disclosure, NetworkPolicy, SecretClaim,
};
use crate::{CheckpointId, Digest, EnvelopeId, Isolation, PoolName, Timestamp, WorkspaceManifest};

macro_rules! version {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            /// The one there is.
            #[serde(rename = $text)]
            V1,
        }
    };
}

version!(/** The version text of checkpoints. */ CheckpointVersion, "warrant.checkpoint.v1");
version!(/** The version text of envelopes. */ EnvelopeVersion, "warrant.envelope.v1");
version!(/** The version text of tool journals. */ ToolJournalVersion, "warrant.tooljournal.v1");

/// What was meant, as far as it was written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SemanticState {
    /// The transcript's digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript_hash: Option<Digest>,
    /// The tool journal's digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_journal_hash: Option<Digest>,
    /// A note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A place to go on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// The version.
    pub version: CheckpointVersion,
    /// Its name.
    pub checkpoint_id: CheckpointId,
    /// When it was made.
    pub created_at: Timestamp,
    /// How much it brings.
    pub tier: ContinuationTier,
    /// A message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What was meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub semantic: Option<SemanticState>,
    /// The files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceManifest>,
    /// The checkpoint before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<CheckpointId>,
}

/// What sort of place work comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// Someone's machine.
    Local,
}

/// Where work comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoffSource {
    /// What sort of place.
    pub kind: SourceKind,
    /// Whose.
    pub actor: ActorRef,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// What sort of place work goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// A pool of runners.
    RunnerPool,
}

/// Where work goes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoffTarget {
    /// What sort of place.
    pub kind: TargetKind,
    /// Which pool.
    pub pool: PoolName,
}

/// Work that is handed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoffEnvelope {
    /// The version.
    pub version: EnvelopeVersion,
    /// Its name.
    pub envelope_id: EnvelopeId,
    /// When it was made.
    pub created_at: Timestamp,
    /// Where it comes from.
    pub source: HandoffSource,
    /// Where it goes.
    pub target: HandoffTarget,
    /// Where to go on.
    pub checkpoint: Checkpoint,
    /// With which agent.
    pub agent: AgentSpec,
    /// To do what.
    pub task: Task,
    /// Why it is handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which secrets are wanted.
    pub secrets: Vec<SecretClaim>,
    /// What it wants to reach.
    pub network: NetworkPolicy,
    /// What it may cost.
    pub budget: BudgetSpec,
    /// What may be told.
    pub disclosure: Disclosure,
    /// What to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionSpec>,
    /// In which tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// One call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolJournalEntry {
    /// Its place.
    pub seq: u64,
    /// When.
    pub ts: Timestamp,
    /// Which tool.
    pub tool_name: String,
    /// What it was given.
    pub input: Value,
    /// What it gave back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// How it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took.
    pub duration_ms: f64,
}

/// What an agent's tools did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolJournal {
    /// The version.
    pub version: ToolJournalVersion,
    /// The calls, in order.
    pub entries: Vec<ToolJournalEntry>,
}

/// Returns the bytes to upload for something content-addressed, and their digest.
///
/// # Errors
/// [`InvalidJson`] when it has no JSON form.
pub fn to_blob<T: Serialize>(value: &T) -> Result<(Vec<u8>, Digest), InvalidJson> {
    let bytes = canonicalize(&json::to_value(value)?).into_bytes();
    let digest = Digest::of(&bytes);
    Ok((bytes, digest))
}
