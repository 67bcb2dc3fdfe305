//! Brings what an overlay changed into the real workspace, through the gate.
//!
//! [`plan_export`] reads and decides and changes nothing; [`apply_export`] does what the plan says,
//! by descriptor and through the journal, so that it happens whole and can be undone.

pub(crate) mod git;
mod judge;

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::gate::link_class;
use crate::gitstate::{GitLocks, GitOptions, GitPlan, LockError, plan_git};
use crate::journal::{ChangeId, Journal, JournalError, PathState, Prepared, Row};
use crate::overlay::{self, OverlayError, Scanned};
use crate::root::{Node, Root, SpecialKind};
use crate::walk::GitNames;
use crate::{GateClass, GatePolicy, TreeLimits, TreePath, Verdict, WalkError};

/// How to plan an export.
#[derive(Clone, Copy)]
pub struct ExportOptions<'a> {
    /// What happens to files that execute later.
    pub policy: &'a GatePolicy,
    /// Held paths the person has released.
    pub released: &'a [TreePath],
    /// When the session started: what the person changed after that is not overwritten.
    pub started_at: Option<SystemTime>,
    /// Bounds on what is read.
    pub limits: TreeLimits,
    /// The branch that takes commits which met somebody else's, without `refs/heads/`.
    pub branch: &'a str,
}

/// A path the gate named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gated {
    /// Which.
    pub path: TreePath,
    /// Why it executes later.
    pub class: GateClass,
    /// What policy says of it.
    pub verdict: Verdict,
}

/// A path that is not exported whatever policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotExported {
    /// A pipe, socket or device.
    Special {
        /// Which.
        path: TreePath,
        /// What it is.
        kind: SpecialKind,
    },
    /// A file larger than a file may be.
    TooLarge {
        /// Which.
        path: TreePath,
        /// Its size.
        bytes: u64,
    },
    /// A file that the program closed to everyone, where whoever exports is not root.
    Closed {
        /// Which.
        path: TreePath,
    },
    /// A path nested deeper than is read.
    TooDeep {
        /// Which.
        path: TreePath,
    },
}

impl NotExported {
    /// Returns which, and for people why: "it is …".
    #[must_use]
    pub const fn told(&self) -> (&TreePath, &'static str) {
        match self {
            Self::Special { path, .. } => (path, "no file"),
            Self::TooLarge { path, .. } => (path, "too large"),
            Self::Closed { path } => (path, "closed to everyone"),
            Self::TooDeep { path } => (path, "nested too deeply"),
        }
    }
}

/// What an export would do.
#[derive(Debug)]
pub struct ExportPlan {
    rows: Vec<Scanned>,
    /// Every path the gate named, by path.
    pub gated: Vec<Gated>,
    /// Paths that stay outside in any case.
    pub not_exported: Vec<NotExported>,
    /// Files whose set-user, set-group or sticky bit is taken away.
    pub stripped: Vec<TreePath>,
    /// Files that both the session and, since it started, the person changed; not exported.
    pub conflicts: Vec<TreePath>,
    /// What of the repository's state is taken over.
    pub git: GitPlan,
}

impl ExportPlan {
    /// Returns the paths that would change.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.rows.iter().map(|row| &row.path)
    }

    /// Adds what of the repository is taken over, and names what is not.
    fn add_git(&mut self, git: GitPlan, options: &ExportOptions<'_>) {
        for (path, class) in &git.left_out {
            if let Some((class, verdict)) = options.policy.judge(path, Some(*class)) {
                self.gated.push(Gated { path: path.clone(), class, verdict });
            }
        }
        self.gated.sort_by(|a, b| a.path.cmp(&b.path));
        // Files that belong to a commit which went to a branch of its own stay as they are.
        if git.leaves_files {
            self.rows.clear();
        }
        self.git = git;
    }

    /// Returns the paths that wait for the person.
    pub fn held(&self) -> impl Iterator<Item = &Gated> {
        self.gated.iter().filter(|gated| gated.verdict == Verdict::Hold)
    }
}

