//! Undoes the last kept change, unless somebody worked on its files since.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::state::Side;
use super::store::look;
use super::{
    ChangeId, Journal, JournalError, Status, change_at, drive, io_at, obstacle, read_record,
    set_status, status_of,
};
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
    /// Returns the last kept change, which is the one that [`Journal::undo`] takes back.
    ///
    /// # Errors
    /// [`JournalError`] when the journal cannot be read.
    pub fn last_kept(&self) -> Result<Option<ChangeId>, JournalError> {
        self.last_applied()?.map(|entry| change_at(&entry)).transpose()
    }

    fn last_applied(&self) -> Result<Option<PathBuf>, JournalError> {
        for (_, path) in self.entries()?.into_iter().rev() {
            // A program that changed nothing left nothing to take back.
            if status_of(&path)? == Some(Status::Applied) && !read_record(&path)?.rows.is_empty() {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Puts back what the last kept change replaced.
    ///
    /// # Errors
    /// [`UndoError`]; when files changed since and were not to be overwritten, nothing happened.
    pub fn undo(&self, workspace: &Path, changed: Changed) -> Result<Undone, UndoError> {
        let entry = self.last_applied()?.ok_or(UndoError::Nothing)?;
        let record = read_record(&entry)?;
        let root = Root::open(workspace).map_err(io_at(workspace))?;
        let mut touched = Vec::new();
        for row in &record.rows {
            let now = look(&root, &row.path).map_err(WalkError::at(Some(&row.path)));
            let now = now.map_err(JournalError::Walk)?;
            if !now.is_like(&row.after) && !now.is_like(&row.before) {
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
        set_status(&entry, Status::Undoing)?;
        drive(&root, &entry, &record.rows, Side::Before)?;
        set_status(&entry, Status::Undone)?;
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
}
