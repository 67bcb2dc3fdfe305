//! The states of a run and the one table that changes them.
//!
//! ```text
//!  submit ──deny──► Denied                submit ──note──► Completed (nothing is executed)
//!     │  └──ask──► AwaitingApproval ──► Denied | Cancelled | Expired
//!     │ allow          │ approve
//!     ▼                ▼
//!   Queued ◄──requeue── Leased ──start──► Running ──stop──► Stopping
//!     │  └────claim──────►│                  │                  │
//!     ▼                   ▼                  ▼                  ▼
//!   Failed | Cancelled | Expired       Completed | Failed | Cancelled | Lost
//!                      (Leased: also Completed)
//! ```
//!
//! The store writes no state that does not come from [`RunState::first`] or [`RunState::after`].
//! On the wire the reference's words stay, see [`RunState::wire`].
//! Execution happens at most once: `Running` never goes back to `Queued`.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Judged no.
    Denied,
    /// People are asked.
    AwaitingApproval,
    /// Permitted; nobody has it yet.
    #[serde(alias = "submitted")]
    Queued,
    /// A runner has it and has started nothing.
    Leased,
    /// A program may have started.
    #[serde(alias = "finishing")]
    Running,
    /// Someone asked for it to stop.
    Stopping,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Stopped on request.
    Cancelled,
    /// Its runner is gone, and nobody knows how it ended.
    Lost,
    /// Its time was over before anything started.
    Expired,
}

/// What makes a run change its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// The judge says yes.
    Allow,
    /// The judge asks people.
    Ask,
    /// The judge says yes to something of which only the decision is recorded.
    Note,
    /// The judge or an approver says no.
    Deny,
    /// Enough people said yes.
    Approve,
    /// A runner takes it.
    Claim,
    /// The lease ended, or the runner handed it back, before anything started.
    Requeue,
    /// The plane lets it start.
    Start,
    /// The receipt says completed.
    Complete,
    /// The receipt says failed.
    Fail,
    /// Someone wants it stopped.
    Stop,
    /// It is stopped.
    Cancel,
    /// The runner is gone.
    Lose,
    /// Its time is over.
    Expire,
}

impl Transition {
    /// Every transition.
    pub const ALL: [Self; 14] = [
        Self::Allow,
        Self::Ask,
        Self::Note,
        Self::Deny,
        Self::Approve,
        Self::Claim,
        Self::Requeue,
        Self::Start,
        Self::Complete,
        Self::Fail,
        Self::Stop,
        Self::Cancel,
        Self::Lose,
        Self::Expire,
    ];

    /// Returns the state this leads to, whatever was before.
    #[must_use]
    pub const fn target(self) -> RunState {
        match self {
            Self::Allow | Self::Approve | Self::Requeue => RunState::Queued,
            Self::Ask => RunState::AwaitingApproval,
            Self::Note | Self::Complete => RunState::Completed,
            Self::Deny => RunState::Denied,
            Self::Claim => RunState::Leased,
            Self::Start => RunState::Running,
            Self::Fail => RunState::Failed,
            Self::Stop => RunState::Stopping,
            Self::Cancel => RunState::Cancelled,
            Self::Lose => RunState::Lost,
            Self::Expire => RunState::Expired,
        }
    }

    /// Returns the states in which a run can be for this to happen.
    pub fn sources(self) -> impl Iterator<Item = RunState> {
        RunState::ALL.into_iter().filter(move |state| state.after(self).is_ok())
    }

    /// Returns what ends a run in `state`; nothing when that is no end.
    #[must_use]
    pub const fn ending(state: RunState) -> Option<Self> {
        match state {
            RunState::Denied => Some(Self::Deny),
            RunState::Completed => Some(Self::Complete),
            RunState::Failed => Some(Self::Fail),
            RunState::Cancelled => Some(Self::Cancel),
            RunState::Lost => Some(Self::Lose),
            RunState::Expired => Some(Self::Expire),
            RunState::AwaitingApproval
            | RunState::Queued
            | RunState::Leased
            | RunState::Running
            | RunState::Stopping => None,
        }
    }
}

