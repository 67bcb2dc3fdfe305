//! Everything that can be wrong with a bundle.

use thiserror::Error;

use crate::chain::BrokenChain;
use crate::{KeyId, KeyRole, Timestamp};

/// One thing that is wrong with a bundle. The first seventeen speak the reference's words.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// It cannot be read.
    #[error("bundle is malformed: {detail}")]
    Malformed {
        /// What cannot be read.
        detail: String,
    },
    /// The contract's signature.
    #[error("contract plane signature invalid")]
    ContractSignature,
    /// Another run.
    #[error("receipt.runId does not match the contract")]
    RunId,
    /// Another contract.
    #[error("receipt.contractHash does not match the contract")]
    ContractHash,
    /// Another key.
    #[error("receipt runner key id does not match the enrolled runner key")]
    RunnerKeyId,
    /// Another pool.
    #[error("receipt runner pool does not match the contract")]
    RunnerPool,
    /// The runner's signature.
    #[error("receipt runner signature invalid")]
    RunnerSignature,
    /// The chain does not hold.
    #[error(transparent)]
    BrokenChain(BrokenChain),
    /// There is no chain.
    #[error("event chain is empty")]
    EmptyChain,
    /// Another last event.
    #[error("receipt.eventsHead does not match the last event hash")]
    EventsHead,
    /// Another number of events.
    #[error("receipt.eventCount does not match the event chain")]
    EventCount,
    /// Another end.
    #[error("terminal event does not match receipt status")]
    TerminalEvent,
    /// Another commit.
    #[error("receipt.workspaceIn.baseRef does not match the contract")]
    BaseRef,
    /// Another manifest.
    #[error("receipt.workspaceIn.manifestHash does not match the contract")]
    ManifestHash,
    /// Other secrets.
    #[error("secretsReleased does not match secret.released events")]
    SecretsReleased,
    /// A diff nobody kept.
    #[error("workspaceOut.diffHash has no matching artifact.created event")]
    DiffHash,
    /// The plane's signature on the receipt.
    #[error("receipt plane countersignature invalid")]
    PlaneCountersignature,

    /// The caller does not trust a key that was used.
    #[error("{} key {key_id} is not trusted", role_name(*.role))]
    UntrustedKey {
        /// What it was used as.
        role: KeyRole,
        /// Which key.
        key_id: KeyId,
    },
    /// A key was used after it was retired.
    #[error("{} key {key_id} was retired at {retired_at}, before this is dated", role_name(*.role))]
    RetiredKey {
        /// What it was used as.
        role: KeyRole,
        /// Which key.
        key_id: KeyId,
        /// Until when it counted.
        retired_at: Timestamp,
    },
    /// A key succession in the bundle does not hold.
    #[error("{detail}")]
    Succession {
        /// What is wrong.
        detail: String,
    },
    /// A version text is missing or another one.
    #[error("{what} version is not {expected}")]
    Version {
        /// Of what.
        what: String,
        /// The text that was expected.
        expected: &'static str,
    },
    /// A member must be understood, and is not known here.
    #[error(
        "{object} demands that its member \"{member}\" is understood, and it is not known here"
    )]
    UnknownCritical {
        /// Of which object.
        object: &'static str,
        /// Which member.
        member: String,
    },
    /// The contract names another issuer than the key that signed it.
    #[error("contract issuer is not the plane key that signed it")]
    Issuer,
    /// A runner is named and never claimed the run.
    #[error("receipt names a runner, and no run.claimed event is on the chain")]
    NeverClaimed,
    /// Another runner claimed the run.
    #[error("receipt.runner.{member} does not match the run.claimed event")]
    OtherRunner {
        /// Which member.
        member: &'static str,
    },
    /// An approval is named and not on the chain.
    #[error("contract says {actor} approved, and the chain does not")]
    ApprovalNotOnChain {
        /// Who.
        actor: String,
    },
    /// Approval was asked for and nobody gave it.
    #[error("the decision asked for approval, and nobody is on record as approving")]
    NobodyApproved,
    /// The decision was no.
    #[error("the decision was deny, and a contract exists")]
    DeniedContract,
    /// A signed approval does not stand.
    #[error("approval by {actor}: {detail}")]
    Approval {
        /// Who.
        actor: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Something only the plane says before a claim was said after it.
    #[error("event {seq} ({event_type}) stands after the run was claimed")]
    Misplaced {
        /// Where.
        seq: u64,
        /// What.
        event_type: String,
    },
    /// The contract had ended when the runner took it.
    #[error("contract was expired when it was claimed")]
    ExpiredAtClaim,
    /// The contract had ended when the program started.
    #[error("contract was expired when the run started")]
    ExpiredAtStart,
    /// The receipt says something the chain does not.
    #[error("receipt.{member} does not follow from the event chain")]
    DoesNotFold {
        /// Which member.
        member: String,
    },
    /// The preimage is not of its inputs.
    #[error("preimage.{field} does not recompute from its inputs")]
    Preimage {
        /// Which field.
        field: &'static str,
    },
    /// A secret went out that the contract does not name.
    #[error("secret {name} was released, and the contract does not name it")]
    SecretNotInContract {
        /// Which.
        name: String,
    },
    /// Another command ran.
    #[error("command.executed is not the command of the contract")]
    OtherCommand,
    /// Another workspace was written out.
    #[error("workspace.materialized is not the workspace of the contract")]
    OtherWorkspace,
    /// Another tier than the contract's.
    #[error("receipt.runner.isolation is not the tier of the contract")]
    OtherIsolation,
    /// A program ran although the boundary held less than the contract demands.
    #[error("a program ran, and {component} was not enforced as the contract demands")]
    RanBelowPosture {
        /// Which component.
        component: String,
    },
    /// No program ran, and an event or the outcome says that one did; or the other way around.
    #[error("{event_type} contradicts what the chain says of whether a program ran")]
    ProgramContradiction {
        /// Which event.
        event_type: String,
    },
    /// The export gate kept a path out, and `file.changed` says that it changed.
    #[error("file.changed names {path}, which the export gate kept out")]
    HeldFileChanged {
        /// Which path.
        path: String,
    },
    /// What the chain says of the captured changes does not add up.
    #[error("capture.recorded counts {counted} files, and the chain has {found}")]
    CaptureCount {
        /// As counted.
        counted: u64,
        /// As found.
        found: u64,
    },
    /// The list of folded destinations is no artifact of the run.
    #[error("network.folded names a list that is no artifact of the run")]
    FoldedListMissing,
    /// The end and the outcome say different things.
    #[error("status and outcome contradict each other")]
    OutcomeContradiction,
    /// Something was said after the run had ended, a second end among it.
    #[error("event {seq} ({event_type}) stands after the event that ended the run")]
    AfterEnd {
        /// Where.
        seq: u64,
        /// What.
        event_type: String,
    },
    /// Something happened before the plane let the run start.
    #[error("event {seq} ({event_type}) needs a run.started event before it")]
    BeforeStart {
        /// Where.
        seq: u64,
        /// What.
        event_type: String,
    },
    /// Something that happens once is told twice.
    #[error("event {seq} ({event_type}) is on the chain a second time")]
    Repeated {
        /// Where.
        seq: u64,
        /// What.
        event_type: String,
    },
    /// A grant in the name of somebody who did not approve.
    #[error("grant.added names {actor}, who is not on the chain as approving")]
    GrantNotApproved {
        /// Who.
        actor: String,
    },
    /// A host was let through that the contract does not list.
    #[error("network.connected allowed {host}, and the contract does not list it")]
    HostNotInContract {
        /// Which.
        host: String,
    },
    /// More is said to be enforced than the tier can enforce.
    #[error("posture claims {component} is enforced, which the {isolation} tier cannot do")]
    PostureBeyondTier {
        /// Which component.
        component: String,
        /// Which tier.
        isolation: crate::Isolation,
    },
    /// What was used contradicts the rest of the chain.
    #[error("{member} is not possible for this run")]
    Usage {
        /// Which member.
        member: &'static str,
    },
    /// The exit code of the command is not that of the run.
    #[error("command.executed.exitCode contradicts how the run ended")]
    ExitCode,
    /// A program ended, and none was executed.
    #[error("outcome says that a program ended, and no command.executed event is on the chain")]
    NothingExecuted,
    /// Nothing ran, and a program was executed.
    #[error("outcome says that nothing ran, and a command.executed event is on the chain")]
    ExecutedAnyway,
}

