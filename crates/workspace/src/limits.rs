//! Bounds on what is read from a workspace somebody else wrote.

use thiserror::Error;

/// How much of a tree is read before giving up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeLimits {
    /// Files and directories.
    pub entries: u64,
    /// Bytes of all changed files together.
    pub bytes: u64,
    /// Bytes of one file; a larger one is reported and not read.
    pub file_bytes: u64,
    /// Segments of one path.
    pub depth: usize,
}

impl TreeLimits {
    /// Returns bounds that hold any workspace people work in, and stop a bomb.
    #[must_use]
    pub const fn generous() -> Self {
        Self { entries: 2_000_000, bytes: 16 << 30, file_bytes: 4 << 30, depth: 128 }
    }
}

/// A bound was passed; nothing of the tree is used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LimitExceeded {
    /// Too many files and directories.
    #[error("the workspace has more than {0} entries")]
    Entries(u64),
    /// Too many bytes.
    #[error("the changed files have more than {0} bytes")]
    Bytes(u64),
    /// Nested too deeply, or with a path longer than the system opens.
    #[error("path {0} is nested too deeply")]
    Depth(String),
}
