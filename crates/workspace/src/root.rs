//! A directory that is only ever used by descriptor: nothing below it is reached through a link.
//!
//! SECURITY: every open goes through `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, so a
//! directory swapped for a link between look and use ends in an error, never outside.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::TreePath;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
}

/// What kind of special file was found; such files are never opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialKind {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Something this system has and we do not know.
    Unknown,
}

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Absent,
    Directory(Facts),
    File(Facts),
    Link(Facts),
    Special(SpecialKind),
}

/// What `stat` says of a path and we keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) permissions: u32,
    pub(crate) bytes: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The device number, of a device.
    pub(crate) special_device: u64,
}

impl Facts {
    #[expect(
        clippy::unnecessary_cast,
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "the fields' types differ between architectures; all values fit"
    )]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            permissions: stat.st_mode & 0o7777,
            bytes: stat.st_size as u64,
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            special_device: stat.st_rdev as u64,
        }
    }
}

impl Node {
    pub(crate) fn of(stat: &Stat) -> Self {
        let facts = Facts::of(stat);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Self::Directory(facts),
            FileType::RegularFile => Self::File(facts),
            FileType::Symlink => Self::Link(facts),
            FileType::Fifo => Self::Special(SpecialKind::Fifo),
            FileType::Socket => Self::Special(SpecialKind::Socket),
            FileType::CharacterDevice | FileType::BlockDevice => Self::Special(SpecialKind::Device),
            FileType::Unknown => Self::Special(SpecialKind::Unknown),
        }
    }
}

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Root {
    /// Opens a directory; the path itself may go through links, what is below may not.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Takes a directory somebody opened.
    pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::openat(fd, c".", flags, Mode::empty())? })
    }

    /// Opens the directory at `path`, or this one again.
    pub(crate) fn directory(&self, path: Option<&TreePath>) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = path.map_or_else(|| Path::new("."), TreePath::as_path);
        Ok(rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), BENEATH)?)
    }

    /// As [`Root::directory`], of a tree that is ours alone: a directory that its maker closed to
    /// everyone is opened to its owner first.
    pub(crate) fn directory_of_ours(&self, path: Option<&TreePath>) -> io::Result<OwnedFd> {
        match (self.directory(path), path) {
            (Err(error), Some(path)) if error.kind() == io::ErrorKind::PermissionDenied => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let closed =
                    rustix::fs::openat2(&self.fd, path.as_path(), flags, Mode::empty(), BENEATH)?;
                // SECURITY: the descriptor is of a directory below, so no link is followed.
                let itself = format!("/proc/self/fd/{}", closed.as_raw_fd());
                rustix::fs::chmod(itself, Mode::RWXU)?;
                self.directory(Some(path))
            }
            (opened, _) => opened,
        }
    }

    /// Returns what lies at `path`; a link or file in the middle of the path means nothing does.
    pub(crate) fn node(&self, path: &TreePath) -> io::Result<Node> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.fd, path.as_path(), flags, Mode::empty(), BENEATH) {
            Ok(fd) => Ok(Node::of(&rustix::fs::fstat(fd)?)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Node::Absent),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a regular file for reading.
    pub(crate) fn file(&self, path: &TreePath) -> io::Result<(File, Facts)> {
        let fd = rustix::fs::openat2(&self.fd, path.as_path(), READ, Mode::empty(), BENEATH)?;
        regular(fd)
    }

    /// Returns where this directory is, as the system knows it.
    pub(crate) fn path(&self) -> io::Result<std::path::PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Returns the target of the link at `path`.
    pub(crate) fn link(&self, path: &TreePath) -> io::Result<Vec<u8>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(&self.fd, path.as_path(), flags, Mode::empty(), BENEATH)?;
        Ok(rustix::fs::readlinkat(fd, c"", Vec::new())?.into_bytes())
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Without blocking, so that a pipe swapped in is not waited for.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a regular file in a directory for reading.
pub(crate) fn open_regular(directory: impl AsFd, name: &[u8]) -> io::Result<(File, Facts)> {
    regular(rustix::fs::openat(directory, name, READ | OFlags::NOCTTY, Mode::empty())?)
}

fn regular(fd: OwnedFd) -> io::Result<(File, Facts)> {
    match Node::of(&rustix::fs::fstat(&fd)?) {
        Node::File(facts) => Ok((File::from(fd), facts)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Returns what lies in a directory under `name`, without following it.
pub(crate) fn node_at(directory: impl AsFd, name: &[u8]) -> io::Result<Node> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Node::of(&stat)),
        Err(Errno::NOENT) => Ok(Node::Absent),
        Err(error) => Err(error.into()),
    }
}

/// One name of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: FileType,
}

/// Returns the names of a directory in byte order, at most `limit` of them.
///
/// Returns `None` when there are more.
pub(crate) fn list(directory: OwnedFd, limit: u64) -> io::Result<Option<Vec<Listed>>> {
    let mut names = Vec::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if names.len() as u64 >= limit {
            return Ok(None);
        }
        names.push(Listed { name: name.to_vec(), kind: entry.file_type() });
    }
    names.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Some(names))
}
