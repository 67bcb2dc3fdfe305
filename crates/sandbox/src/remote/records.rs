//! Records of live sessions: one locked file each, so that another process can tell an orphan
//! from a sandbox that is in use.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The record of a session; its file is gone when the sandbox is.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    _lock: File,
    is_settled: bool,
}

impl Record {
    /// Opens the record of a session, before its sandbox is asked for.
    pub(crate) fn open(folder: &Path, session: &str) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(session);
        let lock = File::options().create_new(true).write(true).open(&path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _lock: lock, is_settled: false })
    }

    /// Nothing is left at the provider; the record may go.
    pub(crate) fn settle(&mut self) {
        self.is_settled = true;
        // A record that stays is looked at by the next reaper, which finds nothing.
        let _ = fs::remove_file(&self.path);
    }

    /// Whether nothing is left at the provider.
    pub(crate) const fn is_settled(&self) -> bool {
        self.is_settled
    }
}

/// Returns the sessions of which a record stayed behind and nobody lives any more.
pub(crate) fn abandoned(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut sessions = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !is_live(folder, &name) {
            sessions.push(name);
        }
    }
    Ok(sessions)
}

/// Whether some process still holds the record of a session.
pub(crate) fn is_live(folder: &Path, session: &str) -> bool {
    let Ok(file) = File::open(folder.join(session)) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// Forgets a session whose sandbox is gone.
pub(crate) fn forget(folder: &Path, session: &str) {
    let _ = fs::remove_file(folder.join(session));
}
