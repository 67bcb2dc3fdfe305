//! Snapshots where no overlay is possible: everything copied out (blocks shared where the file
//! system can), and put back byte for byte.
//!
//! With an overlay a snapshot costs nothing: the upper directory is dropped, and nothing here is
//! used. Files come back with content, permissions, owner and modification time, links as links,
//! empty directories and deletions included. Extended attributes and hard links to files that
//! changed do not.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::state::{PathState, Row, Side};
use super::store::{content_path, look};
use super::{
    Journal, JournalError, Record, Status, drive, io_at, read_named, set_status, status_of,
    write_named, write_record,
};
use crate::progress::{Phase, Progress, Step};
use crate::root::Root;
use crate::walk::{GitNames, child_of, walk};
use crate::{TreeLimits, TreePath, WalkError};

const SNAPSHOT: &str = "snapshot.json";

/// Everything of a workspace as it was, until it is restored or kept.
///
/// Dropping it changes nothing: [`Journal::pending`] finds it again.
#[derive(Debug)]
pub struct Snapshot {
    entry: PathBuf,
}

/// What a restoration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The paths that were put back or removed.
    pub paths: Vec<TreePath>,
}

impl Journal {
    /// Takes a snapshot of the whole workspace, its `.git` included.
    ///
    /// # Errors
    /// [`JournalError`] when a bound is passed or something cannot be read or stored.
    pub fn snapshot(
        &self,
        workspace: &Path,
        limits: &TreeLimits,
        progress: Progress<'_>,
    ) -> Result<Snapshot, JournalError> {
        let root = Root::open(workspace).map_err(io_at(workspace))?;
        let mut store = self.prepare()?;
        let entry = store.path().to_path_buf();
        let paths = all_paths(&root, limits)?;
        let total = Some(paths.len() as u64);
        let mut rows = Vec::with_capacity(paths.len());
        for (done, path) in paths.into_iter().enumerate() {
            let before = store.keep(&root, &path).map_err(WalkError::at(Some(&path)))?;
            rows.push(Row { path, before, after: PathState::Absent });
            progress(Step { phase: Phase::Reading, done: done as u64, total });
        }
        store.seal().map_err(io_at(&entry))?;
        let record = Record::new("snapshot", rows);
        write_named(&entry.join(SNAPSHOT), &record)?;
        set_status(&entry, Status::Taken)?;
        Ok(Snapshot { entry })
    }

    /// Returns a snapshot that was neither restored nor kept, as after a crash; the oldest first.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn pending(&self) -> Result<Option<Snapshot>, JournalError> {
        for (_, entry) in self.entries()? {
            if status_of(&entry)? == Some(Status::Taken) {
                return Ok(Some(Snapshot { entry }));
            }
        }
        Ok(None)
    }
}

impl Snapshot {
    /// Puts everything back as it was and forgets the snapshot.
    ///
    /// # Errors
    /// [`JournalError`]; the next [`Journal::open`] then finishes it.
    pub fn restore(self, workspace: &Path) -> Result<Restored, JournalError> {
        let root = Root::open(workspace).map_err(io_at(workspace))?;
        set_status(&self.entry, Status::Restoring)?;
        restore(&root, &self.entry)
    }

    /// Keeps what happened since, so that [`Journal::undo`] can take it back.
    ///
    /// # Errors
    /// [`JournalError`] when the workspace cannot be read or the record not be written.
    pub fn keep(self, workspace: &Path, label: &str) -> Result<Vec<TreePath>, JournalError> {
        let root = Root::open(workspace).map_err(io_at(workspace))?;
        let record = read_named(&self.entry.join(SNAPSHOT))?;
        let mut rows = Vec::new();
        let mut unneeded = Vec::new();
        let mut now = now(&root)?;
        for row in record.rows {
            let after = now.remove(&row.path).unwrap_or(PathState::Absent);
            if is_exactly(&row.before, &after) {
                if let PathState::File { content: Some(number), .. } = row.before {
                    unneeded.push(number);
                }
            } else {
                rows.push(Row { after, ..row });
            }
        }
        let added = now.into_iter().map(|(path, after)| {
            let before = PathState::Absent;
            Row { path, before, after }
        });
        rows.extend(added);
        rows.sort_by(|a, b| a.path.cmp(&b.path));
        let paths = rows.iter().map(|row| row.path.clone()).collect();
        write_record(&self.entry, &Record::new(label, rows))?;
        set_status(&self.entry, Status::Applied)?;
        for number in unneeded {
            let path = content_path(&self.entry, number);
            fs::remove_file(&path).map_err(io_at(&path))?;
        }
        Ok(paths)
    }
}

/// Puts everything back that a snapshot has, and removes what it has not; may be done again.
pub(super) fn restore(root: &Root, entry: &Path) -> Result<Restored, JournalError> {
    let record = read_named(&entry.join(SNAPSHOT))?;
    let mut now = now(root)?;
    let mut rows = Vec::new();
    let mut paths = Vec::new();
    for row in record.rows {
        let current = now.remove(&row.path).unwrap_or(PathState::Absent);
        if !is_exactly(&row.before, &current) {
            paths.push(row.path.clone());
            rows.push(row);
        } else if let PathState::Directory { .. } = row.before {
            // Its time moves when something in it is put back.
            rows.push(row);
        }
    }
    for path in now.into_keys() {
        paths.push(path.clone());
        rows.push(Row { path, before: PathState::Absent, after: PathState::Absent });
    }
    drive(root, entry, &rows, Side::Before)?;
    paths.sort();
    // Without a status the rest is dropped by the next call, should this one not get there.
    let status = entry.join("status");
    fs::remove_file(&status).map_err(io_at(&status))?;
    fs::remove_dir_all(entry).map_err(io_at(entry))?;
    Ok(Restored { paths })
}

/// Returns what every path of the workspace is now.
fn now(root: &Root) -> Result<HashMap<TreePath, PathState>, JournalError> {
    let limits = TreeLimits { entries: u64::MAX, depth: 1024, ..TreeLimits::generous() };
    let mut states = HashMap::new();
    for path in all_paths(root, &limits)? {
        let state = look(root, &path).map_err(WalkError::at(Some(&path)))?;
        states.insert(path, state);
    }
    Ok(states)
}

fn all_paths(root: &Root, limits: &TreeLimits) -> Result<Vec<TreePath>, JournalError> {
    let walked = walk(root, None, limits, GitNames::Enter)?;
    let mut paths = Vec::new();
    for folder in walked.folders {
        let files = folder.files.iter().map(|file| child_of(folder.path.as_ref(), &file.name));
        paths.extend(files);
        paths.extend(folder.path);
    }
    paths.sort();
    Ok(paths)
}

/// Returns whether nothing at all differs but where the content is kept.
fn is_exactly(before: &PathState, now: &PathState) -> bool {
    let without_content = |state: &PathState| match state.clone() {
        PathState::File { mode, mtime, owner, digest, .. } => {
            PathState::File { mode, mtime, owner, digest, content: None }
        }
        state => state,
    };
    without_content(before) == without_content(now)
}
