//! Takes over what a run did with git: commits, references, HEAD, the index, unfinished merges.
//!
//! Git state is data that is imported, never files that are copied. New objects are read from the
//! run's layer, hashed, parsed and followed until the host's own objects are reached; references,
//! HEAD, logs and the index are parsed and written anew, and only where nobody else changed them
//! meanwhile. Hooks, config, attributes and whatever else decides how git behaves is never taken
//! over. No git is started.
//!
//! Only what the run touched is read, and of the host a few look-ups: the cost does not grow with
//! the history. Start at [`plan_git`].

mod commits;
mod head_files;
mod host;
mod index;
mod index_import;
mod locks;
mod loose;
mod names;
mod object_links;
mod objects;
mod parts;
mod plan;
mod reflog;
mod refs;
mod repositories;
mod state;
mod view;

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use warrant_protocol::Digest;

use crate::limits::TreeLimits;
use crate::object::Oid;
use crate::overlay::Scanned;
use crate::root::{Node, Root};
use crate::{GateClass, TreePath};

pub use commits::{CheckoutCommits, GitBundleOptions, write_checkout_bundle, write_git_bundle};
pub(crate) use commits::{PlannedCommits, check_commits, plan_commits};
pub(crate) use index::names_same_bytes;
pub(crate) use locks::{GitLocks, LOCKS, LockError, release_stale};
pub(crate) use loose::open_loose;
pub use names::{RefName, RefValue};
use plan::Planner;
use view::Views;

/// A reference, or HEAD, that a run changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefUpdate {
    /// The git directory, where it is not the workspace's own.
    pub repository: Option<String>,
    /// Which: `HEAD`, or a name below `refs/`.
    pub name: String,
    /// What it held; `None` when there was none.
    pub old: Option<RefValue>,
    /// What it holds; `None` when it is gone.
    pub new: Option<RefValue>,
}

impl RefUpdate {
    /// Reads an update as chain and receipt have it; `None` when it is not one that can be made.
    #[must_use]
    pub fn parse(name: &str, old: Option<&str>, new: Option<&str>) -> Option<Self> {
        let value = |text: &str| match Oid::from_hex(text) {
            Some(oid) => Some(RefValue::Object(oid)),
            None => RefName::new(text).map(RefValue::Symbolic),
        };
        let side = |text: Option<&str>| match text {
            Some(text) => value(text).map(Some),
            None => Some(None),
        };
        let name = match name {
            "HEAD" => name.to_owned(),
            name => RefName::new(name)?.as_str().to_owned(),
        };
        Some(Self { repository: None, name, old: side(old)?, new: side(new)? })
    }
}

impl std::fmt::Display for RefUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => write!(f, "{} moved from {old} to {new}", self.name),
            (None, Some(new)) => write!(f, "{} made at {new}", self.name),
            (Some(old), None) => write!(f, "{} removed, was {old}", self.name),
            (None, None) => f.write_str(&self.name),
        }
    }
}

/// A branch that holds what a run committed, because somebody else changed the same meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    /// The branch, without `refs/heads/`.
    pub branch: String,
    /// Its commit.
    pub commit: String,
    /// The reference that the run changed and that stays as it is.
    pub instead_of: String,
}

/// What of a run's git state is taken over.
#[derive(Debug, Default)]
pub struct GitPlan {
    /// Every reference that the run changed, HEAD included.
    pub refs: Vec<RefUpdate>,
    /// Branches for what met somebody else's work.
    pub detours: Vec<Detour>,
    /// Why nothing at all is taken over, files included.
    pub refusal: Option<String>,
    /// What else is worth knowing, for people.
    pub notes: Vec<String>,
    /// Whether the work tree stays as it is, as it does where HEAD does.
    pub(crate) leaves_files: bool,
    /// What is never taken over, or could not be.
    pub(crate) left_out: Vec<(TreePath, GateClass)>,
    pub(crate) rows: Vec<GitRow>,
    /// Objects, which stay when everything else is undone.
    pub(crate) objects: Vec<GitRow>,
}

/// One path of a git directory that changes.
#[derive(Debug)]
pub(crate) struct GitRow {
    pub(crate) path: TreePath,
    /// What was there when it was planned.
    pub(crate) before: Node,
    pub(crate) after: GitContent,
}

/// What a path of a git directory becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GitContent {
    Absent,
    Directory,
    Bytes(Vec<u8>),
    /// A loose object of the run's layer, at the same path there.
    LooseObject(Oid),
    /// A pack of the run's layer.
    Pack {
        from: TreePath,
        digest: Digest,
    },
}

/// How to plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GitOptions<'a> {
    /// Since 1970: when the run started.
    pub(crate) started_at: Option<Duration>,
    pub(crate) limits: TreeLimits,
    /// The branch that takes work which met somebody else's.
    pub(crate) branch: &'a str,
}

/// Adds rows for paths that have none yet.
fn add_rows(rows: &mut Vec<GitRow>, others: Vec<GitRow>) {
    let known: HashSet<TreePath> = rows.iter().map(|row| row.path.clone()).collect();
    rows.extend(others.into_iter().filter(|row| !known.contains(&row.path)));
}

/// Decides what of the workspace's own repository is taken over; nothing without one.
pub(crate) fn plan_git(
    lower: &Root,
    upper: &Root,
    rows: &[Scanned],
    options: &GitOptions<'_>,
) -> io::Result<Option<GitPlan>> {
    let views = Views::new(lower, upper, rows, options.started_at);
    let Some(found) = repositories::find(&views, rows)? else { return Ok(None) };
    let mut whole = GitPlan::default();
    let left_out = found.left_out.into_iter().map(|git| (git, GateClass::NewRepository));
    whole.left_out.extend(left_out);
    for repository in found.repositories {
        let planner = Planner::new(&views, repository, (options.limits, options.branch))?;
        whole.add(planner.run());
    }
    Ok(Some(whole))
}

impl GitPlan {
    /// Adds the plan of another git directory of the same workspace.
    fn add(&mut self, other: Self) {
        self.refs.extend(other.refs);
        self.detours.extend(other.detours);
        self.notes.extend(other.notes);
        self.left_out.extend(other.left_out);
        self.left_out.sort_by(|a, b| a.0.cmp(&b.0));
        self.left_out.dedup_by(|a, b| a.0 == b.0);
        self.leaves_files |= other.leaves_files;
        self.refusal = self.refusal.take().or(other.refusal);
        add_rows(&mut self.rows, other.rows);
        add_rows(&mut self.objects, other.objects);
    }

    /// Returns whether a path of the work tree is written by us: the file that leads to a git
    /// directory.
    pub(crate) fn writes(&self, path: &TreePath) -> bool {
        self.rows.iter().any(|row| row.path == *path)
    }
}