impl Problem {
    /// Returns the member of the bundle that is wrong.
    #[must_use]
    pub fn field(&self) -> String {
        let text = |text: &str| text.to_owned();
        match self {
            Self::Malformed { .. } => text("bundle"),
            Self::ContractSignature => text("contract.signatures"),
            Self::RunId => text("receipt.runId"),
            Self::ContractHash => text("receipt.contractHash"),
            Self::RunnerKeyId => text("receipt.runner.keyId"),
            Self::RunnerPool => text("receipt.runner.pool"),
            Self::RunnerSignature | Self::PlaneCountersignature => text("receipt.signatures"),
            Self::BrokenChain(broken) => format!("events[{}]", broken.seq),
            Self::EmptyChain => text("events"),
            Self::EventsHead => text("receipt.eventsHead"),
            Self::EventCount => text("receipt.eventCount"),
            Self::TerminalEvent => text("receipt.status"),
            Self::BaseRef => text("receipt.workspaceIn.baseRef"),
            Self::ManifestHash => text("receipt.workspaceIn.manifestHash"),
            Self::SecretsReleased => text("receipt.secretsReleased"),
            Self::DiffHash => text("receipt.workspaceOut.diffHash"),
            Self::UntrustedKey { role, .. } | Self::RetiredKey { role, .. } => {
                format!("keys.{}", role_name(*role))
            }
            Self::Succession { .. } => text("successions"),
            Self::Version { what, .. } => format!("{what}.version"),
            Self::UnknownCritical { object, .. } => format!("{object}.critical"),
            Self::Issuer => text("contract.issuer"),
            Self::NeverClaimed => text("receipt.runner"),
            Self::OtherRunner { member } => format!("receipt.runner.{member}"),
            Self::ApprovalNotOnChain { .. } | Self::NobodyApproved | Self::DeniedContract => {
                text("contract.approvedBy")
            }
            Self::Approval { .. } => text("approval.granted.statement"),
            Self::Misplaced { seq, .. }
            | Self::AfterEnd { seq, .. }
            | Self::BeforeStart { seq, .. }
            | Self::Repeated { seq, .. } => format!("events[{seq}]"),
            Self::ExpiredAtClaim | Self::ExpiredAtStart => text("contract.expiresAt"),
            Self::DoesNotFold { member } => format!("receipt.{member}"),
            Self::Preimage { field } => format!("receipt.preimage.{field}"),
            Self::SecretNotInContract { .. } => text("secret.released.name"),
            Self::OtherCommand => text("command.executed.argvHash"),
            Self::OtherWorkspace => text("workspace.materialized.manifestHash"),
            Self::OtherIsolation => text("receipt.runner.isolation"),
            Self::RanBelowPosture { .. } | Self::PostureBeyondTier { .. } => {
                text("preflight.checked.posture")
            }
            Self::OutcomeContradiction | Self::NothingExecuted | Self::ExecutedAnyway => {
                text("outcome.recorded.outcome")
            }
            Self::GrantNotApproved { .. } => text("grant.added.by"),
            Self::HostNotInContract { .. } => text("network.connected.host"),
            Self::Usage { member } => (*member).to_owned(),
            Self::ExitCode => text("command.executed.exitCode"),
            Self::ProgramContradiction { event_type } => event_type.clone(),
            Self::HeldFileChanged { .. } => text("file.changed.path"),
            Self::CaptureCount { .. } => text("capture.recorded.files"),
            Self::FoldedListMissing => text("network.folded.hash"),
        }
    }
}

const fn role_name(role: KeyRole) -> &'static str {
    match role {
        KeyRole::Plane => "plane",
        KeyRole::Runner => "runner",
        KeyRole::Approver => "approver",
        KeyRole::Org => "org",
    }
}
