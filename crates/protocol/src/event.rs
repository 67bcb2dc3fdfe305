//! What can be said in a chain: every event with its members.
//!
//! The first block is the reference's, member for member; optional members in it are ours and
//! the reference ignores them. The second block is ours. A type nobody here knows is kept as it
//! came and read as [`Event::Unknown`].
//!
//! Who says what:
//!
//! | plane | runner |
//! |---|---|
//! | `run.created`, `decision.made`, `policy.evaluated`, `consent.*`, `approval.*`, `run.claimed`, `run.started`, `secret.released`, `run.stopping`, `run.requeued`, `run.lost`, `contract.expired` | `workspace.materialized`, `preflight.checked`, `posture.refused`, `gap.*`, `grant.added`, `preimage.bound`, `network.connected`, `network.folded`, `model.called`, `command.executed`, `operation.performed`, `posture.observed`, `output.recorded`, `file.changed`, `git.ref.updated`, `export.judged`, `capture.recorded`, `artifact.created`, `boundary.crossed`, `run.disconnected`, `chain.limited`, `outcome.recorded` |
//!
//! The last event is `run.completed`, `run.failed` or `run.cancelled`, from whoever seals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chain::ChainLimit;
use crate::decision::Decision;
use crate::observation::{CaptureExtent, ExportVerdict, OperationGuard};
use crate::preimage::Preimage;
use crate::request::{ActorRef, ContinuationTier};
use crate::{
    CheckpointId, Digest, Evidence, KeyId, Limits, Outcome, Posture, RunnerId, SecretName,
    Timestamp, Usage,
};

/// Whether a destination was let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkVerdict {
    /// It was.
    Allowed,
    /// It was not.
    Blocked,
}

impl NetworkVerdict {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Blocked => "blocked",
        }
    }
}

/// Which way something crossed the boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Out of the run.
    Out,
    /// Into the run.
    In,
}

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactKind {
    /// The changes to the workspace.
    Diff,
    /// What the program said.
    Log,
    /// A file.
    File,
    /// A git bundle.
    Bundle,
    /// A trace.
    Trace,
}

impl ArtifactKind {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Diff => "diff",
            Self::Log => "log",
            Self::File => "file",
            Self::Bundle => "bundle",
            Self::Trace => "trace",
        }
    }
}

/// Why a run failed, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// Policy said no.
    PolicyDenied,
    /// Nobody approved in time.
    ConsentTimeout,
    /// No backend here makes what the contract asks for.
    CapabilityMismatch,
    /// The boundary holds less than the contract demands.
    AttestationFailed,
    /// A secret was not released.
    SecretReleaseDenied,
    /// The workspace could not be captured.
    CaptureFailed,
    /// A blob did not arrive, or not as promised.
    TransferFailed,
    /// The program failed.
    SessionFailed,
    /// The workspace had moved on.
    SideEffectConflict,
    /// A limit or budget struck.
    BudgetExceeded,
    /// Another word, of a newer version; the JSON has it.
    #[serde(other)]
    Other,
}

/// What was kept of one output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamSummary {
    /// SHA-256 of the bytes that passed the output limit.
    pub digest: Digest,
    /// How many bytes those were.
    pub bytes: u64,
    /// Whether more came than was kept.
    pub truncated: bool,
}

/// What became of a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GapDecision {
    /// What was missing was given.
    Granted,
    /// The command was rewritten so that it no longer needs it.
    Rewritten,
    /// It was not given; nothing runs.
    Denied,
}

