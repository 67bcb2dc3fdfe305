//! Reads the upper directory of an overlay: what it adds, changes and hides of the one below.
//!
//! The format is the kernel's: a character device 0:0 hides a name, the attribute
//! `overlay.opaque` hides everything a directory had below. Anything we do not know is refused.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use thiserror::Error;

use crate::TreePath;
use crate::limits::{LimitExceeded, TreeLimits};
use crate::path::is_git_name;
use crate::root::{Facts, Node, Root, list, open_regular};
use crate::walk::{GitNames, WalkError, check_depth, child_of, walk};

/// Why an overlay could not be read.
#[derive(Debug, Error)]
pub enum OverlayError {
    /// It could not be walked.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// It uses a feature that was not switched on when it was mounted.
    #[error("{path} carries the overlay attribute {attribute}, which is not understood")]
    Attribute {
        /// Where.
        path: String,
        /// Which.
        attribute: &'static str,
    },
}

impl From<LimitExceeded> for OverlayError {
    fn from(limit: LimitExceeded) -> Self {
        Self::Walk(WalkError::Limit(limit))
    }
}

/// A path the overlay touches.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) path: TreePath,
    /// What is below.
    pub(crate) before: Node,
    /// What the merged view shows.
    pub(crate) after: Node,
}

/// Everything an overlay touches, by path.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) rows: Vec<Scanned>,
    /// Touched names that mean `.git` and were not entered.
    pub(crate) git_names: Vec<TreePath>,
    /// Touched paths deeper than is read; not entered.
    pub(crate) too_deep: Vec<TreePath>,
}

/// Whether what a directory had below shows through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opacity {
    Clear,
    Opaque,
    /// Names may be hidden by marked empty files.
    Marked,
}

struct Scanner<'a> {
    lower: &'a Root,
    upper: &'a Root,
    limits: &'a TreeLimits,
    git_names: GitNames,
    entries: u64,
    scan: Scan,
}

/// Reads the whole upper directory against the lower one.
pub(crate) fn scan(
    lower: &Root,
    upper: &Root,
    limits: &TreeLimits,
    git_names: GitNames,
) -> Result<Scan, OverlayError> {
    let scan = Scan { rows: Vec::new(), git_names: Vec::new(), too_deep: Vec::new() };
    let mut scanner = Scanner { lower, upper, limits, git_names, entries: 0, scan };
    let mut waiting = vec![(None, Opacity::Clear)];
    while let Some((path, opacity)) = waiting.pop() {
        scanner.folder(path.as_ref(), opacity, &mut waiting)?;
    }
    let mut scan = scanner.scan;
    scan.rows.sort_by(|a, b| a.path.cmp(&b.path));
    scan.rows.dedup_by(|a, b| a.path == b.path);
    scan.git_names.sort();
    scan.git_names.dedup();
    Ok(scan)
}

