//! Everything a script finds below `/`: the workspace, and a few places that are not in it.
//!
//! `/` is the workspace. Beside it exist `/dev` and `/tmp`, private to the run and in memory,
//! and `/bin` and `/usr/bin`, which name the available commands. None of them shows in a listing
//! of `/`, and each gives way as soon as the workspace has an entry of that name itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bashkit::{
    DirEntry, FileSystem, FileSystemExt, FileType, FsLimits, InMemoryFs, Metadata, Result,
    normalize_path,
};
use rustix::io::Errno;

use super::commands::{Commands, OWN};
use super::tree::{Entry, Put, Sort, Tree};
use super::worker::tools::random_bytes;

/// Where the interpreter's own commands are found that commands of ours stand in front of.
pub(super) const LIBRARY: &str = "/dev/library";

/// Below a file: its lines that have an end, as a file.
pub(super) const WHOLE_LINES: &str = ".whole-lines";

/// Below a file: what follows its last end of a line, as a file.
pub(super) const LAST_LINE: &str = ".last-line";

/// How much of an endless device a command gets that reads it as a file.
///
/// LIMIT: `cat` and `head` read such a device without end; see LIMITATIONS.md for the others.
const DEVICE_BYTES: usize = 1 << 20;

/// The filesystem of one run.
pub(super) struct Rooms {
    tree: Tree,
    private: InMemoryFs,
    commands: Commands,
    started: SystemTime,
}

/// Where a path leads.
enum Room {
    Workspace,
    Private,
    /// A directory of command names.
    Shelf,
    /// One available command.
    Command(String),
    /// The interpreter's own command of a name, also where ours stands in front of it.
    Library(String),
}

impl Rooms {
    /// Returns the filesystem around a workspace.
    pub(super) fn new(tree: Tree, commands: Commands, started: SystemTime) -> Arc<Self> {
        // What lies in memory is bounded by the run's memory limit.
        let private = InMemoryFs::with_limits(FsLimits::unlimited());
        Arc::new(Self { tree, private, commands, started })
    }

    fn room(&self, path: &Path) -> Room {
        let path = normalize_path(path);
        let text = path.to_str().unwrap_or("/");
        let first = text.split('/').nth(1).unwrap_or("");
        let is_beside = matches!(first, "dev" | "tmp" | "bin" | "usr");
        if !is_beside || self.tree.has(first) {
            return Room::Workspace;
        }
        if let Some(name) = text.strip_prefix(LIBRARY).and_then(|rest| rest.strip_prefix('/')) {
            return Room::Library(name.to_owned());
        }
        if matches!(first, "dev" | "tmp") {
            return Room::Private;
        }
        match text {
            "/bin" | "/usr" | "/usr/bin" => Room::Shelf,
            _ => {
                let name = text.strip_prefix("/usr/bin/").or_else(|| text.strip_prefix("/bin/"));
                let command = name.filter(|name| self.commands.has(name));
                command.map_or(Room::Workspace, |name| Room::Command(name.to_owned()))
            }
        }
    }

    /// Returns the bytes of a part of a file; `None` when the path names no such part.
    async fn part(&self, path: &Path) -> Option<Result<Vec<u8>>> {
        let part = path.file_name()?.to_str()?;
        if part != WHOLE_LINES && part != LAST_LINE {
            return None;
        }
        let file = path.parent()?;
        let bytes = match self.room(file) {
            Room::Private => self.private.read_file(file).await,
            _ => self.tree.read(file).map_err(Into::into),
        };
        Some(bytes.map(|mut bytes| {
            let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let last = bytes.split_off(end);
            if part == WHOLE_LINES { bytes } else { last }
        }))
    }

    fn fixed(&self, file_type: FileType, size: usize) -> Metadata {
        Metadata {
            file_type,
            size: size as u64,
            mode: 0o755,
            modified: self.started,
            created: self.started,
        }
    }

