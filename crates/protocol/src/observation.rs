//! What the newer events carry: work that Warrant did itself, how much of the workspace was
//! captured, and what the export gate decided.
//!
//! Nothing here decides anything; [`crate::event`] holds the events, [`crate::fold()`] the receipt.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// One protection that really held while Warrant did something itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationGuard {
    /// Its name: `files.beneath`, `files.masks`, `bounds.file-bytes`, ….
    pub name: String,
    /// How it held: the system call, the list or the bound.
    pub source: String,
}

impl OperationGuard {
    /// Returns a protection by its name and how it held.
    pub fn new(name: &str, source: impl Into<String>) -> Self {
        Self { name: name.to_owned(), source: source.into() }
    }
}

/// What Warrant did itself, as the receipt says it: no program ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptOperation {
    /// What was done: `file.read`, `sandbox.life`, ….
    pub name: String,
    /// Whether it was done.
    pub succeeded: bool,
    /// What held meanwhile.
    pub guards: Vec<OperationGuard>,
}

/// How much of what a program changed was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaptureExtent {
    /// Everything: what is not named did not change.
    Complete,
    /// A part: more may have changed.
    Partial,
    /// Nothing: nobody looked, or looking failed.
    None,
}

impl CaptureExtent {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::None => "none",
        }
    }
}

/// How much was seen, as the receipt says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptCapture {
    /// How much.
    pub extent: CaptureExtent,
    /// How many changed files were recorded, those that the export gate named included.
    pub files: u64,
    /// Why it is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What the export gate decided about a changed path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportVerdict {
    /// It may be exported, and is named.
    Flagged,
    /// It is kept out until a person releases it.
    Held,
    /// It is never exported.
    Refused,
}

impl ExportVerdict {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Flagged => "flagged",
            Self::Held => "held",
            Self::Refused => "refused",
        }
    }
}

/// How often the export gate decided each way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptExport {
    /// Paths that may be exported and are named.
    pub flagged: u64,
    /// Paths that wait for a person.
    pub held: u64,
    /// Paths that are never exported.
    pub refused: u64,
}

impl ReceiptExport {
    /// Counts one verdict about `paths` paths.
    pub(crate) const fn add(&mut self, verdict: ExportVerdict, paths: u64) {
        let count = match verdict {
            ExportVerdict::Flagged => &mut self.flagged,
            ExportVerdict::Held => &mut self.held,
            ExportVerdict::Refused => &mut self.refused,
        };
        *count = count.saturating_add(paths);
    }
}

/// A reference of git that the program changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptGitRef {
    /// Which: `HEAD`, or a name below `refs/`.
    #[serde(rename = "ref")]
    pub reference: String,
    /// The git directory, when it is a submodule's or a linked worktree's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// What it held; absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// What it holds; absent when it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// Blocked destinations that are not on the chain one by one, but in an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldedDestinations {
    /// How many different ones.
    pub destinations: u64,
    /// How many attempts, over all of them.
    pub attempts: u64,
    /// The digest of the list, which is an artifact of the run.
    pub hash: Digest,
}
