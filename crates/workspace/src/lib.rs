//! What moves into a run and what comes back.
//!
//! Nothing that comes from a workspace is ever executed here: git is started only in repository
//! directories whose config we wrote, and everything else goes by descriptor.
//! Start at [`capture()`] and [`materialize()`] for the way in, [`collect()`]
//! and [`plan_export`] for the way out, [`Journal`] for the way back, [`pull()`] for the way home.

mod blob;
mod bundle;
mod capture;
mod change;
mod collect;
mod continuation;
mod discover;
mod export;
mod gate;
mod git;
mod gitstate;
mod journal;
mod limits;
mod linked;
mod materialize;
mod object;
mod overlay;
mod pack;
mod patch;
mod path;
mod progress;
mod pull;
mod raw;
mod root;
mod threads;
mod walk;

pub use blob::{BlobDirectory, BlobSink, BlobSource, StoredBlob};
pub use capture::{
    CaptureError, CaptureOptions, Captured, DEFAULT_DENY, History, capture, capture_folder,
};
pub use change::{Change, ChangeKind, Collected, Diff, Unread, WhyUnread};
pub use collect::{CollectError, CollectOptions, Watch, collect, collect_overlay};
pub use continuation::{
    CheckpointParts, ContinuationError, make_checkpoint, open_envelope, open_tool_journal,
    store_envelope,
};
pub use discover::{DiscoverError, head_commit, workspace_top};
pub use export::{
    ExportError, ExportOptions, ExportPlan, Exported, Gated, NotExported, apply_export, plan_export,
};
pub use gate::{GateClass, GateLists, GatePolicy, Verdict, classify};
pub use git::GitError;
pub use gitstate::{
    CheckoutCommits, Detour, GitBundleOptions, GitPlan, RefName, RefUpdate, RefValue,
    write_checkout_bundle, write_git_bundle,
};
pub use journal::{
    ChangeId, Changed, Journal, JournalError, Recovered, Restored, Snapshot, UndoError, Undone,
};
pub use limits::{LimitExceeded, TreeLimits};
pub use linked::outer_git;
pub use materialize::{
    Checkout, GitDirectory, MaterializeError, MaterializeOptions, clear, materialize,
};
pub use object::{FileMode, InvalidTree, Oid};
pub use overlay::OverlayError;
pub use pack::PackError;
pub use path::{InvalidPath, TreePath, is_git_name};
pub use progress::{Phase, Progress, Step, Stop, never_stop, quiet};
pub use pull::{
    BranchWish, Conflict, MergePreview, PullCommits, PullError, PullOptions, PullWork, Pulled,
    WhyBranch, is_applied, pull, pull_with_commits,
};
pub use root::SpecialKind;
pub use walk::WalkError;
