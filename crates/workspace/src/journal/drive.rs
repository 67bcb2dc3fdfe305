//! Drives paths of a workspace to wanted states, by descriptor; doing it twice changes nothing.
//!
//! Three passes: remove what is in the way (deepest first), make what is wanted (parents first),
//! then set the permissions and times of directories (deepest first, because making moves them).

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::state::{Owner, PathState, Row, Side, Time};
use super::store::content_path;
use super::{JournalError, drive_error};
use crate::blob::copy_data;
use crate::root::{Node, Root, node_at};
use crate::walk::{GitNames, child_of, walk};
use crate::{TreeLimits, TreePath, WalkError};

/// Drives every row to one of its states; `entry` has the contents.
///
/// A directory that should go but holds something nobody knew of stays.
pub(crate) fn drive(
    root: &Root,
    entry: &Path,
    rows: &[Row],
    side: Side,
) -> Result<(), JournalError> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by(|a, b| a.path.cmp(&b.path));
    for row in rows.iter().rev() {
        clear(root, &row.path, row.side(side)).map_err(drive_error(&row.path))?;
    }
    for (number, row) in rows.iter().enumerate() {
        make(root, entry, (&row.path, number), row.side(side)).map_err(drive_error(&row.path))?;
    }
    for row in rows.iter().rev() {
        finish(root, &row.path, row.side(side)).map_err(drive_error(&row.path))?;
    }
    rustix::fs::syncfs(root)
        .map_err(|error| JournalError::Io { path: entry.to_path_buf(), source: error.into() })
}

/// Finds a directory that must become a file but would not be empty by then.
///
/// Asked before the first path is touched, so that a change which cannot end never begins.
pub(crate) fn obstacle(
    root: &Root,
    rows: &[Row],
    side: Side,
) -> Result<Option<TreePath>, JournalError> {
    let leaving: HashSet<&TreePath> = rows
        .iter()
        .filter(|row| *row.side(side) == PathState::Absent)
        .map(|row| &row.path)
        .collect();
    for row in rows {
        let (PathState::File { .. } | PathState::Link { .. }) = row.side(side) else { continue };
        let node = root.node(&row.path).map_err(WalkError::at(Some(&row.path)))?;
        let Node::Directory(_) = node else { continue };
        let limits = TreeLimits { entries: u64::MAX, depth: 1024, ..TreeLimits::generous() };
        for folder in walk(root, Some(&row.path), &limits, GitNames::Enter)?.folders {
            let files = folder.files.iter().map(|file| child_of(folder.path.as_ref(), &file.name));
            let inner = folder.path.clone().filter(|path| *path != row.path);
            if let Some(path) = files.chain(inner).find(|path| !leaving.contains(path)) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

/// Removes what is at the path if it is in the way of what is wanted.
fn clear(root: &Root, path: &TreePath, wanted: &PathState) -> io::Result<()> {
    let Some(at) = parent(root, path)? else { return Ok(()) };
    let node = node_at(&at, path.name())?;
    let is_in_the_way = match (wanted, node) {
        (_, Node::Absent) | (PathState::Special, _) => false,
        (PathState::Absent, _) => true,
        (PathState::Directory { .. }, Node::Directory(_)) => false,
        (PathState::Directory { .. }, _) => true,
        (PathState::File { .. } | PathState::Link { .. }, Node::Directory(_)) => true,
        (PathState::File { .. } | PathState::Link { .. }, _) => false,
    };
    if !is_in_the_way {
        return Ok(());
    }
    let Node::Directory(_) = node else {
        return Ok(rustix::fs::unlinkat(&at, path.name(), AtFlags::empty())?);
    };
    match rustix::fs::unlinkat(&at, path.name(), AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if *wanted == PathState::Absent => Ok(()),
        result => Ok(result?),
    }
}

/// Makes what is wanted at the path.
fn make(
    root: &Root,
    entry: &Path,
    (path, number): (&TreePath, usize),
    wanted: &PathState,
) -> io::Result<()> {
    let (PathState::Directory { .. } | PathState::File { .. } | PathState::Link { .. }) = wanted
    else {
        return Ok(());
    };
    let at = root.directory(path.parent().as_ref())?;
    // The same name each time, so that what a crash left is found and replaced.
    let temporary = format!(".warrant-{number}.tmp");
    let temporary = temporary.as_bytes();
    let made = make_at(&at, entry, (path, temporary), wanted);
    if made.is_err() {
        // What is not made leaves nothing of itself.
        let _ = remove_if_there(&at, temporary);
    }
    made
}

fn make_at(
    at: &OwnedFd,
    entry: &Path,
    (path, temporary): (&TreePath, &[u8]),
    wanted: &PathState,
) -> io::Result<()> {
    match wanted {
        PathState::Directory { .. } => match rustix::fs::mkdirat(at, path.name(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        },
        PathState::File { mode, mtime, owner, content: Some(content), .. } => {
            remove_if_there(at, temporary)?;
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file =
                File::from(rustix::fs::openat(at, temporary, flags, Mode::RUSR | Mode::WUSR)?);
            copy_content(&content_path(entry, *content), &file)?;
            chown(&file, *owner);
            rustix::fs::fchmod(&file, Mode::from_raw_mode(*mode))?;
            rustix::fs::futimens(&file, &times(*mtime))?;
            Ok(rustix::fs::renameat(at, temporary, at, path.name())?)
        }
        PathState::Link { target, mtime, owner } => {
            remove_if_there(at, temporary)?;
            rustix::fs::symlinkat(target.0.as_slice(), at, temporary)?;
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            // Without the right to give files away the owner stays ours.
            let _ =
                rustix::fs::chownat(at, temporary, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            rustix::fs::utimensat(at, temporary, &times(*mtime), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(rustix::fs::renameat(at, temporary, at, path.name())?)
        }
        PathState::File { content: None, .. } | PathState::Absent | PathState::Special => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "its content was not kept"))
        }
    }
}

/// Gives a directory its permissions and time.
fn finish(root: &Root, path: &TreePath, wanted: &PathState) -> io::Result<()> {
    let PathState::Directory { mode, mtime, owner } = wanted else { return Ok(()) };
    let directory = root.directory(Some(path))?;
    chown(&directory, *owner);
    rustix::fs::fchmod(&directory, Mode::from_raw_mode(*mode))?;
    Ok(rustix::fs::futimens(&directory, &times(*mtime))?)
}

/// Opens the directory a path is in; `None` when there is none.
fn parent(root: &Root, path: &TreePath) -> io::Result<Option<OwnedFd>> {
    match root.directory(path.parent().as_ref()) {
        Ok(at) => Ok(Some(at)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(error),
        },
    }
}

fn remove_if_there(at: &OwnedFd, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn copy_content(from: &Path, to: &File) -> io::Result<()> {
    let mut from = File::open(from)?;
    if rustix::fs::ioctl_ficlone(to, &from).is_err() {
        copy_data(&mut from, to)?;
    }
    Ok(())
}

/// Without the right to give files away the owner stays ours.
fn chown(fd: impl AsFd, owner: Owner) {
    let _ = rustix::fs::fchown(fd, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)));
}

fn times(mtime: Time) -> Timestamps {
    let time = Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() };
    Timestamps { last_access: time, last_modification: time }
}
