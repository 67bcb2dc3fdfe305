//! The states of a run and the one table that changes them.
//!
//! ```text
//!  Submitted ──deny──► Denied
//!     │  └──ask──► AwaitingApproval ──► Denied | Cancelled | Expired
//!     │ allow          │ approved
//!     ▼                ▼
//!   Queued ◄──requeue── Leased ──start──► Running ──finish──► Finishing ──► Completed | Failed
//!     │ │                 │                │   │                  │
//!     │ └─cancel─► Cancelled ◄─cancelled── │   └─stop─► Stopping ─┴─► Cancelled | Lost
//!     └───expire─► Expired ◄───expire──────┘ (Leased only)         Running, Finishing ──► Lost
//! ```
//!
//! On the wire the reference's words stay, see [`RunState::wire`].
//! Execution happens at most once: `Running` never goes back to `Queued`, except through
//! [`Transition::RetryLost`], which a contract must permit.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Received, not judged.
    Submitted,
    /// Judged no.
    Denied,
    /// People are asked.
    AwaitingApproval,
    /// Permitted; nobody has it yet.
    Queued,
    /// A runner has it and has started nothing.
    Leased,
    /// A program may have started.
    Running,
    /// Someone asked for it to stop.
    Stopping,
    /// The program ended; the receipt is on its way.
    Finishing,
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
    /// The program ended.
    Finish,
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
    /// A lost run may start again, because its contract says that is safe.
    RetryLost,
    /// Its time is over.
    Expire,
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
    pub const ALL: [Self; 13] = [
        Self::Submitted,
        Self::Denied,
        Self::AwaitingApproval,
        Self::Queued,
        Self::Leased,
        Self::Running,
        Self::Stopping,
        Self::Finishing,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Lost,
        Self::Expired,
    ];

    /// Returns the state after `transition`. This is the one table.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the table has no such change.
    pub const fn after(self, transition: Transition) -> Result<Self, IllegalTransition> {
        use {RunState as S, Transition as T};
        Ok(match (self, transition) {
            (S::Submitted, T::Allow) | (S::AwaitingApproval, T::Approve) => S::Queued,
            (S::Submitted, T::Ask) => S::AwaitingApproval,
            (S::Submitted | S::AwaitingApproval, T::Deny) => S::Denied,
            (S::Queued, T::Claim) => S::Leased,
            (S::Leased, T::Requeue) | (S::Running, T::RetryLost) => S::Queued,
            (S::Leased, T::Start) => S::Running,
            (S::Running, T::Finish) => S::Finishing,
            (S::Leased | S::Running | S::Finishing, T::Complete) => S::Completed,
            (S::Leased | S::Running | S::Finishing, T::Fail) => S::Failed,
            (S::Running, T::Stop) => S::Stopping,
            (
                S::AwaitingApproval
                | S::Queued
                | S::Leased
                | S::Running
                | S::Stopping
                | S::Finishing,
                T::Cancel,
            ) => S::Cancelled,
            // A program that ended before it heard the stop ended the way its receipt says.
            (S::Stopping, T::Complete) => S::Completed,
            (S::Stopping, T::Fail) => S::Failed,
            (S::Running | S::Stopping | S::Finishing, T::Lose) => S::Lost,
            (S::AwaitingApproval | S::Queued | S::Leased, T::Expire) => S::Expired,
            _ => return Err(IllegalTransition { from: self, transition }),
        })
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
            Self::Submitted
            | Self::AwaitingApproval
            | Self::Queued
            | Self::Leased
            | Self::Running
            | Self::Stopping
            | Self::Finishing => false,
        }
    }

    /// Returns the reference's word for this state, which is what old clients see.
    #[must_use]
    pub const fn wire(self) -> WireStatus {
        match self {
            Self::Submitted | Self::Queued => WireStatus::Created,
            Self::AwaitingApproval => WireStatus::AwaitingApproval,
            Self::Leased => WireStatus::Claimed,
            Self::Running | Self::Stopping | Self::Finishing => WireStatus::Running,
            Self::Completed => WireStatus::Completed,
            Self::Denied | Self::Failed | Self::Lost | Self::Expired => WireStatus::Failed,
            Self::Cancelled => WireStatus::Cancelled,
        }
    }

    /// Returns our own word, for people, stores and filters.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Denied => "denied",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Queued => "queued",
            Self::Leased => "leased",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Finishing => "finishing",
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
