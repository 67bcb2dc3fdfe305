//! Why a request is denied: a code for programs, a sentence for people.

use std::fmt;

/// A word for programs. The names of the sandbox governance SDK are aliases of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonCode {
    /// It may run.
    Allowed,
    /// A rule forbids it, or none permits it.
    PolicyViolation,
    /// It would cost more than allowed.
    BudgetExceeded,
    /// It would take longer than allowed.
    TimeLimit,
    /// It would use more memory than allowed.
    MemoryLimit,
    /// A person must approve it first.
    ApprovalRequired,
    /// Nobody approved in time.
    ApprovalTimeout,
    /// A member of the request is not understood.
    SchemaMismatch,
    /// The judge failed; that is a denial.
    Internal,
}

impl ReasonCode {
    /// Returns our word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::PolicyViolation => "policy_violation",
            Self::BudgetExceeded => "budget_exceeded",
            Self::TimeLimit => "time_limit",
            Self::MemoryLimit => "memory_limit",
            Self::ApprovalRequired => "approval_required",
            Self::ApprovalTimeout => "approval_timeout",
            Self::SchemaMismatch => "schema_mismatch",
            Self::Internal => "internal",
        }
    }

    /// Returns the SDK's word.
    #[must_use]
    pub const fn alias(self) -> &'static str {
        match self {
            Self::Allowed => "ALLOW",
            Self::PolicyViolation => "DENY_POLICY_VIOLATION",
            Self::BudgetExceeded => "DENY_BUDGET_EXCEEDED",
            Self::TimeLimit => "DENY_TIME_LIMIT",
            Self::MemoryLimit => "DENY_MEMORY_LIMIT",
            Self::ApprovalRequired => "DENY_APPROVAL_REQUIRED",
            Self::ApprovalTimeout => "DENY_APPROVAL_TIMEOUT",
            Self::SchemaMismatch => "DENY_SCHEMA_MISMATCH",
            Self::Internal => "ERROR_INTERNAL",
        }
    }
}

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// For programs.
    pub code: ReasonCode,
    /// For people; safe to show to the requester.
    pub message: String,
}

impl Reason {
    pub(crate) fn violation(message: String) -> Self {
        Self { code: ReasonCode::PolicyViolation, message }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
