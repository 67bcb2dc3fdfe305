//! Paths of the host, resolved once to a file and remembered by device and inode.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

/// A file or directory of the host as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Its path without links.
    pub(crate) path: PathBuf,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    /// Whether it is a directory.
    pub(crate) is_directory: bool,
    /// Whether it is a socket, a named pipe or a device.
    pub(crate) is_special: bool,
    /// Its owner and group on disk.
    pub(crate) owner: (u32, u32),
    /// Its permissions.
    pub(crate) mode: u32,
}

impl Resolved {
    /// Looks at `path`, following ordinary links but none of the kernel's magic ones.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
        let stat = fstat(&fd)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if !path.is_absolute() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(Self {
            path,
            identity: (stat.st_dev, stat.st_ino),
            is_directory: kind == FileType::Directory,
            is_special: !matches!(kind, FileType::Directory | FileType::RegularFile),
            owner: (stat.st_uid, stat.st_gid),
            mode: stat.st_mode & 0o1777,
        })
    }
}
