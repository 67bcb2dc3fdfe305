//! The workspace as a script may see it: by descriptor, beneath its root, links never followed.
//!
//! The interpreter resolves links itself, in terms of paths whose `/` is the workspace; what
//! arrives here names every directory plainly. A link found on the way is an error, so no
//! link, of the script's making or planted by the host, can lead out. Start at [`Tree::read`].

mod change;
mod links;

pub(super) use change::Put;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat,
    statat,
};
use rustix::io::Errno;

use super::guard::{Access, Guard};
use super::meter::Meter;
use super::names;

/// Which changes a tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    /// None at all.
    Refused,
    /// Those the guard allows.
    Allowed,
}

/// A directory of the host, seen from inside as `/`.
pub(super) struct Tree {
    root: OwnedFd,
    has_openat2: bool,
    writes: Writes,
    guard: Guard,
    meter: Meter,
    /// Where the host has this directory, so that links naming it can be shown from inside.
    host_root: PathBuf,
    /// How the script spelled the targets of links it made itself.
    spelled: Mutex<HashMap<FileId, PathBuf>>,
    /// Every file a mask names, so that its other hard links are masked too. Walked on demand.
    masked_files: OnceLock<HashSet<FileId>>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A FIFO, socket or device: it can be seen, and never opened.
    Special,
}

/// What can be known of an entry without opening it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// What it is.
    pub sort: Sort,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions.
    pub mode: u32,
    /// When it last changed.
    pub modified: SystemTime,
    id: FileId,
    /// Whether it has further hard links.
    is_shared: bool,
}

/// A file of the host, whatever its names.
type FileId = (u64, u64);

/// A path inside, taken apart.
#[derive(Debug, Clone)]
struct Spot {
    /// As the guard reads it: relative, no dots; empty for the root.
    text: String,
    /// The same as bytes for the kernel.
    name: OsString,
}

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Tree {
    /// Returns the tree below an open directory.
    pub(super) fn new(root: OwnedFd, host_root: PathBuf, writes: Writes, rules: Rules) -> Self {
        let probe = openat2(&root, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BENEATH);
        Self {
            root,
            has_openat2: probe.is_ok(),
            writes,
            guard: rules.guard,
            meter: rules.meter,
            host_root,
            spelled: Mutex::default(),
            masked_files: OnceLock::new(),
        }
    }

    /// Returns the bytes of a regular file.
    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let spot = Spot::new(path)?;
        let entry = self.look(&spot)?;
        self.check_readable(&spot, &entry)?;
        let mut file = self.open_regular(&spot, &entry, OFlags::RDONLY)?;
        let mut bytes = Vec::with_capacity(usize::try_from(entry.size).unwrap_or(0).min(1 << 30));
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns what an entry is; a link is told as a link.
    pub(super) fn stat(&self, path: &Path) -> io::Result<Entry> {
        let spot = Spot::new(path)?;
        let entry = self.look(&spot)?;
        Ok(self.masked_view(&spot.text, entry))
    }

    /// Returns whether the root has an entry of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        statat(&self.root, names::to_name(name), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Returns the entries of a directory by name.
    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<(String, Entry)>> {
        let spot = Spot::new(path)?;
        if self.guard.access(&spot.text) == Access::Masked {
            return Err(Errno::ACCESS.into());
        }
        let directory = self.open_directory(&spot)?;
        let entries = entries(&directory)?;
        let view = |(name, entry): (OsString, Entry)| {
            let text = names::to_text(&name);
            let entry = self.masked_view(&spot.join(&text), entry);
            (text, entry)
        };
        Ok(entries.into_iter().map(view).collect())
    }

    /// Returns where a link leads, in terms of paths inside; one that leads out is not told.
    pub(super) fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let spot = Spot::new(path)?;
        let entry = self.look(&spot)?;
        if entry.sort != Sort::Link {
            return Err(Errno::INVAL.into());
        }
        let spelled = self.spelled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = spelled.get(&entry.id) {
            return Ok(target.clone());
        }
        let (parent, name) = self.open_parent(&spot)?;
        let target = readlinkat(&parent, name, Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.to_bytes()));
        Ok(links::shown(target, &self.host_root, spot.depth()))
    }

    fn look(&self, spot: &Spot) -> io::Result<Entry> {
        let fd = self.open(spot, OFlags::PATH)?;
        Ok(Entry::new(&fstat(&fd)?))
    }

    fn open(&self, spot: &Spot, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !self.has_openat2 {
            return self.walk(spot, flags);
        }
        openat2(&self.root, spot.for_kernel(), flags, Mode::empty(), BENEATH)
    }

    /// Opens name by name, for where one call cannot: inside the jail its filter hides `openat2`.
    fn walk(&self, spot: &Spot, flags: OFlags) -> Result<OwnedFd, Errno> {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut held: Option<OwnedFd> = None;
        let (above, last) = match spot.split() {
            Some((above, last)) => (above.name, last),
            None => (OsString::new(), ".".into()),
        };
        for name in above.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let at = held.as_ref().unwrap_or(&self.root);
            let name = OsStr::from_bytes(name);
            // A link is no directory; saying so as the one call would lets the interpreter
            // resolve it.
            let next = openat(at, name, step, Mode::empty()).map_err(|errno| {
                let is_link = errno == Errno::NOTDIR
                    && statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
                        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
                if is_link { Errno::LOOP } else { errno }
            })?;
            held = Some(next);
        }
        openat(held.as_ref().unwrap_or(&self.root), last, flags, Mode::empty())
    }

    /// Opens a regular file that was looked at before.
    fn open_regular(&self, spot: &Spot, seen: &Entry, flags: OFlags) -> io::Result<File> {
        match seen.sort {
            Sort::File => {}
            Sort::Directory => return Err(Errno::ISDIR.into()),
            Sort::Link => return Err(Errno::LOOP.into()),
            // SECURITY: a FIFO would hang the run, a device would reach the host.
            Sort::Special => return Err(Errno::ACCESS.into()),
        }
        // Should the host swap the file between look and open, nothing here blocks on it.
        let fd = self.open(spot, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let entry = Entry::new(&fstat(&fd)?);
        if entry.sort != Sort::File || entry.id != seen.id {
            return Err(Errno::STALE.into());
        }
        Ok(File::from(fd))
    }

    fn open_directory(&self, spot: &Spot) -> io::Result<OwnedFd> {
        Ok(self.open(spot, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?)
    }

    /// Opens the directory a path lies in, and returns it with the last name.
    fn open_parent(&self, spot: &Spot) -> io::Result<(OwnedFd, OsString)> {
        // The root has no name of its own.
        let (parent, name) = spot.split().ok_or(Errno::BUSY)?;
        let fd = self.open(&parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((fd, name))
    }

    fn check_readable(&self, spot: &Spot, entry: &Entry) -> io::Result<()> {
        let masked = self.guard.access(&spot.text) == Access::Masked || self.is_alias(entry);
        if masked { Err(Errno::ACCESS.into()) } else { Ok(()) }
    }

    /// Returns whether a file is another hard link to a masked one.
    fn is_alias(&self, entry: &Entry) -> bool {
        let can_be = entry.sort == Sort::File && entry.is_shared && self.guard.has_masks();
        can_be && self.masked_files.get_or_init(|| self.find_masked()).contains(&entry.id)
    }

    fn masked_view(&self, text: &str, entry: Entry) -> Entry {
        let masked = self.guard.has_masks() && self.guard.access(text) == Access::Masked;
        if masked { Entry { size: 0, mode: 0, ..entry } } else { entry }
    }

    fn find_masked(&self) -> HashSet<FileId> {
        let mut found = HashSet::new();
        let mut pending = vec![Spot { text: String::new(), name: OsString::new() }];
        while let Some(directory) = pending.pop() {
            let Ok(entries) = self.open_directory(&directory).and_then(|fd| entries(&fd)) else {
                continue;
            };
            for (name, entry) in entries {
                let below = directory.below(&name);
                if entry.sort == Sort::Directory {
                    pending.push(below);
                } else if self.guard.access(&below.text) == Access::Masked {
                    found.insert(entry.id);
                }
            }
        }
        found
    }
}

/// What a tree is told about its run.
pub(super) struct Rules {
    /// Which names are off limits.
    pub guard: Guard,
    /// How much may be added.
    pub meter: Meter,
}

impl Entry {
    fn new(stat: &Stat) -> Self {
        let sort = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Sort::File,
            FileType::Directory => Sort::Directory,
            FileType::Symlink => Sort::Link,
            _ => Sort::Special,
        };
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Self {
            sort,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode & 0o7777,
            modified: SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos),
            id: (stat.st_dev, stat.st_ino),
            is_shared: stat.st_nlink > 1,
        }
    }
}

