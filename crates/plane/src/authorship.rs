//! Who may say what in a chain: the table of [`warrant_protocol::event`], as a check.

use warrant_protocol::Event;

/// Returns whether a runner may write this event; what only the plane knows, only it may say.
pub(crate) const fn may_runner_say(event: &Event) -> bool {
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
        | Event::ContractExpired { .. } => false,
        Event::WorkspaceMaterialized { .. }
        | Event::CommandExecuted { .. }
        | Event::FileChanged { .. }
        | Event::NetworkConnected { .. }
        | Event::ModelCalled { .. }
        | Event::BoundaryCrossed { .. }
        | Event::ArtifactCreated { .. }
        | Event::RunCompleted {}
        | Event::RunFailed { .. }
        | Event::RunCancelled { .. }
        | Event::PreflightChecked { .. }
        | Event::PostureRefused { .. }
        | Event::GapFound { .. }
        | Event::GapDecided { .. }
        | Event::GrantAdded { .. }
        | Event::PreimageBound { .. }
        | Event::OutputRecorded { .. }
        | Event::OutcomeRecorded { .. }
        | Event::OperationPerformed { .. }
        | Event::PostureObserved { .. }
        | Event::CaptureRecorded { .. }
        | Event::ExportJudged { .. }
        | Event::NetworkFolded { .. }
        | Event::Unknown => true,
    }
}