    /// Moves by copying, where the kernel cannot move in one step.
    async fn carry(&self, from: &Path, to: &Path) -> Result<()> {
        let mut pending = vec![(from.to_path_buf(), to.to_path_buf())];
        let mut directories = Vec::new();
        while let Some((from, to)) = pending.pop() {
            let metadata = self.stat(&from).await?;
            match metadata.file_type {
                FileType::Directory => {
                    self.mkdir(&to, true).await?;
                    let entries = self.read_dir(&from).await?;
                    let below = entries.into_iter().map(|e| (from.join(&e.name), to.join(&e.name)));
                    pending.extend(below);
                    directories.push((to, metadata));
                }
                FileType::Symlink => {
                    let target = self.read_link(&from).await?;
                    self.symlink(&target, &to).await?;
                }
                FileType::File | FileType::Fifo => {
                    let bytes = self.read_file(&from).await?;
                    self.write_file(&to, &bytes).await?;
                    self.chmod(&to, metadata.mode).await?;
                    self.set_modified_time(&to, metadata.modified).await?;
                }
            }
        }
        // Innermost first, because filling a directory changes when it was changed.
        for (path, metadata) in directories.into_iter().rev() {
            self.chmod(&path, metadata.mode).await?;
            self.set_modified_time(&path, metadata.modified).await?;
        }
        self.remove(from, true).await
    }
}

fn refuse(errno: Errno) -> bashkit::Error {
    io::Error::from(errno).into()
}

fn metadata(entry: Entry) -> Metadata {
    let file_type = match entry.sort {
        Sort::File => FileType::File,
        Sort::Directory => FileType::Directory,
        Sort::Link => FileType::Symlink,
        // The interpreter knows no sockets or devices; like a FIFO, none is ever opened.
        Sort::Special => FileType::Fifo,
    };
    Metadata {
        file_type,
        size: entry.size,
        mode: entry.mode,
        modified: entry.modified,
        created: entry.modified,
    }
}

/// Returns the text the interpreter takes as "this is the builtin of that name".
fn library_stub(name: &str) -> Vec<u8> {
    format!("#!/bin/sh\n# bashkit builtin: {name}\nexec {name} \"$@\"\n").into_bytes()
}

/// Returns the text of the file that stands for a command.
fn stub(name: &str) -> Vec<u8> {
    if OWN.contains(&name) {
        return format!("#!/bin/sh\n{name} \"$@\"\n").into_bytes();
    }
    library_stub(name)
}

#[async_trait]
impl FileSystemExt for Rooms {
    fn backend_kind(&self) -> &'static str {
        "workspace"
    }
}