/// Why nothing was exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The overlay could not be read.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The workspace changed under the plan; nothing was exported.
    #[error("{0} changed in the workspace since the plan was made; nothing was exported")]
    Conflict(TreePath),
    /// The git state cannot be taken over, and files go with it or not at all.
    #[error("nothing was kept, because the git state cannot be taken over: {0}")]
    Git(String),
    /// Another git is at work in the repository.
    #[error("nothing was kept, because another git holds {0}")]
    Locked(TreePath),
    /// The journal or a path failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A directory could not be opened.
    #[error("the workspace or the overlay could not be opened")]
    Open(#[source] io::Error),
}

/// Reads an overlay's upper directory and decides what of it is exported.
///
/// # Errors
/// [`ExportError`] when a bound is passed or something cannot be read.
pub fn plan_export(
    workspace: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    options: &ExportOptions<'_>,
) -> Result<ExportPlan, ExportError> {
    let lower = Root::duplicate(workspace).map_err(ExportError::Open)?;
    let upper = Root::duplicate(upper).map_err(ExportError::Open)?;
    let scan = overlay::scan(&lower, &upper, &options.limits, GitNames::Enter)?;
    let git_options = GitOptions {
        started_at: options.started_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok()),
        limits: options.limits,
        branch: options.branch,
    };
    let git = plan_git(&lower, &upper, &scan.rows, &git_options)
        .map_err(|error| OverlayError::Walk(WalkError::at(None)(error)))?;
    let mut scan = scan;
    if git.is_some() {
        let top = TreePath::segment(b".git");
        scan.rows.retain(|row| row.path == top || !row.path.is_within(&top));
        let is_written = |row: &Scanned| git.as_ref().is_some_and(|git| git.writes(&row.path));
        scan.rows.retain(|row| !is_written(row));
    }
    let repositories = judge::new_repositories(&scan.rows, |path| lower.node(path))
        .map_err(|error| OverlayError::Walk(WalkError::at(None)(error)))?;
    let mut outward = HashMap::new();
    for row in scan.rows.iter().filter(|row| matches!(row.after, Node::Link(_))) {
        let target = upper.link(&row.path);
        let target = target.map_err(|error| WalkError::at(Some(&row.path))(error));
        let class = link_class(&row.path, &target.map_err(OverlayError::Walk)?);
        outward.extend(class.map(|class| (row.path.clone(), class)));
    }
    let context =
        judge::Context { repositories, outward, released: options.released.iter().collect() };
    let mut plan = judge::judge(scan.rows, &context, options);
    let too_deep = scan.too_deep.into_iter().map(|path| NotExported::TooDeep { path });
    plan.not_exported.extend(too_deep);
    plan.add_git(git.unwrap_or_default(), options);
    Ok(plan)
}

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The paths that changed.
    pub paths: Vec<TreePath>,
    /// The change that [`Journal::undo`] takes back.
    pub change: ChangeId,
    /// What could not be read, and stays as it was.
    pub left_out: Vec<NotExported>,
}