/// One event's body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[allow(
    clippy::large_enum_variant,
    reason = "how large a JSON value is depends on others' features"
)]
pub enum Event {
    /// The contract was issued.
    #[serde(rename = "run.created")]
    RunCreated {},
    /// A runner took the run.
    #[serde(rename = "run.claimed")]
    RunClaimed {
        /// Which runner.
        runner_id: RunnerId,
        /// Its key.
        runner_key_id: KeyId,
        /// The number of this lease; rides in every write of the runner. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        epoch: Option<u64>,
        /// How the runner was attested when it enrolled. Ours; absent means not at all.
        #[serde(skip_serializing_if = "Option::is_none")]
        attestation_tier: Option<AttestationTier>,
    },
    /// The workspace was written out and every digest matched.
    #[serde(rename = "workspace.materialized")]
    WorkspaceMaterialized {
        /// The manifest's digest.
        manifest_hash: Digest,
    },
    /// The policy document was asked, in the reference's words.
    #[serde(rename = "policy.evaluated")]
    PolicyEvaluated {
        /// The answer.
        decision: Decision,
        /// Why.
        reason: String,
    },
    /// Someone is asked to agree.
    #[serde(rename = "consent.requested")]
    ConsentRequested {
        /// To what.
        requirement: String,
    },
    /// Someone agreed.
    #[serde(rename = "consent.granted")]
    ConsentGranted {
        /// Who.
        actor: ActorRef,
    },
    /// A secret went to the runner.
    #[serde(rename = "secret.released")]
    SecretReleased {
        /// Its name.
        name: SecretName,
        /// What for.
        scope: String,
    },
    /// The program ran.
    #[serde(rename = "command.executed")]
    CommandExecuted {
        /// The digest of the prepared command.
        argv_hash: Digest,
        /// Its exit code in the reference's terms; see [`Outcome::wire_exit_code`].
        exit_code: i64,
    },
    /// A file of the workspace changed.
    #[serde(rename = "file.changed")]
    FileChanged {
        /// Which one.
        path: String,
        /// The digest of what it holds now; 64 zeros when it is gone.
        content_hash: Digest,
    },
    /// A destination was decided.
    #[serde(rename = "network.connected")]
    NetworkConnected {
        /// Which host.
        host: String,
        /// The decision.
        decision: NetworkVerdict,
        /// Which port. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// Why, in a word. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// How many times since it was last told. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// Bytes towards it. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes_out: Option<u64>,
        /// Bytes from it. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes_in: Option<u64>,
    },
    /// A model was called.
    #[serde(rename = "model.called")]
    ModelCalled {
        /// Whose.
        provider: String,
        /// Which.
        model: String,
        /// What it cost. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    },
    /// Something crossed the boundary.
    #[serde(rename = "boundary.crossed")]
    BoundaryCrossed {
        /// Which way.
        direction: Direction,
        /// Its digest.
        content_hash: Digest,
        /// What sort of thing.
        data_class: String,
    },
    /// Something was kept.
    #[serde(rename = "artifact.created")]
    ArtifactCreated {
        /// What it is.
        kind: ArtifactKind,
        /// Its digest.
        hash: Digest,
    },
    /// The run goes on from a checkpoint.
    #[serde(rename = "checkpoint.created")]
    CheckpointCreated {
        /// Which one.
        checkpoint_id: CheckpointId,
        /// How much it brings.
        tier: ContinuationTier,
    },
    /// It ended well.
    #[serde(rename = "run.completed")]
    RunCompleted {},
    /// It ended badly.
    #[serde(rename = "run.failed")]
    RunFailed {
        /// Why, in a word.
        failure: FailureClass,
        /// Why, for people.
        message: String,
    },
    /// It was stopped on request.
    #[serde(rename = "run.cancelled")]
    RunCancelled {
        /// Who asked: a person, or the runner itself.
        actor: ActorRef,
        /// Why, for people. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },

    /// Both policy layers were asked (ours; beside `policy.evaluated`).
    #[serde(rename = "decision.made")]
    DecisionMade {
        /// The answer.
        decision: Decision,
        /// Why, every reason at once.
        reasons: Vec<String>,
        /// The rules that decided.
        rules: Vec<String>,
        /// The digest of the policy snapshot that was asked.
        #[serde(skip_serializing_if = "Option::is_none")]
        policy_hash: Option<Digest>,
        /// The level of approval that was wanted.
        #[serde(skip_serializing_if = "Option::is_none")]
        level: Option<u8>,
    },
    /// Someone approved by a signed statement (ours; beside `consent.granted`).
    #[serde(rename = "approval.granted")]
    ApprovalGranted {
        /// Who.
        actor: ActorRef,
        /// At which level.
        level: u8,
        /// The digest of the signed statement.
        statement_hash: Digest,
        /// The signed statement itself, see [`crate::approval`].
        statement: Value,
    },
    /// Someone said no (ours).
    #[serde(rename = "approval.denied")]
    ApprovalDenied {
        /// Who.
        actor: ActorRef,
        /// Why, for people.
        reason: String,
    },
    /// The plane let the run start; durable before the first program (ours).
    #[serde(rename = "run.started")]
    RunStarted {
        /// The lease that started it.
        epoch: u64,
        /// The sandbox's Lamport clock at this start.
        #[serde(skip_serializing_if = "Option::is_none")]
        lamport: Option<u64>,
        /// The runner's own name for this start, so that the same question again gets the same
        /// answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        start_id: Option<String>,
    },
    /// The boundary was tried before anything ran (ours).
    #[serde(rename = "preflight.checked")]
    PreflightChecked {
        /// What is enforced here and now, and how that is known.
        posture: Posture,
        /// The limits that will hold.
        limits_enforced: Limits,
        /// The limits that will only be looked at from time to time.
        #[serde(skip_serializing_if = "Option::is_none")]
        limits_observed: Option<Limits>,
        /// The evidence that was accepted for each demanded component.
        evidence_accepted: BTreeMap<String, Evidence>,
    },
    /// The boundary holds less than the contract demands; nothing ran (ours).
    #[serde(rename = "posture.refused")]
    PostureRefused {
        /// The components that do not hold.
        lacking: Vec<String>,
    },
    /// The command needs more than it was given (ours).
    #[serde(rename = "gap.found")]
    GapFound {
        /// A name within the run.
        gap: String,
        /// What sort: `program`, `read`, `write`, `host`, `secret`, `terminal`.
        kind: String,
        /// What exactly.
        detail: String,
    },
    /// A gap was granted, rewritten or denied (ours).
    #[serde(rename = "gap.decided")]
    GapDecided {
        /// Which gap.
        gap: String,
        /// What became of it.
        decision: GapDecision,
        /// Why, for people.
        reason: String,
    },
    /// Something beyond the first invocation was given (ours).
    #[serde(rename = "grant.added")]
    GrantAdded {
        /// What sort: `program`, `read`, `write`, `host`.
        kind: String,
        /// What exactly.
        value: String,
        /// Who gave it, when it was a person.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<ActorRef>,
    },
    /// The sandbox that the program runs in, named by six values (ours).
    #[serde(rename = "preimage.bound")]
    PreimageBound {
        /// The six values and their inputs.
        preimage: Preimage,
    },
    /// What the program said (ours).
    #[serde(rename = "output.recorded")]
    OutputRecorded {
        /// Of standard output.
        stdout: StreamSummary,
        /// Of standard error.
        stderr: StreamSummary,
    },
    /// How the program ended and what it used (ours). Its presence makes the receipt carry all
    /// members of ours, see [`crate::fold()`].
    #[serde(rename = "outcome.recorded")]
    OutcomeRecorded {
        /// How it ended, or why it never started.
        outcome: Outcome,
        /// Its exit code, if it exited by itself.
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<u8>,
        /// What it used.
        usage: Usage,
    },
    /// Warrant itself did what was asked for; no program ran (ours).
    #[serde(rename = "operation.performed")]
    OperationPerformed {
        /// What was done: `file.read`, `file.write`, `sandbox.life`, ….
        operation: String,
        /// The digest of the prepared request that was decided.
        request_hash: Digest,
        /// Whether it was done.
        succeeded: bool,
        /// What held meanwhile.
        guards: Vec<OperationGuard>,
    },
    /// What the boundary of this very run was seen to hold (ours); takes the place of what
    /// `preflight.checked` found before.
    #[serde(rename = "posture.observed")]
    PostureObserved {
        /// What was in force, and how that is known.
        posture: Posture,
        /// The limits that the kernel, or every byte's way through the supervisor, held.
        limits_enforced: Limits,
        /// The limits that were looked at from time to time.
        #[serde(skip_serializing_if = "Option::is_none")]
        limits_observed: Option<Limits>,
    },
    /// How much of what changed in the workspace was seen (ours).
    #[serde(rename = "capture.recorded")]
    CaptureRecorded {
        /// How much.
        extent: CaptureExtent,
        /// How many changed files were recorded.
        files: u64,
        /// Why it is not complete.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The export gate decided about a changed path (ours). A path that is held or refused is
    /// not in a `file.changed`.
    #[serde(rename = "export.judged")]
    ExportJudged {
        /// Which path; for `git-state` the git directory.
        path: String,
        /// What was decided.
        verdict: ExportVerdict,
        /// Why it was looked at: `git-hook`, `editor-task`, ….
        class: String,
        /// The digest of what it holds now.
        #[serde(skip_serializing_if = "Option::is_none")]
        content_hash: Option<Digest>,
        /// How many paths, when there are several.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
    },
    /// The program changed a reference of git, or HEAD, in its view of the workspace (ours). It
    /// says nothing about what was taken over on the host.
    #[serde(rename = "git.ref.updated")]
    GitRefUpdated {
        /// Which: `HEAD`, or a name below `refs/`.
        #[serde(rename = "ref")]
        reference: String,
        /// The git directory, when it is a submodule's or a linked worktree's.
        #[serde(skip_serializing_if = "Option::is_none")]
        repository: Option<String>,
        /// The object or reference it held; absent when there was none.
        #[serde(skip_serializing_if = "Option::is_none")]
        old: Option<String>,
        /// What it holds; absent when it is gone.
        #[serde(skip_serializing_if = "Option::is_none")]
        new: Option<String>,
    },
    /// Blocked destinations beyond those recorded one by one (ours). Allowed ones are never here.
    #[serde(rename = "network.folded")]
    NetworkFolded {
        /// How many different ones.
        destinations: u64,
        /// How many attempts, over all of them.
        attempts: u64,
        /// The digest of their list, which is an artifact.
        hash: Digest,
    },
    /// A running run is being stopped (ours).
    #[serde(rename = "run.stopping")]
    RunStopping {
        /// Who asked.
        actor: ActorRef,
        /// Why, for people.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The runner did not hear its plane for longer than its lease, and the run went on (ours).
    #[serde(rename = "run.disconnected")]
    RunDisconnected {
        /// From when, by the runner's date.
        since: Timestamp,
        /// For how long the runner listened and heard nothing.
        duration_ms: u64,
    },
    /// A lease ended before the run started, and the run went back to the queue (ours).
    #[serde(rename = "run.requeued")]
    RunRequeued {
        /// The lease that ended.
        epoch: u64,
    },
    /// A lease ended while the run was running, and nobody can tell how it ended (ours).
    #[serde(rename = "run.lost")]
    RunLost {
        /// The lease that ended.
        epoch: u64,
        /// When the runner was last heard.
        last_heard_at: Timestamp,
    },
    /// The contract's time was over before the run started (ours).
    #[serde(rename = "contract.expired")]
    ContractExpired {
        /// When it was over.
        expires_at: Timestamp,
    },
    /// The chain reached its limit; further changes of files are not recorded one by one (ours).
    #[serde(rename = "chain.limited")]
    ChainLimited {
        /// Which limit.
        limit: ChainLimit,
        /// How much that is.
        max: u64,
    },
    /// A type nobody here knows; its JSON is kept.
    #[serde(other, rename = "unknown")]
    Unknown,
}

impl Event {
    /// Returns whether a run may have any number of these; the others are few.
    #[must_use]
    pub const fn is_one_of_many(&self) -> bool {
        matches!(self, Self::FileChanged { .. })
    }
}

/// How much about a runner's machine was proved when it enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttestationTier {
    /// Nothing.
    Mock,
    /// Its operator vouches.
    Standard,
    /// Its operator vouches that nothing is kept.
    Zdr,
    /// The processor attests.
    CpuTee,
    /// Processor and accelerator attest.
    CpuGpuTee,
}