impl Spot {
    fn new(path: &Path) -> io::Result<Self> {
        let path = path.to_str().ok_or(Errno::ILSEQ)?;
        let mut segments = Vec::new();
        for segment in path.split('/') {
            match segment {
                "" | "." => {}
                ".." => {
                    segments.pop();
                }
                segment => segments.push(segment),
            }
        }
        let text = segments.join("/");
        let name = names::to_name(&text);
        Ok(Self { text, name })
    }

    fn for_kernel(&self) -> &OsStr {
        if self.name.is_empty() { OsStr::new(".") } else { &self.name }
    }

    fn split(&self) -> Option<(Self, OsString)> {
        if self.text.is_empty() {
            return None;
        }
        let (parent, name) = self.text.rsplit_once('/').unwrap_or(("", &self.text));
        let parent = Self { text: parent.to_owned(), name: names::to_name(parent) };
        Some((parent, names::to_name(name)))
    }

    fn join(&self, name: &str) -> String {
        if self.text.is_empty() { name.to_owned() } else { format!("{}/{name}", self.text) }
    }

    fn below(&self, name: &OsStr) -> Self {
        let text = self.join(&names::to_text(name));
        let name = names::to_name(&text);
        Self { text, name }
    }

    /// Returns how many directories lie between the root and this entry.
    fn depth(&self) -> usize {
        self.text.matches('/').count()
    }
}

/// Returns the entries of an open directory, sorted by name so that runs repeat.
fn entries(directory: &OwnedFd) -> io::Result<Vec<(OsString, Entry)>> {
    let mut found = Vec::new();
    for item in Dir::read_from(directory)? {
        let item = item?;
        let name = OsStr::from_bytes(item.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        // An entry that vanished in between is no longer an entry.
        if let Ok(stat) = statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            found.push((name.to_owned(), Entry::new(&stat)));
        }
    }
    found.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
    Ok(found)
}
