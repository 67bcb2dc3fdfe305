//! What a shell script would start and touch, from a real parse.
//!
//! Pure: text in, values out. Nothing is executed, expanded or looked up. What cannot be known
//! from the text is marked as dynamic, never left out; what two shells read differently is an
//! error. The answer is for judging a request; the boundary around the running program does not
//! depend on it. Start at [`analyze`].

use thiserror::Error;

mod argument;
mod effects;
mod hosts;
mod lexer;
mod parser;
mod rewrite;
mod syntax;
mod unwrap;
mod walker;
mod wrappers;

pub use effects::{Access, Confidence, Effect, Target};
pub use hosts::hosts_of;
pub use rewrite::{RewriteError, quote, rewrite_home};
pub use unwrap::{Inner, Unwrapped, unwrap};
pub use walker::{Analysis, Name, Program, analyze, analyze_argv, brace_positions, is_shell};
pub use wrappers::chooses_programs;

/// Scripts longer than this are not analyzed.
pub const MAX_BYTES: usize = 1 << 20;
/// Deeper nesting than this is not analyzed.
pub const MAX_DEPTH: usize = 96;
/// More commands than this are not analyzed.
pub const MAX_COMMANDS: usize = 20_000;

/// The shell that will read a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `sh`, whichever shell that is on the machine.
    Sh,
    /// `bash`.
    Bash,
}

/// Why a script was not understood. Whoever judges it must treat that as a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The text is longer than [`MAX_BYTES`].
    #[error("the script has {bytes} bytes, more than {MAX_BYTES}")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// The text nests deeper than [`MAX_DEPTH`].
    #[error("the script nests too deeply")]
    TooDeep,
    /// The text has more than [`MAX_COMMANDS`] commands.
    #[error("the script has more than {MAX_COMMANDS} commands")]
    TooMany,
    /// Something that must follow does not.
    #[error("expected {needed} at byte {at} of the script")]
    Missing {
        /// What must follow.
        needed: &'static str,
        /// Where.
        at: usize,
    },
    /// Something stands where nothing of its kind may.
    #[error("unexpected text at byte {at} of the script")]
    Unexpected {
        /// Where.
        at: usize,
    },
    /// Shells read this text differently.
    #[error("{what} at byte {at} of the script means different things in different shells")]
    Ambiguous {
        /// What it is.
        what: &'static str,
        /// Where.
        at: usize,
    },
}