#[async_trait]
impl FileSystem for Rooms {
    async fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        if let Some(part) = self.part(path).await {
            return part;
        }
        match self.room(path) {
            Room::Workspace => Ok(self.tree.read(path)?),
            Room::Private => match path.to_str() {
                Some("/dev/zero") => Ok(vec![0; DEVICE_BYTES]),
                Some("/dev/random" | "/dev/urandom") => Ok(random_bytes(DEVICE_BYTES)?),
                _ => self.private.read_file(path).await,
            },
            Room::Shelf => Err(refuse(Errno::ISDIR)),
            Room::Command(name) => Ok(stub(&name)),
            Room::Library(name) => Ok(library_stub(&name)),
        }
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        match self.room(path) {
            Room::Workspace => Ok(self.tree.write(path, content, Put::Replace)?),
            Room::Private => self.private.write_file(path, content).await,
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::ACCESS)),
        }
    }

    async fn append_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        match self.room(path) {
            Room::Workspace => Ok(self.tree.write(path, content, Put::Append)?),
            Room::Private => self.private.append_file(path, content).await,
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::ACCESS)),
        }
    }

    async fn mkdir(&self, path: &Path, recursive: bool) -> Result<()> {
        // `mkdir tmp` wants a directory of the workspace; `mkdir -p /tmp` wants it to be there.
        let is_top = normalize_path(path).components().count() == 2;
        match self.room(path) {
            Room::Workspace if recursive => Ok(self.tree.make_directories(path)?),
            Room::Workspace => Ok(self.tree.make_directory(path)?),
            Room::Private | Room::Shelf if is_top && !recursive => {
                Ok(self.tree.make_directory(path)?)
            }
            Room::Private => self.private.mkdir(path, recursive).await,
            Room::Shelf if recursive => Ok(()),
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::EXIST)),
        }
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        match self.room(path) {
            Room::Workspace if recursive => Ok(self.tree.remove_all(path)?),
            Room::Workspace => Ok(self.tree.remove(path)?),
            Room::Private => self.private.remove(path, recursive).await,
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::ACCESS)),
        }
    }

    async fn stat(&self, path: &Path) -> Result<Metadata> {
        if let Some(part) = self.part(path).await {
            return Ok(self.fixed(FileType::File, part?.len()));
        }
        match self.room(path) {
            Room::Workspace => Ok(metadata(self.tree.stat(path)?)),
            Room::Private => self.private.stat(path).await,
            Room::Shelf => Ok(self.fixed(FileType::Directory, 0)),
            Room::Command(name) => Ok(self.fixed(FileType::File, stub(&name).len())),
            Room::Library(name) => Ok(self.fixed(FileType::File, library_stub(&name).len())),
        }
    }

    async fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        match self.room(path) {
            Room::Workspace => {
                let entries = self.tree.list(path)?;
                let entry = |(name, entry)| DirEntry { name, metadata: metadata(entry) };
                Ok(entries.into_iter().map(entry).collect())
            }
            Room::Private => self.private.read_dir(path).await,
            Room::Shelf if normalize_path(path) == Path::new("/usr") => {
                let metadata = self.fixed(FileType::Directory, 0);
                Ok(vec![DirEntry { name: "bin".into(), metadata }])
            }
            Room::Shelf => {
                let entry = |name: &str| DirEntry {
                    name: name.to_owned(),
                    metadata: self.fixed(FileType::File, stub(name).len()),
                };
                Ok(self.commands.programs().map(entry).collect())
            }
            Room::Command(_) | Room::Library(_) => Err(refuse(Errno::NOTDIR)),
        }
    }

    async fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.stat(path).await.is_ok())
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        match (self.room(from), self.room(to)) {
            (Room::Workspace, Room::Workspace) => match self.tree.rename(from, to) {
                // An overlay cannot rename a directory of the layer below.
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    self.carry(from, to).await
                }
                renamed => Ok(renamed?),
            },
            (Room::Private, Room::Private) => self.private.rename(from, to).await,
            (Room::Workspace | Room::Private, Room::Workspace | Room::Private) => {
                self.carry(from, to).await
            }
            _ => Err(refuse(Errno::ACCESS)),
        }
    }

    async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        match (self.room(from), self.room(to)) {
            (Room::Workspace, Room::Workspace) => Ok(self.tree.copy(from, to)?),
            (Room::Private, Room::Private) => self.private.copy(from, to).await,
            _ => {
                let bytes = self.read_file(from).await?;
                self.write_file(to, &bytes).await
            }
        }
    }

    async fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        match self.room(link) {
            Room::Workspace => Ok(self.tree.link(target, link)?),
            Room::Private => self.private.symlink(target, link).await,
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::ACCESS)),
        }
    }

    async fn read_link(&self, path: &Path) -> Result<PathBuf> {
        match self.room(path) {
            Room::Workspace => Ok(self.tree.read_link(path)?),
            Room::Private => self.private.read_link(path).await,
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::INVAL)),
        }
    }

    async fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        match self.room(path) {
            Room::Workspace => Ok(self.tree.set_mode(path, mode)?),
            Room::Private => self.private.chmod(path, mode).await,
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::ACCESS)),
        }
    }

    async fn set_modified_time(&self, path: &Path, time: SystemTime) -> Result<()> {
        match self.room(path) {
            Room::Workspace => Ok(self.tree.set_modified(path, time)?),
            Room::Private => self.private.set_modified_time(path, time).await,
            Room::Shelf | Room::Command(_) | Room::Library(_) => Err(refuse(Errno::ACCESS)),
        }
    }
}