/// Does what the plan says; afterwards [`Journal::undo`] can put everything back.
///
/// # Errors
/// [`ExportError`]; nothing happened, or the next [`Journal::open`] ends what is unfinished.
pub fn apply_export(
    plan: ExportPlan,
    workspace: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    journal: &Journal,
) -> Result<Exported, ExportError> {
    let lower = Root::duplicate(workspace).map_err(ExportError::Open)?;
    let upper = Root::duplicate(upper).map_err(ExportError::Open)?;
    let owner = root_owner(&lower).map_err(ExportError::Open)?;
    if let Some(why) = plan.git.refusal {
        return Err(ExportError::Git(why));
    }
    let mut store = journal.prepare()?;
    let locks = git_locks(&lower, store.path(), &plan.git)?;
    let mut git = git::GitRows { lower: &lower, upper: &upper, store: &mut store };
    let objects = git.objects(plan.git.objects)?;
    let git_rows = git.rows(plan.git.rows)?;
    let mut rows = Vec::with_capacity(plan.rows.len());
    let mut left_out = Vec::new();
    for planned in plan.rows {
        let path = planned.path;
        let failed = |error| ExportError::Journal(WalkError::at(Some(&path))(error).into());
        // What was planned against must still be there, to the last change time.
        if !is_same(lower.node(&path).map_err(failed)?, planned.before) {
            return Err(ExportError::Conflict(path));
        }
        let before = store.keep(&lower, &path);
        let before = before
            .map_err(|error| ExportError::Journal(WalkError::at(Some(&path))(error).into()))?;
        let after = match planned.after {
            Node::Absent => Ok(PathState::Absent),
            node => store.keep_node(&upper, &path, node),
        };
        let after = match after {
            // SECURITY: one such file must not keep everything else from being exported.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                left_out.push(NotExported::Closed { path });
                continue;
            }
            after => after
                .map_err(|error| ExportError::Journal(WalkError::at(Some(&path))(error).into()))?,
        };
        let after = exported_state(after, &before, owner);
        if !is_unchanged(&before, &after) {
            rows.push(Row { path, before, after });
        }
    }
    let paths = rows.iter().map(|row| row.path.clone()).collect();
    rows.extend(git_rows);
    let change = journal.apply(&lower, "export", Prepared { store, rows, objects })?;
    drop(locks);
    Ok(Exported { paths, change, left_out })
}

/// Takes git's own locks, so that no other git changes the same meanwhile.
fn git_locks<'a>(
    lower: &'a Root,
    entry: &std::path::Path,
    git: &GitPlan,
) -> Result<GitLocks<'a>, ExportError> {
    GitLocks::acquire(lower, entry, git.rows.iter().map(|row| &row.path)).map_err(|error| {
        match error {
            LockError::Held(path) => ExportError::Locked(path),
            LockError::Io(path, error) => {
                ExportError::Journal(WalkError::at(Some(&path))(error).into())
            }
        }
    })
}

/// Returns whether a copy made by the overlay differs from what it copies in nothing that counts.
fn is_unchanged(before: &PathState, after: &PathState) -> bool {
    match (before, after) {
        (PathState::Directory { mode, .. }, PathState::Directory { mode: after_mode, .. }) => {
            mode == after_mode
        }
        _ => before.is_like(after),
    }
}

fn is_same(now: Node, planned: Node) -> bool {
    match (now, planned) {
        // A directory's times move with everything that happens in it.
        (Node::Directory(now), Node::Directory(planned)) => now.inode == planned.inode,
        (now, planned) => now == planned,
    }
}

/// Gives a state from the overlay the owner and permissions it may have in the workspace.
///
/// SECURITY: set-user and set-group bits are dropped, and files belong to whoever owns the
/// workspace, not to the user the session ran as.
fn exported_state(after: PathState, before: &PathState, root_owner: (u32, u32)) -> PathState {
    let owner = match before {
        PathState::Directory { owner, .. }
        | PathState::File { owner, .. }
        | PathState::Link { owner, .. } => *owner,
        PathState::Absent | PathState::Special => root_owner,
    };
    match after {
        PathState::Directory { mode, mtime, .. } => {
            PathState::Directory { mode: mode & 0o777, mtime, owner }
        }
        PathState::File { mode, mtime, digest, content, .. } => {
            PathState::File { mode: mode & 0o777, mtime, owner, digest, content }
        }
        PathState::Link { target, mtime, .. } => PathState::Link { target, mtime, owner },
        state @ (PathState::Absent | PathState::Special) => state,
    }
}

pub(crate) fn root_owner(root: &Root) -> io::Result<(u32, u32)> {
    let stat = rustix::fs::fstat(root)?;
    Ok((stat.st_uid, stat.st_gid))
}