impl Scanner<'_> {
    fn folder(
        &mut self,
        path: Option<&TreePath>,
        inherited: Opacity,
        waiting: &mut Vec<(Option<TreePath>, Opacity)>,
    ) -> Result<(), OverlayError> {
        // SECURITY: one closed directory must not keep everything else from being collected.
        let directory = self.upper.directory_of_ours(path).map_err(WalkError::at(path))?;
        let own = opacity(&directory, path)?;
        let opacity = if inherited == Opacity::Opaque { Opacity::Opaque } else { own };
        let names = self.names(&directory, path)?;
        if opacity == Opacity::Opaque {
            self.hide_unlisted(path, &names)?;
        }
        for name in names {
            let child = child_of(path, &name);
            // SECURITY: one deep directory must not keep everything else from being read.
            if check_depth(&child, self.limits).is_err() {
                self.scan.too_deep.push(child);
                continue;
            }
            if self.git_names == GitNames::Leave && is_git_name(&name) {
                self.scan.git_names.push(child);
                continue;
            }
            let before = self.lower.node(&child).map_err(WalkError::at(Some(&child)))?;
            let after = upper_node(&directory, &child, opacity)?;
            let is_directory = matches!(after, Node::Directory(_));
            if matches!(before, Node::Directory(_)) && !is_directory {
                self.hide_tree(&child)?;
            }
            if is_directory {
                waiting.push((Some(child.clone()), opacity_below(opacity, before)));
            }
            if before != Node::Absent || after != Node::Absent {
                self.scan.rows.push(Scanned { path: child, before, after });
            }
        }
        Ok(())
    }

    fn names(
        &mut self,
        directory: &OwnedFd,
        path: Option<&TreePath>,
    ) -> Result<Vec<Vec<u8>>, OverlayError> {
        let copy = directory.try_clone().map_err(WalkError::at(path))?;
        let left = self.limits.entries.saturating_sub(self.entries);
        let names = list(copy, left)
            .map_err(WalkError::at(path))?
            .ok_or(LimitExceeded::Entries(self.limits.entries))?;
        self.entries += names.len() as u64;
        Ok(names.into_iter().map(|listed| listed.name).collect())
    }

    /// Records that an opaque directory hides every name below that it does not have itself.
    fn hide_unlisted(
        &mut self,
        path: Option<&TreePath>,
        names: &[Vec<u8>],
    ) -> Result<(), OverlayError> {
        let is_directory = match path {
            Some(path) => {
                let node = self.lower.node(path).map_err(WalkError::at(Some(path)))?;
                matches!(node, Node::Directory(_))
            }
            None => true,
        };
        if !is_directory {
            return Ok(());
        }
        let directory = self.lower.directory(path).map_err(WalkError::at(path))?;
        for name in self.names(&directory, path)? {
            if names.binary_search(&name).is_ok() {
                continue;
            }
            let child = child_of(path, &name);
            if self.git_names == GitNames::Leave && is_git_name(&name) {
                self.scan.git_names.push(child);
                continue;
            }
            let before = self.lower.node(&child).map_err(WalkError::at(Some(&child)))?;
            if matches!(before, Node::Directory(_)) {
                self.hide_tree(&child)?;
            }
            self.scan.rows.push(Scanned { path: child, before, after: Node::Absent });
        }
        Ok(())
    }

    /// Records that everything below a directory of the lower tree is gone.
    fn hide_tree(&mut self, top: &TreePath) -> Result<(), OverlayError> {
        let walked = walk(self.lower, Some(top), self.limits, self.git_names)?;
        self.scan.git_names.extend(walked.git_names);
        for folder in walked.folders {
            let path = folder.path.unwrap_or_else(|| top.clone());
            self.entries += folder.files.len() as u64 + 1;
            if self.entries > self.limits.entries {
                return Err(LimitExceeded::Entries(self.limits.entries).into());
            }
            for file in folder.files {
                let child = path.join(&file.name);
                let before = self.lower.node(&child).map_err(WalkError::at(Some(&child)))?;
                self.scan.rows.push(Scanned { path: child, before, after: Node::Absent });
            }
            if path != *top {
                let before = self.lower.node(&path).map_err(WalkError::at(Some(&path)))?;
                self.scan.rows.push(Scanned { path, before, after: Node::Absent });
            }
        }
        Ok(())
    }
}

/// Below an opaque directory nothing shows through either.
const fn opacity_below(opacity: Opacity, before: Node) -> Opacity {
    match (opacity, before) {
        (Opacity::Opaque, _) => Opacity::Opaque,
        (_, Node::Directory(_)) => Opacity::Clear,
        _ => Opacity::Opaque,
    }
}

/// Returns what the merged view shows for a name of the upper directory.
fn upper_node(
    directory: &OwnedFd,
    path: &TreePath,
    opacity: Opacity,
) -> Result<Node, OverlayError> {
    let fail = || WalkError::at(Some(path));
    let stat = rustix::fs::statat(directory, path.name(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| fail()(error.into()))?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if is_device && Facts::of(&stat).special_device == 0 {
        return Ok(Node::Absent);
    }
    let node = Node::of(&stat);
    if let Node::File(facts) = node {
        let (file, _) = match open_regular(directory, path.name()) {
            // Whoever reads it meets the same, and says so.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(node),
            opened => opened.map_err(fail())?,
        };
        if opacity == Opacity::Marked
            && facts.bytes == 0
            && has(&file, "whiteout").map_err(fail())?
        {
            return Ok(Node::Absent);
        }
        if has(&file, "metacopy").map_err(fail())? {
            return Err(OverlayError::Attribute { path: path.to_string(), attribute: "metacopy" });
        }
    }
    Ok(node)
}

fn opacity(directory: &OwnedFd, path: Option<&TreePath>) -> Result<Opacity, OverlayError> {
    let name = || path.map_or_else(|| ".".to_owned(), ToString::to_string);
    if has(directory, "redirect").map_err(WalkError::at(path))? {
        return Err(OverlayError::Attribute { path: name(), attribute: "redirect" });
    }
    match attribute(directory, "opaque").map_err(WalkError::at(path))?.as_deref() {
        None => Ok(Opacity::Clear),
        Some(b"y") => Ok(Opacity::Opaque),
        Some(b"x") => Ok(Opacity::Marked),
        Some(_) => Err(OverlayError::Attribute { path: name(), attribute: "opaque" }),
    }
}

fn has(fd: impl AsFd, name: &str) -> io::Result<bool> {
    Ok(attribute(fd, name)?.is_some())
}

/// Returns an overlay attribute, of a privileged mount or of one without privileges.
fn attribute(fd: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    for space in ["user", "trusted"] {
        let mut value = [0; 8];
        let key = format!("{space}.overlay.{name}");
        match rustix::fs::fgetxattr(fd.as_fd(), key, value.as_mut_slice()) {
            Ok(count) => return Ok(Some(value.get(..count).unwrap_or_default().to_vec())),
            Err(Errno::RANGE) => return Ok(Some(Vec::new())),
            Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
