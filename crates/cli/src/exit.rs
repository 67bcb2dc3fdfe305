//! Every exit code of ours, in one list. The program's own code passes through unchanged; the
//! summary line on stderr and `--json` (`exitCodeIs`) always say whose code it is.

use std::process::ExitCode;

use warrant_govern::{DeskError, WorkbenchError};

/// A mistake in the arguments that only looking at them shows; it ends with [`Exit::Usage`].
#[derive(Debug)]
pub(crate) struct Misuse(String);

impl Misuse {
    /// Marks an error as the person's to mend.
    pub(crate) fn of(error: anyhow::Error) -> anyhow::Error {
        Self(format!("{error:#}")).into()
    }
}

impl Exit {
    /// Returns what an error ends a command with: what the person named and is not there, or
    /// makes no sense, is theirs to mend.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        let is_misuse = error.is::<Misuse>()
            || matches!(
                error.downcast_ref(),
                Some(DeskError::NoRun(_) | DeskError::SecretInRequest { .. })
            )
            || matches!(
                error.downcast_ref(),
                Some(
                    WorkbenchError::NoWorkspace { .. }
                        | WorkbenchError::WholeMachine
                        | WorkbenchError::NoText(_)
                )
            );
        if is_misuse { Self::Usage } else { Self::Failure }
    }
}

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// What a command ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Success,
    /// The program exited with this code.
    Program(u8),
    /// A signal ended the program.
    Signal(u8),
    /// Something of ours, or the machine, failed; or a check did not pass.
    Failure,
    /// The arguments do not make sense.
    Usage,
    /// Policy said no.
    Denied,
    /// Someone must approve first.
    WaitingForApproval,
    /// Someone said no, or nobody said yes in time.
    ApprovalRefused,
    /// Not verified.
    NotVerified,
    /// The boundary here holds less than the contract demands.
    PostureTooWeak,
    /// The command needs more than it was given.
    GapDenied,
    /// A limit other than time struck.
    LimitStruck,
    /// The program's time was up.
    TimedOut,
    /// Someone stopped it.
    Cancelled,
}

impl Exit {
    /// Returns the number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Program(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Denied => 3,
            Self::WaitingForApproval => 4,
            Self::ApprovalRefused => 5,
            Self::NotVerified => 6,
            Self::PostureTooWeak => 7,
            Self::GapDenied => 8,
            Self::LimitStruck => 9,
            Self::TimedOut => 124,
            Self::Cancelled => 130,
        }
    }

    /// Returns whose code it is.
    pub(crate) const fn owner(self) -> &'static str {
        match self {
            Self::Program(_) | Self::Signal(_) => "program",
            _ => "warrant",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
