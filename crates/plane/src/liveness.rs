//! Whether a process that runs something is still there: it holds the lock of a file until it
//! ends, however it ends.
//!
//! The name of the file is written into the lease, after the lock was taken; so a lease whose
//! file can be locked by somebody else belongs to nobody any more.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use thiserror::Error;

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

/// The signal that asks a process to look whether one of its runs is to be stopped.
const WAKE: Signal = Signal::USR1;

/// A living process of this user that gave a sign of life and hears when it is woken.
#[derive(Debug)]
pub(crate) struct Neighbor {
    process: OwnedFd,
}

/// Why a process of this machine cannot be asked to stop its run.
#[derive(Debug, Error)]
pub enum UnreachableError {
    /// Nobody holds the sign of life, or nobody who can be seen from here.
    #[error("the process that performs it cannot be seen from here; stop it where it runs")]
    Unseen,
    /// It belongs to somebody else.
    #[error("process {pid}, which performs it, belongs to another user; they can stop it")]
    OtherUser {
        /// Which process.
        pid: i32,
    },
    /// It does not listen.
    #[error("process {pid}, which performs it, takes no word from outside; stop it there")]
    Deaf {
        /// Which process.
        pid: i32,
    },
    /// The system refused.
    #[error("the process that performs it cannot be reached")]
    System(#[from] io::Error),
}

impl Neighbor {
    /// Finds the process that holds the sign of life called `name`.
    // SECURITY: a number alone may mean another process by now. The descriptor is taken first;
    // then whoever has that number must be the one who took the lock and has the file open, which
    // nothing inside a sandbox has. If it changed in between, the descriptor is of a process that
    // is gone, and nobody is woken.
    pub(crate) fn find(dir: &Path, name: &str) -> Result<Self, UnreachableError> {
        if is_gone(dir, name) {
            return Err(UnreachableError::Unseen);
        }
        let file = fs::metadata(dir.join(name))?;
        let locks = fs::read_to_string("/proc/locks")?;
        for number in locks.lines().filter_map(|line| locker(line, file.ino())) {
            let Some(pid) = Pid::from_raw(number) else { continue };
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if !has_open(number, &file) {
                continue;
            }
            let folder = PathBuf::from(format!("/proc/{number}"));
            if fs::metadata(&folder)?.uid() != geteuid().as_raw() {
                return Err(UnreachableError::OtherUser { pid: number });
            }
            if !hears(&fs::read_to_string(folder.join("status"))?) {
                return Err(UnreachableError::Deaf { pid: number });
            }
            return Ok(Self { process });
        }
        Err(UnreachableError::Unseen)
    }

    /// Has it look at its runs. One that is gone by now has nothing to look at.
    pub(crate) fn wake(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.process, WAKE) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Returns who took the lock of a line of `/proc/locks`, when it is on the file `inode`.
fn locker(line: &str, inode: u64) -> Option<i32> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["FLOCK", _, "WRITE", pid, place, ..] = words.get(1..)? else { return None };
    let (_, ino) = place.rsplit_once(':')?;
    (ino.parse() == Ok(inode)).then(|| pid.parse().ok()).flatten()
}

fn has_open(pid: i32, file: &fs::Metadata) -> bool {
    let Ok(mut descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.any(|entry| {
        let open = entry.and_then(|entry| fs::metadata(entry.path()));
        open.is_ok_and(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
    })
}

/// Whether a process, by its `status`, has a handler for the waking signal, which would otherwise
/// kill it.
fn hears(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (WAKE.as_raw() - 1)) != 0)
}

/// Returns how many processes give a sign of life.
pub(crate) fn count_living(dir: &Path) -> io::Result<usize> {
    let mut living = 0;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        living += usize::from(name.to_str().is_some_and(|name| !is_gone(dir, name)));
    }
    Ok(living)
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
