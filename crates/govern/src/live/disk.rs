//! The files of a sandbox as the host sees them: counted and removed, never followed.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use warrant_protocol::LimitKind;

/// What the files of a sandbox come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) bytes: u64,
    pub(super) files: u64,
}

/// What they may come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) bytes: Option<u64>,
    pub(super) files: Option<u64>,
}

impl Usage {
    pub(super) fn exceeds(self, bounds: &Bounds) -> bool {
        self.exceeded(bounds).is_some()
    }

    /// Returns which bound they are beyond.
    pub(super) fn exceeded(self, bounds: &Bounds) -> Option<LimitKind> {
        if bounds.bytes.is_some_and(|most| self.bytes > most) {
            return Some(LimitKind::Disk);
        }
        bounds.files.is_some_and(|most| self.files > most).then_some(LimitKind::Inodes)
    }
}

/// Counts what lies below a directory. What cannot be looked at counts as one file.
pub(super) fn usage(directory: &Path) -> Usage {
    let mut usage = Usage::default();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            usage.files += 1;
            let Ok(metadata) = entry.metadata() else { continue };
            usage.bytes = usage.bytes.saturating_add(metadata.blocks().saturating_mul(512));
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    usage
}

/// Removes a directory with everything in it, also what its owner may not look into.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => {}
    }
    open_up(directory);
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Gives every directory back to its owner; links are not followed.
fn open_up(directory: &Path) {
    let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_directory_that_hides_its_files_is_removed_all_the_same() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(root.path(), top.join("a/link")).unwrap();
        assert_eq!(usage(&top).files, 4);
        fs::set_permissions(top.join("a/b"), fs::Permissions::from_mode(0o0)).unwrap();
        remove(&top).unwrap();
        assert!(!top.exists() && root.path().exists());
        remove(&top).unwrap();
    }
}
