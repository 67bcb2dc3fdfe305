//! Id-mapped mounts, for a privileged supervisor: files keep their owner on disk while the
//! program, whose kernel id owns nothing on this machine, uses them as its own.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process;

use libc::{c_int, c_void};

use crate::launch::SignalGuard;
use crate::spec::HostPath;
use crate::sys::{self, Errno, MountAttr};

const STACK_BYTES: usize = 16 * 1024;

/// A user namespace that says how ids on disk look through a mount.
#[derive(Debug)]
pub struct IdMap {
    namespace: OwnedFd,
}

/// Ids on disk and the kernel ids they appear as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Owner on disk.
    pub disk_uid: u32,
    /// Group on disk.
    pub disk_gid: u32,
    /// The kernel id the owner appears as.
    pub kernel_uid: u32,
    /// The kernel id the group appears as.
    pub kernel_gid: u32,
}

impl IdMap {
    /// Makes the namespace with a short-lived child process.
    ///
    /// # Errors
    /// The system's error; an unprivileged caller may not do this.
    pub fn new(mapping: Mapping) -> io::Result<Self> {
        let stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
        let top = stack.as_ptr_range().end.cast_mut().cast();
        // Memory and descriptors are shared: a copy of either would be thrown away at once.
        let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
        let parent = process::id() as usize as *mut c_void;
        let everything = SignalGuard::block_all();
        // SAFETY: the stack is unused, aligned and outlives the child, which is waited for below;
        // the child makes raw calls only and touches no memory but its stack.
        let pid = unsafe { libc::clone(stay, top, flags, parent) };
        let refused = io::Error::last_os_error();
        drop(everything);
        if pid == -1 {
            return Err(refused);
        }
        let result = Self::map(pid, mapping);
        let _ = sys::number_call(libc::SYS_kill, [pid as usize, libc::SIGKILL as usize, 0, 0, 0]);
        let mut status = 0;
        // SAFETY: the status is valid for writing, the pid is our own child's.
        unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        drop(stack);
        result
    }

    fn map(pid: c_int, mapping: Mapping) -> io::Result<Self> {
        let uid_map = format!("{} {} 1", mapping.disk_uid, mapping.kernel_uid);
        let gid_map = format!("{} {} 1", mapping.disk_gid, mapping.kernel_gid);
        fs::write(format!("/proc/{pid}/uid_map"), uid_map)?;
        fs::write(format!("/proc/{pid}/gid_map"), gid_map)?;
        Ok(Self { namespace: fs::File::open(format!("/proc/{pid}/ns/user"))?.into() })
    }

    /// Returns a detached, id-mapped copy of the mount at `host`.
    ///
    /// What is mounted below it comes along if its filesystem can be mapped too.
    ///
    /// # Errors
    /// The system's error: not privileged, a filesystem that cannot be mapped, or a path that is
    /// no longer the file it was.
    pub fn mount(&self, host: &HostPath) -> io::Result<OwnedFd> {
        let first = self.mount_with(host, sys::AT_RECURSIVE);
        first.or_else(|_| self.mount_with(host, 0))
    }

    fn mount_with(&self, host: &HostPath, recursive: usize) -> io::Result<OwnedFd> {
        let flags =
            sys::OPEN_TREE_CLONE | sys::OPEN_TREE_CLOEXEC | sys::AT_SYMLINK_NOFOLLOW | recursive;
        let tree = sys::open_tree(libc::AT_FDCWD, &host.path, flags)?;
        // SAFETY: the kernel just returned it and nobody else has it.
        let tree = unsafe { OwnedFd::from_raw_fd(tree) };
        if let Some(expected) = host.identity
            && sys::identity(tree.as_raw_fd())? != expected
        {
            return Err(Errno(libc::ESTALE).into());
        }
        let attr = MountAttr {
            set: sys::MOUNT_ATTR_IDMAP,
            clear: 0,
            propagation: libc::MS_PRIVATE,
            userns_fd: self.namespace.as_raw_fd() as u64,
        };
        sys::mount_setattr(tree.as_raw_fd(), recursive, &attr)?;
        Ok(tree)
    }
}

/// Locks one byte of a file for this open file alone, until it is closed; returns whether it could.
///
/// # Errors
/// The system's error, other than that somebody else has it.
pub fn lock_byte(file: &fs::File, at: u32) -> io::Result<bool> {
    // SAFETY: an all-zero lock is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = at.into();
    lock.l_len = 1;
    // SAFETY: the structure has the layout of the C library and outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Stays until it is killed, by its parent or with it.
extern "C" fn stay(parent: *mut c_void) -> c_int {
    let tied = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize, 0);
    let is_orphan = sys::number_call(libc::SYS_getppid, [0; 5]) != Ok(parent as usize);
    while tied.is_ok() && !is_orphan {
        // Every signal but the one that ends it is blocked.
        // SAFETY: it waits and does nothing else.
        unsafe { libc::pause() };
    }
    sys::exit(0)
}

/// Returns `text` as a C string.
///
/// # Errors
/// `EINVAL` when it contains a NUL byte.
pub fn c_string(text: &[u8]) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_threads_make_maps_at_once_and_none_waits_for_another() {
        let mapping = Mapping { disk_uid: 0, disk_gid: 0, kernel_uid: 70_001, kernel_gid: 70_001 };
        if IdMap::new(mapping).is_err() {
            // Only the privileged may.
            return;
        }
        let (done, all) = mpsc::channel();
        for _ in 0..8 {
            let done = done.clone();
            thread::spawn(move || {
                for _ in 0..100 {
                    IdMap::new(mapping).unwrap();
                }
                done.send(()).unwrap();
            });
        }
        for _ in 0..8 {
            all.recv_timeout(Duration::from_secs(120)).expect("a thread waits for ever");
        }
    }
}
