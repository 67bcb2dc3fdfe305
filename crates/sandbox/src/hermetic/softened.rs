//! Files whose errors fail one command and not the whole script.
//!
//! Some of the interpreter's commands pass an error of the filesystem on as if the interpreter
//! itself had failed, which ends the script. While one of them runs, such an error is given to
//! it in the form the interpreter prints for the command, as bash would.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use bashkit::{DirEntry, Error, FileSystem, FileSystemExt, Metadata, Result};

/// Commands that pass errors of the filesystem on.
const PASSING_ON: [&str; 11] =
    ["bunzip2", "bzip2", "gunzip", "gzip", "install", "patch", "rg", "split", "tar", "tree", "zip"];

/// Which command runs now.
#[derive(Debug, Clone, Default)]
pub(super) struct RunningCommand(Arc<Mutex<Option<String>>>);

impl RunningCommand {
    /// Notes that a command starts.
    pub(super) fn starts(&self, name: &str) {
        let noted = PASSING_ON.contains(&name).then(|| name.to_owned());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = noted;
    }

    fn name(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A filesystem that tells a command of its errors, not the interpreter.
pub(super) struct Softened {
    inner: Arc<dyn FileSystem>,
    running: RunningCommand,
}

impl Softened {
    /// Returns the filesystem around another.
    pub(super) fn new(inner: Arc<dyn FileSystem>, running: RunningCommand) -> Arc<Self> {
        Arc::new(Self { inner, running })
    }

    fn soften<T>(&self, path: &Path, result: Result<T>) -> Result<T> {
        match (result, self.running.name()) {
            (Err(Error::Io(cause)), Some(name)) => {
                let text = cause.to_string();
                let why = text.split_once(" (os error ").map_or(text.as_str(), |(why, _)| why);
                Err(Error::Execution(format!("{name}: {}: {why}", path.display())))
            }
            (result, _) => result,
        }
    }
}

#[async_trait]
impl FileSystemExt for Softened {
    fn backend_kind(&self) -> &'static str {
        self.inner.backend_kind()
    }
}

#[async_trait]
impl FileSystem for Softened {
    async fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        self.soften(path, self.inner.read_file(path).await)
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        self.soften(path, self.inner.write_file(path, content).await)
    }

    async fn append_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        self.soften(path, self.inner.append_file(path, content).await)
    }

    async fn mkdir(&self, path: &Path, recursive: bool) -> Result<()> {
        self.soften(path, self.inner.mkdir(path, recursive).await)
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        self.soften(path, self.inner.remove(path, recursive).await)
    }

    // What is there is asked by commands that know how to go on without it.
    async fn stat(&self, path: &Path) -> Result<Metadata> {
        self.inner.stat(path).await
    }

    async fn lstat(&self, path: &Path) -> Result<Metadata> {
        self.inner.lstat(path).await
    }

    async fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.soften(path, self.inner.read_dir(path).await)
    }

    async fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.soften(from, self.inner.rename(from, to).await)
    }

    async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.soften(from, self.inner.copy(from, to).await)
    }

    async fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        self.soften(link, self.inner.symlink(target, link).await)
    }

    async fn read_link(&self, path: &Path) -> Result<PathBuf> {
        self.inner.read_link(path).await
    }

    async fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        self.soften(path, self.inner.chmod(path, mode).await)
    }

    async fn set_modified_time(&self, path: &Path, time: SystemTime) -> Result<()> {
        self.soften(path, self.inner.set_modified_time(path, time).await)
    }
}
