//! Walks a tree by descriptor, bounded in entries and depth, parents before children.

use std::collections::HashSet;
use std::io;

use rustix::fs::FileType;
use thiserror::Error;

use crate::TreePath;
use crate::limits::{LimitExceeded, TreeLimits};
use crate::path::{is_git_name, quoted};
use crate::root::{Listed, Node, Root, list, node_at};

/// Why a tree could not be walked.
#[derive(Debug, Error)]
pub enum WalkError {
    /// A bound was passed.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// The system said no.
    #[error("{path} could not be read")]
    Io {
        /// Where.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

impl WalkError {
    pub(crate) fn at(path: Option<&TreePath>) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let path = path.map_or_else(|| ".".to_owned(), |path| quoted(path.as_bytes()));
            Self::Io { path, source }
        }
    }
}

/// One directory and the names in it that are not directories.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: Option<TreePath>,
    pub(crate) files: Vec<Listed>,
}

/// What a walk found.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) folders: Vec<Folder>,
    /// Names that mean `.git`; not entered.
    pub(crate) git_names: Vec<TreePath>,
    /// Directories that this user may not read.
    pub(crate) closed: Vec<TreePath>,
    /// Directories deeper than is read.
    pub(crate) too_deep: Vec<TreePath>,
}

impl Walked {
    /// Returns every path that is not a directory.
    pub(crate) fn paths(&self) -> HashSet<TreePath> {
        let paths = |folder: &Folder| {
            let parent = folder.path.clone();
            let child = move |file: &Listed| child_of(parent.as_ref(), &file.name);
            folder.files.iter().map(child).collect::<Vec<_>>()
        };
        self.folders.iter().flat_map(paths).collect()
    }
}

/// What a walk does at names that mean `.git`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitNames {
    Enter,
    Leave,
}

/// Walks everything below `root`, or below `top` in it; a directory that may not be read or is
/// too deep is an error.
pub(crate) fn walk(
    root: &Root,
    top: Option<&TreePath>,
    limits: &TreeLimits,
    git_names: GitNames,
) -> Result<Walked, WalkError> {
    let walked = walk_open(root, top, limits, git_names)?;
    if let Some(path) = walked.too_deep.first() {
        check_depth(path, limits)?;
    }
    match walked.closed.first() {
        Some(path) => Err(WalkError::at(Some(path))(io::ErrorKind::PermissionDenied.into())),
        None => Ok(walked),
    }
}

/// As [`walk`], and names directories that may not be read or are too deep instead of failing.
pub(crate) fn walk_open(
    root: &Root,
    top: Option<&TreePath>,
    limits: &TreeLimits,
    git_names: GitNames,
) -> Result<Walked, WalkError> {
    let mut walked = Walked {
        folders: Vec::new(),
        git_names: Vec::new(),
        closed: Vec::new(),
        too_deep: Vec::new(),
    };
    let mut waiting = vec![top.cloned()];
    let mut entries = 0_u64;
    while let Some(path) = waiting.pop() {
        let directory = match (root.directory(path.as_ref()), path.as_ref()) {
            (Err(error), Some(path)) if error.kind() == io::ErrorKind::PermissionDenied => {
                walked.closed.push(path.clone());
                continue;
            }
            (opened, path) => opened.map_err(WalkError::at(path))?,
        };
        let left = limits.entries.saturating_sub(entries);
        let copy = directory.try_clone().map_err(WalkError::at(path.as_ref()))?;
        let names = list(copy, left)
            .map_err(WalkError::at(path.as_ref()))?
            .ok_or(LimitExceeded::Entries(limits.entries))?;
        entries += names.len() as u64;
        let mut files = Vec::new();
        for mut listed in names {
            let child = child_of(path.as_ref(), &listed.name);
            if git_names == GitNames::Leave && is_git_name(&listed.name) {
                walked.git_names.push(child);
                continue;
            }
            if listed.kind == FileType::Unknown {
                let node = node_at(&directory, &listed.name);
                listed.kind = kind_of(&node.map_err(WalkError::at(Some(&child)))?);
            }
            if listed.kind == FileType::Directory {
                // SECURITY: one deep directory must not keep everything else from being read.
                match check_depth(&child, limits) {
                    Ok(()) => waiting.push(Some(child)),
                    Err(_) => walked.too_deep.push(child),
                }
            } else {
                files.push(listed);
            }
        }
        walked.folders.push(Folder { path, files });
    }
    Ok(walked)
}

pub(crate) fn child_of(parent: Option<&TreePath>, name: &[u8]) -> TreePath {
    parent.map_or_else(|| TreePath::segment(name), |parent| parent.join(name))
}

/// Refuses a path deeper than the limit, or longer than the system opens in one call.
pub(crate) fn check_depth(path: &TreePath, limits: &TreeLimits) -> Result<(), LimitExceeded> {
    const MAX_PATH_BYTES: usize = 3800;
    if path.depth() > limits.depth || path.as_bytes().len() > MAX_PATH_BYTES {
        let start = path.as_bytes().get(..80).unwrap_or(path.as_bytes());
        return Err(LimitExceeded::Depth(format!("{}…", quoted(start))));
    }
    Ok(())
}

const fn kind_of(node: &Node) -> FileType {
    match node {
        Node::Directory(_) => FileType::Directory,
        Node::File(_) => FileType::RegularFile,
        Node::Link(_) => FileType::Symlink,
        Node::Absent | Node::Special(_) => FileType::Unknown,
    }
}
