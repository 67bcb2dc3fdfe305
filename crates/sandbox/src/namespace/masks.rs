//! Secrets in the workspace: found by descriptor at any depth, and veiled under every name.
//!
//! A secret is a file whose name or path matches a glob, every hard link to the same inode
//! anywhere in the workspace, and what a matching symbolic link points to inside it. A search
//! that cannot see everything fails; it never stops silently at a depth. A directory that may not
//! be looked into is veiled whole.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat,
};
use serde_json::{Value, json};
use warrant_jail::Hidden;
use warrant_protocol::{Digest, glob};

use crate::WorkspaceAccess;
use crate::namespace::layout::{MountKind, PlannedMount};
use crate::namespace::lower::c_path;
use crate::namespace::resolve::Resolved;

/// What is veiled and hidden.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// Veils over what exists.
    pub(crate) mounts: Vec<PlannedMount>,
    hidden_directories: Vec<(PathBuf, u32)>,
    hidden_names: Vec<PathBuf>,
}

/// Directories in which names are hidden that do not exist yet; the shallowest come first.
const MOST_HIDING_DIRECTORIES: usize = 1000;
/// Deeper trees are refused: their paths could not be mounted on.
const DEEPEST: usize = 200;

impl Masks {
    /// Returns the names in the workspace's root that stay invisible if they appear later.
    pub(crate) fn hidden_at_the_top(&self) -> impl Iterator<Item = &PathBuf> {
        self.hidden_names.iter().filter(|path| is_at_the_top(path))
    }

    /// Returns the same below it, as how many there are and one digest of them all.
    ///
    /// SECURITY: evidence goes to others, and an earlier run may have named a directory of the
    /// workspace by a secret. So no directory is named that the run itself does not touch.
    pub(crate) fn hidden_below(&self) -> Value {
        let below: Vec<&[u8]> = self
            .hidden_names
            .iter()
            .filter(|path| !is_at_the_top(path))
            .map(|path| path.as_os_str().as_bytes())
            .collect();
        json!({ "count": below.len(), "digest": Digest::of(&below.join(&b'\0')) })
    }

    /// Returns the same for the jail, parents first.
    pub(crate) fn hidden(&self) -> io::Result<Vec<Hidden>> {
        let directories =
            self.hidden_directories.iter().filter(|(path, _)| !path.as_os_str().is_empty());
        let directories = directories
            .map(|(path, mode)| Ok(Hidden::Directory { path: c_path(path)?, mode: *mode }));
        let names = self.hidden_names.iter().map(|path| Ok(Hidden::Name(c_path(path)?)));
        directories.chain(names).collect()
    }
}

fn is_at_the_top(path: &Path) -> bool {
    path.parent().is_none_or(|parent| parent.as_os_str().is_empty())
}

/// Searches the workspace, which is shown inside at `shown`.
///
/// # Errors
/// The system's error when a part of the workspace could not be looked at.
pub(crate) fn find(
    workspace: &Resolved,
    (patterns, shown): (&[String], &Path),
    access: WorkspaceAccess,
) -> io::Result<Masks> {
    if patterns.is_empty() {
        return Ok(Masks::default());
    }
    let search = Search::of(workspace, patterns)?;
    Ok(search.finish((&workspace.path, shown), access))
}

/// Returns the files and directories below a workspace that masks veil there, under every name
/// they have, by the paths below it.
///
/// # Errors
/// The system's error when a part of the workspace could not be looked at.
pub fn veiled(workspace: &Path, patterns: &[String]) -> io::Result<Vec<PathBuf>> {
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let search = Search::of(&Resolved::new(workspace)?, patterns)?;
    Ok(search.veils.into_keys().collect())
}

/// Returns an error with the path it is about.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

struct Search {
    masks: glob::Masks,
    root: OwnedFd,
    /// Paths below the workspace and whether each is a directory.
    veils: BTreeMap<PathBuf, bool>,
    /// Inodes of secrets that have further names.
    aliased: HashSet<(u64, u64)>,
    /// Directories seen, breadth first, with their permissions.
    directories: Vec<(PathBuf, u32)>,
}

/// One entry of a directory.
struct Found<'a> {
    directory: &'a OwnedFd,
    name: &'a OsStr,
    path: PathBuf,
    kind: FileType,
    inode: u64,
}

