//! Undoes the last kept change, unless somebody worked on its files since.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::state::Side;
use super::store::{content_path, look};
use super::{
    ChangeId, Journal, JournalError, PathState, Record, Row, Status, change_at, drive, io_at,
    is_git_index, obstacle, read_record, remove_durably, set_status, status_of,
};
use crate::gitstate::{GitLocks, LockError, names_same_bytes};
use crate::root::Root;
use crate::{TreePath, WalkError};

/// What to do with files that changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// Undo nothing and say which.
    Refuse,
    /// Put the old state back over them.
    Overwrite,
}

/// Why nothing was undone.
#[derive(Debug, Error)]
pub enum UndoError {
    /// There is no kept change.
    #[error("there is no kept change to undo")]
    Nothing,
    /// Files changed since.
    #[error("{} files changed since, the first is {first}; undo would lose that", paths.len())]
    Changed {
        /// The first of them.
        first: TreePath,
        /// All of them.
        paths: Vec<TreePath>,
    },
    /// Somebody else's change, kept since, has files of it; whoever made that takes it back first.
    #[error("{} files were changed since by others, the first is {first}", paths.len())]
    Theirs {
        /// The first of them.
        first: TreePath,
        /// All of them.
        paths: Vec<TreePath>,
    },
    /// Another git is at work in the repository.
    #[error("nothing was undone, because another git holds {0}")]
    Locked(TreePath),
    /// The journal or a file failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What was undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// What the change was called.
    pub label: String,
    /// The paths that were put back.
    pub paths: Vec<TreePath>,
    /// Directories that stay because something new is in them.
    pub left: Vec<TreePath>,
}

