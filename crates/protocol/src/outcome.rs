//! How a program ended and what it used.
//!
//! ```text
//! judged ── denied ─────────────────────────► Denied
//!   └─ guarded ── weaker than contract ─────► PostureRefused
//!        └─ fitted ── gap not granted ──────► GapDenied
//!             ├─ needs no program ──────────► Performed
//!             └─ ran ── by itself ──────────► Exited | Signaled
//!                  ├─ a limit struck ───────► Limited
//!                  ├─ someone stopped it ───► Cancelled
//!                  ├─ end not observed ─────► Unobserved
//!                  └─ nobody left to tell ──► Lost
//! ```

use serde::{Deserialize, Serialize};

use crate::LimitKind;

/// How a run's program ended, or why it never started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Outcome {
    /// It exited by itself.
    Exited {
        /// The exit code, 0 to 255.
        code: u8,
    },
    /// Warrant itself did what was asked for; no program ran.
    Performed {
        /// Whether it was done.
        succeeded: bool,
    },
    /// A signal ended it, and no limit of ours sent it.
    Signaled {
        /// The signal's number.
        signal: u8,
    },
    /// One of the limits struck and the whole tree was stopped.
    Limited {
        /// Which limit.
        limit: LimitKind,
    },
    /// Someone asked for it to stop, and the whole tree was stopped.
    Cancelled,
    /// Policy or people said no; nothing ran.
    Denied,
    /// An approval was wanted and did not come in time; nothing ran.
    ApprovalExpired,
    /// The backend here holds less than the contract demands; nothing ran.
    PostureRefused,
    /// The command needs more than it was given, and that was not granted; nothing ran.
    GapDenied,
    /// It was started, and its end was not observed (a remote connection was cut).
    Unobserved,
    /// It was started, and whoever ran it is gone.
    Lost,
    /// The boundary could not be built or held, or something of ours broke.
    Failed,
}

impl Outcome {
    /// Returns the exit code the reference's wire has for this outcome, if the program ran.
    #[must_use]
    pub const fn wire_exit_code(&self) -> Option<u8> {
        match self {
            Self::Exited { code } => Some(*code),
            Self::Limited { limit: LimitKind::Wall } => Some(124),
            Self::Signaled { .. } | Self::Limited { .. } | Self::Cancelled => Some(1),
            Self::Performed { .. }
            | Self::Denied
            | Self::ApprovalExpired
            | Self::PostureRefused
            | Self::GapDenied
            | Self::Unobserved
            | Self::Lost
            | Self::Failed => None,
        }
    }

    /// Returns whether the run counts as completed: the program exited with 0, or Warrant itself
    /// did what was asked for.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Exited { code: 0 } | Self::Performed { succeeded: true })
    }
}

/// What a run used. Absent means not measured, never zero.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Wall-clock time from the program's start to the last process's end, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_us: Option<u64>,
    /// CPU time of the whole tree, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<u64>,
    /// Highest memory use seen, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Bytes received through the egress proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_in_bytes: Option<u64>,
    /// Bytes sent through the egress proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_out_bytes: Option<u64>,
    /// Bytes of stdout seen, kept or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_bytes: Option<u64>,
    /// Bytes of stderr seen, kept or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_bytes: Option<u64>,
}
