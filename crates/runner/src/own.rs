//! Keeps sessions away from what is ours on this machine: keys, policy, store, identity.
//!
//! A program that could write the policy would permit itself everything, and one that could read
//! the keys could sign its own receipts; so no grant and no approval reaches there. A workspace
//! that merely contains our directory, as a person's home does, has it masked.

use std::fs;
use std::path::{Path, PathBuf};

use warrant_sandbox::{Invocation, Refusal, WorkspaceAccess};

use crate::site::Ownership;

/// The directories of ours directly below our own; what else lies there is somebody else's.
const OURS: [&str; 6] = ["keys", "data", "policy", "sessions", "outbox", "cache"];

/// Below ours: where living sandboxes, and runs that go on, have their files, each in a directory
/// of its own.
const WORKSPACES: [&str; 2] = ["data/live", "data/sessions"];

/// Returns the invocation with our directory `own` out of its reach.
///
/// `program` is a file of ours that the invocation must be able to read.
///
/// Holds for what a tier shows by grant. The process tier shows the whole machine.
pub(crate) fn keep_out(
    mut invocation: Invocation,
    own: &Path,
    (ownership, program): (Ownership, Option<&Path>),
) -> Result<Invocation, Refusal> {
    let own = real(own);
    let files = &mut invocation.files;
    let granted = files.read_roots.iter().chain(&files.write_roots);
    for root in granted.filter(|root| Some(root.as_path()) != program) {
        let path = real(root);
        if own.starts_with(&path) || is_ours(&own, &path) {
            return Err(denied(format!(
                "{} holds Warrant's own directory {}; nothing gives a program keys and policy",
                root.display(),
                own.display()
            )));
        }
    }
    if ownership == Ownership::OfThisRun {
        return Ok(invocation);
    }
    let workspace = real(&files.workspace);
    if is_ours(&own, &workspace) && !is_workspace(&own, &workspace) {
        return Err(denied(format!(
            "the workspace {} is Warrant's own directory; work elsewhere",
            workspace.display()
        )));
    }
    if let Ok(below) = own.strip_prefix(&workspace) {
        // SECURITY: a program that writes here directly could move our directory away, mask and
        // all, and put another policy in its place. In an overlay nothing from below can be moved.
        if files.access == WorkspaceAccess::Direct {
            return Err(denied(format!(
                "the workspace {} contains Warrant's own directory, so it cannot be written \
                 directly",
                workspace.display()
            )));
        }
        files.masks.push(mask(below));
    }
    Ok(invocation)
}

/// Whether a path below our directory is one of ours.
fn is_ours(own: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(own) else { return false };
    let Some(first) = below.components().next() else { return true };
    let first = first.as_os_str();
    OURS.iter().any(|name| first == *name) || own.join(first).is_file()
}

/// Whether a path lies where we make workspaces ourselves.
fn is_workspace(own: &Path, path: &Path) -> bool {
    let is_below = |place: &str| path.starts_with(own.join(place)) && path != own.join(place);
    WORKSPACES.into_iter().any(is_below)
}

/// Returns the glob of exactly this path below the workspace, or a little more than it.
fn mask(below: &Path) -> String {
    let any = |c: char| if "*?[]{}!\\".contains(c) { '?' } else { c };
    let text: String = below.to_string_lossy().chars().map(any).collect();
    // With a slash it speaks of the path, not of the name.
    format!("/{text}")
}

/// Returns a path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn denied(message: String) -> Refusal {
    Refusal { code: "SANDBOX_DENIED", message }
}
