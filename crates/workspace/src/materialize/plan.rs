//! Decides what is written where, before anything is written.

use std::collections::{BTreeSet, HashMap, HashSet};

use warrant_protocol::{Digest, WorkspaceManifest};

use super::dirty::Dirty;
use super::{Base, MaterializeError};
use crate::object::FileMode;
use crate::raw::BaseFile;
use crate::walk::check_depth;
use crate::{LimitExceeded, TreeLimits, TreePath};

/// Everything that will be written.
#[derive(Debug)]
pub(super) struct Plan {
    /// Directories, parents first.
    pub(super) directories: BTreeSet<TreePath>,
    /// Files of the base that stay as they are, those of one directory together.
    pub(super) base: Vec<(TreePath, BaseFile)>,
    /// Files of the dirty diff.
    pub(super) dirty: Vec<(TreePath, BaseFile)>,
    /// Untracked files.
    pub(super) untracked: Vec<(TreePath, Digest, u64)>,
}

/// The files that will be there besides the untracked ones.
struct Files<'a> {
    base: &'a HashMap<TreePath, BaseFile>,
    changed: HashMap<&'a TreePath, Option<BaseFile>>,
}

impl Files<'_> {
    fn has(&self, path: &TreePath) -> bool {
        match self.changed.get(path) {
            Some(file) => file.is_some(),
            None => self.base.contains_key(path),
        }
    }
}

/// Judges every path and plans the writes.
pub(super) fn plan(
    base: &Base,
    dirty: Option<&Dirty>,
    manifest: &WorkspaceManifest,
    limits: &TreeLimits,
) -> Result<Plan, MaterializeError> {
    let changes: &[_] = dirty.map_or(&[], |dirty| &dirty.changes);
    let changed = changes.iter().map(|(path, file)| (path, *file)).collect();
    let files = Files { base: &base.files, changed };
    let stays = |(path, _): &&(TreePath, BaseFile)| !files.changed.contains_key(path);
    let mut plan = Plan {
        directories: BTreeSet::new(),
        base: base.order.iter().filter(stays).cloned().collect(),
        dirty: Vec::new(),
        untracked: Vec::new(),
    };
    for (path, file) in changes {
        check_name(path)?;
        check_depth(path, limits)?;
        if let Some(file) = file {
            plan.dirty.push((path.clone(), *file));
        }
    }
    let planned = || plan.base.iter().chain(&plan.dirty);
    let mut directories = BTreeSet::new();
    let mut last = None;
    for (path, _) in planned() {
        // Most files lie beside the one before.
        if last != Some(path.parent_bytes()) {
            last = Some(path.parent_bytes());
            directories.extend(ancestors(path));
        }
    }
    check_nesting(&files, &directories)?;
    let untracked = untracked(manifest, &files, (&plan, &directories), limits)?;
    let submodules = planned().filter(|(_, file)| file.mode == FileMode::Submodule);
    directories.extend(submodules.map(|(path, _)| path.clone()));
    directories.extend(untracked.iter().flat_map(|(path, ..)| ancestors(path)));
    Ok(Plan { directories, untracked, ..plan })
}

fn untracked(
    manifest: &WorkspaceManifest,
    files: &Files<'_>,
    (plan, directories): (&Plan, &BTreeSet<TreePath>),
    limits: &TreeLimits,
) -> Result<Vec<(TreePath, Digest, u64)>, MaterializeError> {
    if manifest.untracked_files.is_empty() {
        return Ok(Vec::new());
    }
    let planned = plan.base.iter().chain(&plan.dirty).map(|(path, _)| path);
    let mut folded: HashMap<Vec<u8>, TreePath> =
        planned.chain(directories).map(|path| (path.folded(), path.clone())).collect();
    let mut taken: HashSet<TreePath> = HashSet::new();
    let mut above_taken: HashSet<TreePath> = HashSet::new();
    let mut bytes = 0_u64;
    let mut planned = Vec::new();
    for file in &manifest.untracked_files {
        let text = file.path.as_str();
        let refuse = |why| MaterializeError::Path { path: text.to_owned(), why };
        let path = TreePath::new(text).map_err(|_| refuse("it is not a plain relative path"))?;
        check_name(&path)?;
        check_depth(&path, limits)?;
        bytes = bytes.saturating_add(file.bytes);
        if file.bytes > limits.file_bytes || bytes > limits.bytes {
            return Err(LimitExceeded::Bytes(limits.bytes).into());
        }
        if files.has(&path) || directories.contains(&path) || taken.contains(&path) {
            return Err(refuse("something is there already"));
        }
        for above in ancestors(&path) {
            // SECURITY: a tracked link in the middle would carry the write out of the checkout.
            if files.has(&above) || taken.contains(&above) {
                return Err(refuse("it goes through a file or link"));
            }
        }
        for part in ancestors(&path).into_iter().chain([path.clone()]) {
            let known = folded.entry(part.folded()).or_insert_with(|| part.clone());
            if *known != part {
                return Err(refuse("it collides with another name by case"));
            }
        }
        if above_taken.contains(&path) {
            return Err(refuse("it is a file and a directory"));
        }
        above_taken.extend(ancestors(&path));
        taken.insert(path.clone());
        planned.push((path, file.hash, file.bytes));
    }
    Ok(planned)
}

fn check_name(path: &TreePath) -> Result<(), MaterializeError> {
    match path.git_part() {
        Some(_) => {
            Err(MaterializeError::Path { path: path.to_string(), why: "it names a git directory" })
        }
        None => Ok(()),
    }
}

/// Refuses a file that is also a directory.
fn check_nesting(
    files: &Files<'_>,
    directories: &BTreeSet<TreePath>,
) -> Result<(), MaterializeError> {
    match directories.iter().find(|path| files.has(path)) {
        Some(path) => Err(MaterializeError::Path {
            path: path.to_string(),
            why: "it is a file and a directory",
        }),
        None => Ok(()),
    }
}

fn ancestors(path: &TreePath) -> Vec<TreePath> {
    std::iter::successors(path.parent(), TreePath::parent).collect()
}
