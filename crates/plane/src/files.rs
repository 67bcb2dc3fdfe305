//! Files that only their owner reads: written whole or not at all, durable before they are named.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::random;

/// Returns whether an error means that nothing can be written there now.
pub(crate) fn is_of_writing(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let kinds =
        [Kind::StorageFull, Kind::QuotaExceeded, Kind::FileTooLarge, Kind::ReadOnlyFilesystem];
    kinds.contains(&error.kind())
}

/// Creates a directory that only its owner may enter; one that exists is kept.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Refuses a directory or file that others can write, or that belongs to somebody else.
pub(crate) fn check_private(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let owner = rustix::process::geteuid().as_raw();
    // SECURITY: whoever can write here could swap keys or policy under us.
    let is_ours = metadata.uid() == owner || metadata.uid() == 0;
    let is_closed = metadata.mode() & 0o022 == 0;
    if is_ours && is_closed && !metadata.is_symlink() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} belongs to or can be written by others", path.display()),
    ))
}

/// Refuses a directory or file that more people than its owner can write, whoever that is.
pub(crate) fn check_closed(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.mode() & 0o022 == 0 && !metadata.is_symlink() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} can be written by others than its owner", path.display()),
    ))
}

/// Writes a file of mode 0600 so that a reader sees the old or the new content, never a part.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = write_temporary(path, content)?;
    fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// Writes a file of mode 0600 unless one of that name exists, which then stays.
pub(crate) fn create_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = write_temporary(path, content)?;
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.and_then(|()| sync_parent(path)),
    }
}

fn write_temporary(path: &Path, content: &[u8]) -> io::Result<std::path::PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", random::hex()?));
    let temporary = std::path::PathBuf::from(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    Ok(temporary)
}

/// Makes the name of a file as durable as its content.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or_else(|| Path::new("/"));
    File::open(parent)?.sync_all()
}

/// Returns the content of a file, or nothing when there is none.
pub(crate) fn read_if_present(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match File::open(path) {
        Ok(mut file) => {
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            Ok(Some(content))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A lock between processes, held until dropped or until the process is gone.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
}

impl FileLock {
    /// Waits for the lock of `path`.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        let file = open_lock(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self { file })
    }

    /// Takes the lock of `path` if nobody holds it.
    pub(crate) fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = open_lock(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl FileLock {
    /// Replaces what the locked file says.
    pub(crate) fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(content)
    }

    /// Returns whether the lock is still the one of the file called `path`.
    pub(crate) fn is_of(&self, path: &Path) -> bool {
        let same = |named: fs::Metadata, held: fs::Metadata| {
            (named.dev(), named.ino()) == (held.dev(), held.ino())
        };
        match (fs::symlink_metadata(path), self.file.metadata()) {
            (Ok(named), Ok(held)) => same(named, held),
            _ => false,
        }
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
