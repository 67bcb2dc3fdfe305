//! The lock files that git itself uses, held while references, HEAD and the index change.
//!
//! Their names are on the disk before the first is made, so that the next opening of the journal
//! finds and removes what a crash left.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::TreePath;
use crate::root::{Node, Root};

/// The file of a journal entry that names the locks it holds.
pub(crate) const LOCKS: &str = "locks.json";
/// How long another git is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Serialize, Deserialize)]
struct LockRecord {
    /// What stands in each lock file of ours.
    token: String,
    paths: Vec<TreePath>,
}

/// Lock files that are ours until this is dropped.
#[derive(Debug)]
pub(crate) struct GitLocks<'a> {
    root: &'a Root,
    record: LockRecord,
    file: PathBuf,
}

/// Why the locks could not be had.
#[derive(Debug, Error)]
pub(crate) enum LockError {
    #[error("another git holds {0}")]
    Held(TreePath),
    #[error("{0} could not be locked")]
    Io(TreePath, #[source] io::Error),
}

impl<'a> GitLocks<'a> {
    /// Takes the locks of every path that changes; `entry` is where a crash is recorded.
    pub(crate) fn acquire<'p>(
        root: &'a Root,
        entry: &Path,
        changing: impl Iterator<Item = &'p TreePath>,
    ) -> Result<Self, LockError> {
        let token = format!("warrant {} {}", std::process::id(), entry.display());
        let mut locks =
            Self { root, record: LockRecord { token, paths: Vec::new() }, file: entry.join(LOCKS) };
        let paths: Vec<TreePath> = changing.filter(|path| is_locked(path)).map(lock_of).collect();
        if paths.is_empty() {
            return Ok(locks);
        }
        locks.record.paths.clone_from(&paths);
        locks.write_record().map_err(|error| LockError::Io(TreePath::segment(b"locks"), error))?;
        let until = Instant::now() + PATIENCE;
        for (number, path) in paths.iter().enumerate() {
            if let Err(error) = locks.take(path, until) {
                // Only those that were taken are given back.
                locks.record.paths.truncate(number);
                return Err(error);
            }
        }
        Ok(locks)
    }

    fn take(&self, path: &TreePath, until: Instant) -> Result<(), LockError> {
        let failed = |error: io::Error| LockError::Io(path.clone(), error);
        let directory = match self.root.directory(path.parent().as_ref()) {
            Ok(directory) => directory,
            // Where there is no directory yet, there is nothing to change under us.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            match rustix::fs::openat(&directory, path.name(), flags, Mode::from_raw_mode(0o644)) {
                Ok(file) => {
                    let written = fs::File::from(file).write_all(self.record.token.as_bytes());
                    return written.map_err(failed);
                }
                Err(Errno::EXIST) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(Errno::EXIST) => return Err(LockError::Held(path.clone())),
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    fn write_record(&self) -> io::Result<()> {
        let bytes = serde_json::to_vec(&self.record).map_err(io::Error::other)?;
        let mut file = fs::File::create(&self.file)?;
        file.write_all(&bytes)?;
        file.sync_all()
    }
}

impl Drop for GitLocks<'_> {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the journal is opened again.
        if release(self.root, &self.record).is_ok() {
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// Removes the locks that a crash left behind.
pub(crate) fn release_stale(root: &Root, entry: &Path) -> io::Result<()> {
    let file = entry.join(LOCKS);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // One that was cut was written before the first lock was made.
    if let Ok(record) = serde_json::from_slice::<LockRecord>(&bytes) {
        release(root, &record)?;
    }
    fs::remove_file(&file)
}

fn release(root: &Root, record: &LockRecord) -> io::Result<()> {
    for path in &record.paths {
        let Node::File(_) = root.node(path)? else { continue };
        let (file, _) = root.file(path)?;
        let mut text = String::new();
        file.take(4096).read_to_string(&mut text)?;
        // SECURITY: a lock of the person's own git is left alone.
        if text == record.token {
            let directory = root.directory(path.parent().as_ref())?;
            rustix::fs::unlinkat(&directory, path.name(), AtFlags::empty())?;
        }
    }
    Ok(())
}

fn lock_of(path: &TreePath) -> TreePath {
    let name = [path.name(), b".lock"].concat();
    path.parent().map_or_else(|| TreePath::segment(&name), |parent| parent.join(&name))
}

/// Returns whether git locks a path before it changes it.
fn is_locked(path: &TreePath) -> bool {
    if path.git_part().is_none() {
        return false;
    }
    let is_log = path.segments().any(|segment| segment == b"logs");
    let is_ref = path.segments().any(|segment| segment == b"refs");
    let is_single = matches!(path.name(), b"HEAD" | b"index" | b"packed-refs");
    (is_ref || is_single) && !is_log
}