/// A change the table does not have.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("cannot {transition:?} a run that is {from}")]
pub struct IllegalTransition {
    /// Where the run stands.
    pub from: RunState,
    /// What was tried.
    pub transition: Transition,
}

impl RunState {
    /// Every state.
    pub const ALL: [Self; 11] = [
        Self::Denied,
        Self::AwaitingApproval,
        Self::Queued,
        Self::Leased,
        Self::Running,
        Self::Stopping,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Lost,
        Self::Expired,
    ];

    /// Returns the state in which a run begins; nothing when no run begins that way.
    #[must_use]
    pub const fn first(transition: Transition) -> Option<Self> {
        use Transition as T;
        match transition {
            T::Allow | T::Ask | T::Note | T::Deny => Some(transition.target()),
            T::Approve
            | T::Claim
            | T::Requeue
            | T::Start
            | T::Complete
            | T::Fail
            | T::Stop
            | T::Cancel
            | T::Lose
            | T::Expire => None,
        }
    }

    /// Returns the state after `transition`. This is the one table.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the table has no such change.
    pub const fn after(self, transition: Transition) -> Result<Self, IllegalTransition> {
        use {RunState as S, Transition as T};
        let is_possible = match transition {
            T::Allow | T::Ask | T::Note => false,
            T::Deny | T::Approve => matches!(self, S::AwaitingApproval),
            T::Claim => matches!(self, S::Queued),
            T::Requeue | T::Start => matches!(self, S::Leased),
            // A program that ended before it heard the stop ended the way its receipt says.
            T::Complete => matches!(self, S::Leased | S::Running | S::Stopping),
            T::Fail => matches!(self, S::Queued | S::Leased | S::Running | S::Stopping),
            T::Stop | T::Lose => matches!(self, S::Running | S::Stopping),
            T::Cancel => !self.is_terminal(),
            T::Expire => matches!(self, S::AwaitingApproval | S::Queued | S::Leased),
        };
        if is_possible {
            Ok(transition.target())
        } else {
            Err(IllegalTransition { from: self, transition })
        }
    }

    /// Returns whether the run has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Denied
            | Self::Completed
            | Self::Failed
            | Self::Cancelled
            | Self::Lost
            | Self::Expired => true,
            Self::AwaitingApproval
            | Self::Queued
            | Self::Leased
            | Self::Running
            | Self::Stopping => false,
        }
    }

    /// Returns whether a runner holds the run.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Leased | Self::Running | Self::Stopping)
    }

    /// Returns the state of our own word. Older programs knew two more, which no run was ever in;
    /// they read as what old clients see of them.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "submitted" => Some(Self::Queued),
            "finishing" => Some(Self::Running),
            _ => Self::ALL.into_iter().find(|state| state.as_str() == name),
        }
    }

    /// Returns the reference's word for this state, which is what old clients see.
    #[must_use]
    pub const fn wire(self) -> WireStatus {
        match self {
            Self::Queued => WireStatus::Created,
            Self::AwaitingApproval => WireStatus::AwaitingApproval,
            Self::Leased => WireStatus::Claimed,
            Self::Running | Self::Stopping => WireStatus::Running,
            Self::Completed => WireStatus::Completed,
            Self::Denied | Self::Failed | Self::Lost | Self::Expired => WireStatus::Failed,
            Self::Cancelled => WireStatus::Cancelled,
        }
    }

    /// Returns our own word, for people, stores and filters.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Queued => "queued",
            Self::Leased => "leased",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
            Self::Expired => "expired",
        }
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reference's words for where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireStatus {
    /// A contract exists.
    Created,
    /// A runner has it.
    Claimed,
    /// Never used by the reference.
    Provisioning,
    /// It runs.
    Running,
    /// People are asked.
    AwaitingApproval,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Stopped.
    Cancelled,
}

impl WireStatus {
    /// Returns the word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Claimed => "claimed",
            Self::Provisioning => "provisioning",
            Self::Running => "running",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}
