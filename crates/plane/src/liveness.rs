//! Whether a process that runs something is still there: it holds the lock of a file until it
//! ends, however it ends.
//!
//! The name of the file is written into the lease, after the lock was taken; so a lease whose
//! file can be locked by somebody else belongs to nobody any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::FileLock;
use crate::random;

/// This process's sign of life; gone when dropped.
#[derive(Debug)]
pub struct SignOfLife {
    path: PathBuf,
    name: String,
    _lock: FileLock,
}

impl SignOfLife {
    /// Gives a sign of life in `dir`.
    pub(crate) fn give(dir: &Path) -> io::Result<Self> {
        loop {
            let name = random::hex()?;
            let path = dir.join(&name);
            // Whoever sweeps may hold or remove the file before we have its lock; then take another.
            match FileLock::try_take(&path)? {
                Some(lock) if lock.is_of(&path) => return Ok(Self { path, name, _lock: lock }),
                Some(_) | None => {}
            }
        }
    }

    /// Returns the name that leases carry.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for SignOfLife {
    fn drop(&mut self) {
        // A file that stays is removed by whoever finds it without a holder.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the signs of processes that are gone.
pub(crate) fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        if let Some(name) = entry?.file_name().to_str() {
            is_gone(dir, name);
        }
    }
    Ok(())
}

/// Returns whether the process of this name is gone. When in doubt it is there.
pub(crate) fn is_gone(dir: &Path, name: &str) -> bool {
    // SECURITY: the name comes from the store; it must not lead out of the directory.
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return true;
    }
    let path = dir.join(name);
    if !path.exists() {
        return true;
    }
    match FileLock::try_take(&path) {
        Ok(Some(_lock)) => {
            let _ = fs::remove_file(&path);
            true
        }
        Ok(None) | Err(_) => false,
    }
}