impl Search {
    /// Looks at everything in the workspace.
    fn of(workspace: &Resolved, patterns: &[String]) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, &workspace.path, flags, Mode::empty())?;
        let stat = fstat(&root)?;
        if (stat.st_dev, stat.st_ino) != workspace.identity {
            return Err(io::Error::other("the workspace was replaced meanwhile"));
        }
        let mut search = Self {
            masks: glob::Masks::new(patterns),
            root,
            veils: BTreeMap::new(),
            aliased: HashSet::new(),
            directories: Vec::new(),
        };
        search.walk(Self::look)?;
        if !search.aliased.is_empty() {
            search.walk(Self::look_for_alias)?;
        }
        Ok(search)
    }

    /// Walks the workspace breadth first and shows every entry to `look`, which says whether to
    /// go into it.
    fn walk(&mut self, look: fn(&mut Self, &Found<'_>) -> io::Result<bool>) -> io::Result<()> {
        self.directories.clear();
        let mut waiting = VecDeque::from([PathBuf::new()]);
        while let Some(path) = waiting.pop_front() {
            if path.components().count() > DEEPEST {
                return Err(io::Error::other("directories are nested too deeply"));
            }
            let directory = match self.open(&path) {
                Ok(directory) => directory,
                // What we may not look into, the program does not see at all: it is the same user
                // and could open a directory of its own that is closed.
                Err(error)
                    if error.kind() == io::ErrorKind::PermissionDenied
                        && !path.as_os_str().is_empty() =>
                {
                    self.veils.insert(path, true);
                    continue;
                }
                Err(error) => return Err(named(&path, &error)),
            };
            let mode = fstat(&directory)?.st_mode & 0o1777;
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                let mut found = Found {
                    directory: &directory,
                    name,
                    path: path.join(name),
                    kind: entry.file_type(),
                    inode: entry.ino(),
                };
                if found.kind == FileType::Unknown {
                    let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    found.kind = FileType::from_raw_mode(stat.st_mode);
                }
                if look(self, &found)? && found.kind == FileType::Directory {
                    waiting.push_back(found.path);
                }
            }
            self.directories.push((path, mode));
        }
        Ok(())
    }

    /// Opens a directory below the workspace.
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(openat2(&self.root, path, flags, Mode::empty(), resolve)?)
    }

    fn look(&mut self, found: &Found<'_>) -> io::Result<bool> {
        let text = found.path.to_string_lossy();
        if !self.masks.match_path(&text) {
            return Ok(true);
        }
        match found.kind {
            FileType::Directory => {
                self.veils.insert(found.path.clone(), true);
            }
            FileType::Symlink => self.veil_target(&found.path)?,
            _ => {
                let stat = statat(found.directory, found.name, AtFlags::SYMLINK_NOFOLLOW)?;
                if stat.st_nlink > 1 {
                    self.aliased.insert((stat.st_dev, stat.st_ino));
                }
                self.veils.insert(found.path.clone(), false);
            }
        }
        Ok(false)
    }

    fn look_for_alias(&mut self, found: &Found<'_>) -> io::Result<bool> {
        let is_candidate = found.kind != FileType::Directory
            && self.aliased.iter().any(|(_, inode)| *inode == found.inode);
        if is_candidate {
            let stat = statat(found.directory, found.name, AtFlags::SYMLINK_NOFOLLOW)?;
            if self.aliased.contains(&(stat.st_dev, stat.st_ino)) {
                self.veils.insert(found.path.clone(), false);
            }
        }
        Ok(!self.veils.get(&found.path).is_some_and(|is_directory| *is_directory))
    }

    /// Veils what a matching link points to, if that is in the workspace.
    fn veil_target(&mut self, link: &Path) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let Ok(target) = openat2(&self.root, link, flags, Mode::empty(), resolve) else {
            // It leads out of the workspace or nowhere; neither exists inside.
            return Ok(());
        };
        let stat = fstat(&target)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", target.as_raw_fd()))?;
        let root = std::fs::read_link(format!("/proc/self/fd/{}", self.root.as_raw_fd()))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if let Ok(below) = path.strip_prefix(&root)
            && !below.as_os_str().is_empty()
        {
            if !is_directory && stat.st_nlink > 1 {
                self.aliased.insert((stat.st_dev, stat.st_ino));
            }
            self.veils.insert(below.to_owned(), is_directory);
        }
        Ok(())
    }

    fn finish(self, (workspace, shown): (&Path, &Path), access: WorkspaceAccess) -> Masks {
        let mut mounts: Vec<PlannedMount> = Vec::new();
        for (path, is_directory) in &self.veils {
            let target = shown.join(path);
            if mounts.last().is_some_and(|mount| target.starts_with(&mount.target)) {
                continue;
            }
            let kind =
                if *is_directory { MountKind::VeiledDirectory } else { MountKind::VeiledFile };
            mounts.push(PlannedMount { target, kind });
        }
        let mut masks = Masks { mounts, ..Masks::default() };
        let literals: Vec<&str> = self.masks.literal_names().collect();
        if access == WorkspaceAccess::Overlay && !literals.is_empty() {
            let directories = self.directories.into_iter().take(MOST_HIDING_DIRECTORIES);
            for (directory, mode) in directories {
                let names = literals.iter().map(|name| directory.join(name));
                let absent = names.filter(|path| workspace.join(path).symlink_metadata().is_err());
                masks.hidden_names.extend(absent);
                masks.hidden_directories.push((directory, mode));
            }
        }
        masks
    }
}
