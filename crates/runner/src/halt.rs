//! Why a run stopped before its program had ended: the one error of the walk.
//!
//! Every variant becomes a sealed receipt, except being fenced, after which nothing may be
//! written any more. A plane that failed once may take no receipt either; then its first failure
//! is what people are told.

use warrant_protocol::chain::{BrokenChain, InvalidEvent};
use warrant_protocol::event::FailureClass;
use warrant_protocol::port::PlaneError;
use warrant_protocol::{Outcome, RunId};
use warrant_sandbox::{BoundaryError, Refusal};

/// Why the walk stopped.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The receipt says this.
    Sealed {
        outcome: Outcome,
        failure: FailureClass,
        /// Safe to show.
        message: String,
    },
    /// Another lease holds the run.
    Fenced(RunId),
    /// The plane broke; what broke is for people here, not for the receipt.
    PlaneFailed(PlaneError),
}

impl Halt {
    pub(crate) fn new(outcome: Outcome, failure: FailureClass, message: impl Into<String>) -> Self {
        Self::Sealed { outcome, failure, message: message.into() }
    }

    /// Something of ours broke.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Outcome::Failed, FailureClass::SessionFailed, message)
    }
}

impl From<PlaneError> for Halt {
    fn from(error: PlaneError) -> Self {
        match error {
            PlaneError::Fenced(run) => Self::Fenced(run),
            PlaneError::Refused { failure, message } => {
                let outcome = match failure {
                    FailureClass::PolicyDenied | FailureClass::SecretReleaseDenied => {
                        Outcome::Denied
                    }
                    _ => Outcome::Failed,
                };
                Self::new(outcome, failure, message)
            }
            failed @ PlaneError::Failed(_) => Self::PlaneFailed(failed),
        }
    }
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        let (outcome, failure) = match refusal.code {
            "SANDBOX_PROVIDER_UNAVAILABLE" => {
                (Outcome::PostureRefused, FailureClass::CapabilityMismatch)
            }
            "SANDBOX_DENIED" => (Outcome::GapDenied, FailureClass::PolicyDenied),
            _ => (Outcome::Failed, FailureClass::SessionFailed),
        };
        Self::new(outcome, failure, format!("{}: {}", refusal.code, refusal.message))
    }
}

impl From<BoundaryError> for Halt {
    fn from(error: BoundaryError) -> Self {
        Self::internal(format!("SANDBOX_RUN_FAILED: the boundary failed at {}", error.step))
    }
}

impl From<InvalidEvent> for Halt {
    fn from(error: InvalidEvent) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<BrokenChain> for Halt {
    fn from(error: BrokenChain) -> Self {
        Self::internal(error.to_string())
    }
}
