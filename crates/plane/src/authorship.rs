//! Who writes which event of a chain: the table of [`warrant_protocol::event`], as a function.

use warrant_protocol::Event;

/// Who writes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The plane alone: it decides, leases, starts, releases.
    Plane,
    /// The runner: it prepares, executes, observes.
    Runner,
    /// Whoever seals the receipt: it says how the run ended.
    WhoeverSeals,
    /// Nobody that is known here.
    Nobody,
}

/// Returns who may write this event; what only the plane knows, only it may say.
pub(crate) const fn author_of(event: &Event) -> Author {
    match event {
        Event::RunCreated {}
        | Event::RunClaimed { .. }
        | Event::PolicyEvaluated { .. }
        | Event::ConsentRequested { .. }
        | Event::ConsentGranted { .. }
        | Event::SecretReleased { .. }
        | Event::CheckpointCreated { .. }
        | Event::DecisionMade { .. }
        | Event::ApprovalGranted { .. }
        | Event::ApprovalDenied { .. }
        | Event::RunStarted { .. }
        | Event::RunStopping { .. }
        | Event::RunRequeued { .. }
        | Event::RunLost { .. }
        | Event::ContractExpired { .. } => Author::Plane,
        Event::WorkspaceMaterialized { .. }
        | Event::CommandExecuted { .. }
        | Event::FileChanged { .. }
        | Event::NetworkConnected { .. }
        | Event::ModelCalled { .. }
        | Event::BoundaryCrossed { .. }
        | Event::ArtifactCreated { .. }
        | Event::PreflightChecked { .. }
        | Event::PostureRefused { .. }
        | Event::GapFound { .. }
        | Event::GapDecided { .. }
        | Event::GrantAdded { .. }
        | Event::PreimageBound { .. }
        | Event::OutputRecorded { .. }
        | Event::RunDisconnected { .. }
        | Event::OperationPerformed { .. }
        | Event::PostureObserved { .. }
        | Event::CaptureRecorded { .. }
        | Event::ExportJudged { .. }
        | Event::GitRefUpdated { .. }
        | Event::NetworkFolded { .. }
        | Event::ChainLimited { .. } => Author::Runner,
        Event::OutcomeRecorded { .. }
        | Event::RunCompleted {}
        | Event::RunFailed { .. }
        | Event::RunCancelled { .. } => Author::WhoeverSeals,
        Event::Unknown => Author::Nobody,
    }
}
