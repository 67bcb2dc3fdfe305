//! Lowering: what a command needs of the files, against what it was given, before it runs.
//!
//! The same for every backend, and pure but for the caller's way of finding real paths. A command
//! that needs more than it was given meets a gap here; [`decide_gap`] grants, rewrites, asks or
//! denies, and [`prepare_with_gaps`] goes on until there is none left. None of this is the
//! boundary: what is not granted does not exist inside, whether it was foreseen here or not.

mod decide;
mod effects;
mod paths;
mod report;

use std::path::{Path, PathBuf};

pub use warrant_script::Access;

use crate::{Invocation, WorkspaceAccess};

pub use decide::{
    Approval, Asked, GapDecision, GapEvent, Lowered, PolicyView, Stopped, decide_gap, needs,
    prepare_with_gaps,
};
pub use report::Lowering;

/// A directory or file and what may be done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Its absolute path.
    pub path: PathBuf,
    /// What may be done.
    pub access: Access,
}

/// Something that was given after the request was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The gap it closes.
    pub reason: GapReason,
    /// What was given.
    pub root: Root,
    /// Who gave it: `policy`, or an approver.
    pub granted_by: String,
}

/// Why a command needs more than it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GapReason {
    /// It starts outside everything it was given.
    CwdOutsideDeclaredRoots,
    /// It names a path outside everything it was given.
    PathOutsideDeclaredRoots,
    /// It names a path only the shell would know.
    ShellDynamicPathUnresolved,
}

impl GapReason {
    /// Returns the name used in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CwdOutsideDeclaredRoots => "cwd-outside-declared-roots",
            Self::PathOutsideDeclaredRoots => "path-outside-declared-roots",
            Self::ShellDynamicPathUnresolved => "shell-dynamic-path-unresolved",
        }
    }
}

/// Something a command needs and was not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Why.
    pub reason: GapReason,
    /// The path, or the token when only the shell knows the path.
    pub path: String,
    /// What the command would do; absent when nothing is said.
    pub required: Option<Access>,
    /// A sentence for people, safe to show to the agent.
    pub message: String,
}

/// What a backend has on its own, and how real paths are found.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// Roots the backend itself brings: system directories, scratch, devices.
    pub runtime: &'a [Root],
    /// Returns the real path of the deepest part of a path that exists, with the rest behind it;
    /// nothing when that cannot be told.
    pub real_path: &'a dyn Fn(&Path) -> Option<PathBuf>,
    /// What a path that only the shell would know is.
    pub unknown_paths: UnknownPaths,
}

/// What a path that only the shell would know is, home directories aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownPaths {
    /// A gap. Nothing closes it, so the command is denied.
    Gap,
    /// A warning; whatever it turns out to be, only what was given exists inside.
    Warn,
}

/// Lowers an invocation: a report, or the first gap.
///
/// # Errors
/// The first [`Gap`], in the order working directory, then the script's effects.
pub fn lower(
    invocation: &Invocation,
    grants: &[Grant],
    ground: &Ground<'_>,
) -> Result<Lowering, Gap> {
    let mut lowering = Lowering {
        declared: declared(invocation),
        runtime: ground.runtime.to_vec(),
        granted: grants.iter().map(|grant| grant.root.clone()).collect(),
        effects: Vec::new(),
        warnings: Vec::new(),
    };
    let reach = paths::Reach::new(&lowering, ground.real_path);
    check_cwd(invocation, &lowering, &reach)?;
    let (effects, warnings) = effects::check(invocation, &reach, ground)?;
    lowering.effects = effects;
    lowering.warnings = warnings;
    Ok(lowering)
}

/// Returns the report of an invocation whether it has gaps or not: what it is thought to do, with
/// nothing granted.
#[must_use]
pub fn survey(invocation: &Invocation, ground: &Ground<'_>) -> Lowering {
    Lowering {
        declared: declared(invocation),
        runtime: ground.runtime.to_vec(),
        granted: Vec::new(),
        effects: effects::of(&invocation.command),
        warnings: Vec::new(),
    }
}

/// Returns what the invocation itself declares, the workspace first.
fn declared(invocation: &Invocation) -> Vec<Root> {
    let files = &invocation.files;
    let access = match files.access {
        WorkspaceAccess::ReadOnly => Access::Read,
        WorkspaceAccess::Overlay | WorkspaceAccess::Direct => Access::ReadWrite,
    };
    let mut roots = vec![Root { path: files.workspace.clone(), access }];
    let reads = files.read_roots.iter().map(|path| (path, Access::Read));
    let writes = files.write_roots.iter().map(|path| (path, Access::ReadWrite));
    roots.extend(reads.chain(writes).map(|(path, access)| Root { path: path.clone(), access }));
    roots
}

/// The working directory must be the workspace's, or one that was granted for that.
fn check_cwd(
    invocation: &Invocation,
    lowering: &Lowering,
    reach: &paths::Reach<'_>,
) -> Result<(), Gap> {
    let workspace = &invocation.files.workspace;
    let is_inside = reach.is_within(&invocation.cwd, workspace);
    let is_granted =
        lowering.granted.iter().any(|root| reach.is_within(&invocation.cwd, &root.path));
    if is_inside || is_granted {
        return Ok(());
    }
    Err(Gap {
        reason: GapReason::CwdOutsideDeclaredRoots,
        path: invocation.cwd.display().to_string(),
        required: None,
        message: "the command would start outside the workspace".to_owned(),
    })
}