impl Journal {
    fn last_applied(&self) -> Result<Option<PathBuf>, JournalError> {
        for (_, path) in self.entries()?.into_iter().rev() {
            // A program that changed nothing left nothing to take back.
            if status_of(&path)? == Some(Status::Applied) && !read_record(&path)?.rows.is_empty() {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Puts back what the last of `ours` replaced, also where others kept changes of other files
    /// since, and returns which it was.
    ///
    /// # Errors
    /// [`UndoError`]; [`UndoError::Theirs`] whatever is to be overwritten.
    pub fn undo_of(
        &self,
        workspace: &Path,
        ours: &[ChangeId],
        changed: Changed,
    ) -> Result<(ChangeId, Undone), UndoError> {
        let mut theirs = HashSet::new();
        for (_, path) in self.entries()?.into_iter().rev() {
            if status_of(&path)? != Some(Status::Applied) {
                continue;
            }
            let (record, change) = (read_record(&path)?, change_at(&path)?);
            if !ours.contains(&change) {
                theirs.extend(record.rows.into_iter().map(|row| row.path));
                continue;
            }
            if record.rows.is_empty() {
                continue;
            }
            // SECURITY: what somebody else kept is not ours to take back, not even when it looks
            // like what we kept.
            let paths = record.rows.iter().map(|row| row.path.clone());
            let paths: Vec<TreePath> = paths.filter(|path| theirs.contains(path)).collect();
            if let Some(first) = paths.first() {
                return Err(UndoError::Theirs { first: first.clone(), paths });
            }
            return Ok((change, put_back(&path, record, (workspace, changed))?));
        }
        Err(UndoError::Nothing)
    }

    /// Puts back what the last kept change replaced.
    ///
    /// # Errors
    /// [`UndoError`]; when files changed since and were not to be overwritten, nothing happened.
    pub fn undo(&self, workspace: &Path, changed: Changed) -> Result<Undone, UndoError> {
        let entry = self.last_applied()?.ok_or(UndoError::Nothing)?;
        put_back(&entry, read_record(&entry)?, (workspace, changed))
    }
}

fn put_back(
    entry: &Path,
    record: Record,
    (workspace, changed): (&Path, Changed),
) -> Result<Undone, UndoError> {
    let root = Root::open(workspace).map_err(io_at(workspace))?;
    let mut touched = Vec::new();
    for row in &record.rows {
        let now = look(&root, &row.path).map_err(WalkError::at(Some(&row.path)));
        let now = now.map_err(JournalError::Walk)?;
        let is_left = now.is_like(&row.after)
            || now.is_like(&row.before)
            || is_refreshed_index(&root, entry, row);
        if !is_left {
            touched.push(row.path.clone());
        }
    }
    if changed == Changed::Refuse
        && let Some(first) = touched.first()
    {
        return Err(UndoError::Changed { first: first.clone(), paths: touched });
    }
    if let Some(path) = obstacle(&root, &record.rows, Side::Before)? {
        return Err(JournalError::InTheWay(path).into());
    }
    let locks = GitLocks::acquire(&root, entry, record.rows.iter().map(|row| &row.path))
        .map_err(|error| locked(entry, error))?;
    set_status(entry, Status::Undoing)?;
    drive(&root, entry, &record.rows, Side::Before)?;
    set_status(entry, Status::Undone)?;
    drop(locks);
    let mut left = Vec::new();
    for row in &record.rows {
        let now = look(&root, &row.path).map_err(WalkError::at(Some(&row.path)));
        if !now.map_err(JournalError::Walk)?.is_like(&row.before) {
            left.push(row.path.clone());
        }
    }
    let paths = record.rows.into_iter().map(|row| row.path).collect();
    Ok(Undone { label: record.label, paths, left })
}

/// Returns whether git only refreshed what it remembers since its index was written.
fn is_refreshed_index(root: &Root, entry: &Path, row: &Row) -> bool {
    let PathState::File { content: Some(content), .. } = row.after else { return false };
    if !is_git_index(&row.path) {
        return false;
    }
    let read = || -> std::io::Result<bool> {
        let mut now = Vec::new();
        std::io::Read::read_to_end(&mut root.file(&row.path)?.0, &mut now)?;
        Ok(names_same_bytes(&now, &fs::read(content_path(entry, content))?))
    };
    read().unwrap_or(false)
}

fn locked(entry: &Path, error: LockError) -> UndoError {
    match error {
        LockError::Held(path) => UndoError::Locked(path),
        LockError::Io(_, error) => UndoError::Journal(io_at(entry)(error)),
    }
}

/// Puts back what a change that was refused on its way had touched, and forgets it.
pub(super) fn take_back(root: &Root, entry: &Path, rows: &[Row]) -> Result<(), JournalError> {
    set_status(entry, Status::Undoing)?;
    let mut touched = Vec::new();
    for row in rows {
        let now = look(root, &row.path).map_err(WalkError::at(Some(&row.path)))?;
        let is_back = match (&now, &row.before) {
            (PathState::Directory { mode, .. }, PathState::Directory { mode: before, .. }) => {
                mode == before
            }
            (now, before) => now.is_like(before),
        };
        if !is_back {
            touched.push(row.clone());
        }
    }
    // Where nothing was touched perhaps nothing can be.
    if !touched.is_empty() {
        drive(root, entry, &touched, Side::Before)?;
    }
    // Without a status the rest is dropped by the next call.
    remove_durably(&entry.join("status"))?;
    fs::remove_dir_all(entry).map_err(io_at(entry))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeMap;

    use warrant_protocol::Digest;

    use super::super::{Prepared, Recovered};
    use super::*;

    fn files(directory: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
        let named = |entry: fs::DirEntry| {
            let content = fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), content)
        };
        entries.map(named).collect()
    }

    #[test]
    fn a_change_that_is_refused_on_its_way_is_taken_back_and_not_made_later() {
        let top = tempfile::tempdir().unwrap();
        let (work, state) = (top.path().join("work"), top.path().join("state"));
        fs::create_dir(&work).unwrap();
        for name in ["changed", "gone", "left"] {
            fs::write(work.join(name), name).unwrap();
        }
        let before = files(&work);
        let (journal, _) = Journal::open(&state, &work).unwrap();
        let root = Root::open(&work).unwrap();
        let mut store = journal.prepare().unwrap();
        let mut kept = |name: &str| {
            let path = TreePath::new(name.as_bytes()).unwrap();
            (path.clone(), store.keep(&root, &path).unwrap())
        };
        let (left, new) = kept("left");
        let (changed, old) = kept("changed");
        let (gone, removed) = kept("gone");
        // Nothing has this content, so it cannot be made.
        let (digest, content) = (Digest::of(b"never"), None);
        let broken = PathState::File { mode: 0o600, mtime: (0, 0), owner: (0, 0), digest, content };
        let last = TreePath::new(b"last").unwrap();
        let rows = vec![
            Row { path: changed, before: old, after: new.clone() },
            Row { path: gone, before: removed, after: PathState::Absent },
            Row { path: last, before: PathState::Absent, after: broken },
            Row { path: left, before: new, after: PathState::Absent },
        ];
        let refused = journal.apply(&root, "test", Prepared { store, rows, objects: Vec::new() });
        assert!(matches!(refused, Err(JournalError::Refused { .. })), "{refused:?}");
        assert_eq!(files(&work), before);
        drop(journal);
        let (journal, recovered) = Journal::open(&state, &work).unwrap();
        assert_eq!(recovered, Recovered::default());
        assert_eq!(files(&work), before);
        assert!(matches!(journal.undo(&work, Changed::Refuse), Err(UndoError::Nothing)));
    }
}
