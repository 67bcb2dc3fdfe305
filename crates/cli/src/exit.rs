//! Every exit code of ours, in one list. The program's own code passes through unchanged; the
//! summary line on stderr and `--json` always say whose code it is.

use std::process::ExitCode;

/// What a command of ours ends with when it is not the program's own code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Success,
    /// Something of ours, or the machine, failed.
    Failure,
    /// The arguments do not make sense.
    Usage,
    /// Not verified.
    NotVerified,
}

impl Exit {
    /// Returns the number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotVerified => 6,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
