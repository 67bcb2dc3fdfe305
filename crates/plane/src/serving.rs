//! Which process serves a home, and how programs of the same user reach it.
//!
//! ```text
//! serving.lock   locked by the one process that serves; names its process id
//! plane.sock     the Unix socket of that process, mode 0600; gone when it drains
//! plane.live     the address that was served last
//! ```
//!
//! The kernel releases the lock when the process ends, however it ends. A local client that means
//! this home's plane uses the socket, because a TCP port belongs to whoever binds it first.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use thiserror::Error;

use crate::files::{self, FileLock};
use crate::random;

const LOCK_FILE: &str = "serving.lock";
const ADDRESS_FILE: &str = "plane.live";

/// The name of the socket in the home.
pub const SOCKET_FILE: &str = "plane.sock";

/// The right to serve a home, held until dropped or until the process is gone.
#[derive(Debug)]
pub struct ServingLock {
    _lock: FileLock,
}

/// Why this process may not serve a home.
#[derive(Debug, Error)]
pub enum ServingError {
    /// Another process serves it.
    #[error(
        "{home} is already served by process {holder}: use that plane, or stop it first with \
         `kill {holder}`, or serve another home with --home DIR"
    )]
    Held {
        /// Which home.
        home: PathBuf,
        /// The process id it wrote down.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("cannot use {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

impl ServingLock {
    /// Takes the right to serve the home at `home`.
    ///
    /// # Errors
    /// [`ServingError::Held`] when another process serves it.
    pub fn take(home: &Path) -> Result<Self, ServingError> {
        let path = home.join(LOCK_FILE);
        let failed = |cause| ServingError::File { path: path.clone(), cause };
        match FileLock::try_take(&path).map_err(failed)? {
            Some(mut lock) => {
                lock.write(std::process::id().to_string().as_bytes()).map_err(failed)?;
                Ok(Self { _lock: lock })
            }
            None => {
                let holder = fs::read_to_string(&path).map_err(failed)?;
                let holder = holder.trim();
                // One that took the lock in this moment has not written its number yet.
                let holder = if holder.is_empty() { "unknown" } else { holder };
                Err(ServingError::Held { home: home.to_owned(), holder: holder.to_owned() })
            }
        }
    }
}

/// The socket of a home while it is offered; its name is removed when dropped.
#[derive(Debug)]
pub struct OfferedSocket {
    path: PathBuf,
}

impl OfferedSocket {
    /// Offers the socket of `home`. The caller holds the [`ServingLock`], so a socket that is
    /// there already belongs to a process that is gone.
    ///
    /// # Errors
    /// The system's error when the home cannot hold a socket or others can write to it.
    pub fn offer(home: &Path) -> io::Result<(Self, UnixListener)> {
        let directory = open_directory(home)?;
        let temporary = format!("{SOCKET_FILE}.{}", random::hex()?);
        let listener = UnixListener::bind(through(&directory, &temporary))?;
        let temporary = home.join(temporary);
        fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
        let path = home.join(SOCKET_FILE);
        fs::rename(&temporary, &path)?;
        listener.set_nonblocking(true)?;
        Ok((Self { path }, listener))
    }
}

impl Drop for OfferedSocket {
    fn drop(&mut self) {
        // A name that stays leads to nobody: connecting to it is refused.
        let _ = fs::remove_file(&self.path);
    }
}

/// The home whose plane answered on its socket: the way to it stays valid while this is held.
#[derive(Debug)]
pub struct PlaneSocket {
    directory: File,
}

impl PlaneSocket {
    /// Returns the plane of `home` if it serves now.
    ///
    /// # Errors
    /// The system's error when something is there that may not be trusted.
    // SECURITY: the directory is opened once and only its owner can write to it, so every later
    // connection through it leads to the same owner whose identity was checked here.
    pub fn find(home: &Path) -> io::Result<Option<Self>> {
        let directory = match open_directory(home) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let stream = match UnixStream::connect(through(&directory, SOCKET_FILE)) {
            Ok(stream) => stream,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let owner = directory.metadata()?.uid();
        let peer = peer_uid(&stream)?;
        if peer != owner && peer != 0 {
            let text = format!("user {peer} answers at {}", home.join(SOCKET_FILE).display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Some(Self { directory }))
    }

    /// Returns the path of the socket, short enough for every home, valid in this process while
    /// this is held.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        through(&self.directory, SOCKET_FILE)
    }
}

fn is_absent(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind())
}

/// Returns whether whoever is at the other end of a socket may use this process's plane: the same
/// user, or root.
///
/// # Errors
/// The system's error when it does not say who that is.
pub fn is_own_user(socket: impl AsFd) -> io::Result<bool> {
    let peer = peer_uid(socket)?;
    Ok(peer == geteuid().as_raw() || peer == 0)
}

fn peer_uid(socket: impl AsFd) -> io::Result<u32> {
    Ok(socket_peercred(socket)?.uid.as_raw())
}

/// Notes the address at which the plane of `home` is served.
///
/// # Errors
/// The system's error when the home cannot be written.
pub fn write_address(home: &Path, url: &str) -> io::Result<()> {
    files::write_private(&home.join(ADDRESS_FILE), url.as_bytes())
}

/// Returns the address at which the plane of `home` was served last.
///
/// # Errors
/// The system's error when the home cannot be read.
pub fn last_address(home: &Path) -> io::Result<Option<String>> {
    let content = files::read_if_present(&home.join(ADDRESS_FILE))?;
    Ok(content.and_then(|content| String::from_utf8(content).ok()))
}

fn open_directory(home: &Path) -> io::Result<File> {
    // The home itself may be named through a link; what it leads to is checked.
    let home = fs::canonicalize(home)?;
    files::check_private(&home)?;
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(home)
}

/// A path of at most 107 bytes, which is all that the address of a socket holds.
fn through(directory: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}
