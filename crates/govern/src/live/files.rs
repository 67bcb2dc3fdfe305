//! Calls on the files of a sandbox, by descriptor below its directory. Links are never followed,
//! nothing but plain files and directories is opened, and nothing outside exists.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, fstat, ftruncate,
    mkdirat, openat, openat2, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use warrant_plane::doors::{Entry, EntryKind, FileAnswer, FileCall, FileFault, inside};
use warrant_plane::request_context::keep_cause;
use warrant_protocol::glob::Masks;

/// Larger files do not travel through a door.
pub(super) const MOST_BYTES: u64 = 64 * 1024 * 1024;
/// Longer listings are refused.
pub(super) const MOST_ENTRIES: usize = 100_000;
/// Deeper trees are not removed or listed.
const DEEPEST: usize = 200;

/// Where a sandbox's files are.
pub(super) struct Ground<'a> {
    /// The directory with `home` and `tmp`.
    pub(super) directory: &'a Path,
    /// Where home is inside.
    pub(super) home: &'a str,
}

pub(super) type Fault = (FileFault, String);

/// Does a call.
pub(super) fn perform(
    ground: &Ground<'_>,
    call: &FileCall,
    masks: &[String],
) -> Result<FileAnswer, Fault> {
    match call {
        FileCall::Read { path } => {
            let spot = ground.spot(path)?;
            spot.check_masks(masks)?;
            spot.told(spot.read()).map(|content| FileAnswer::Content(content.into()))
        }
        FileCall::Write { path, content, mode } => {
            let spot = ground.spot(path)?;
            spot.told(spot.write(content, *mode))?;
            spot.told(spot.entry()).map(FileAnswer::Entry)
        }
        FileCall::List { path, depth } => {
            let spot = ground.spot(path)?;
            let mut entries = Vec::new();
            spot.told(spot.list(*depth, &mut entries))?;
            Ok(FileAnswer::Entries(entries))
        }
        FileCall::Stat { path } => {
            let spot = ground.spot(path)?;
            spot.told(spot.entry()).map(FileAnswer::Entry)
        }
        FileCall::MakeDirectory { path, mode } => {
            let spot = ground.spot(path)?;
            spot.told(spot.make_directory(*mode))?;
            spot.told(spot.entry()).map(FileAnswer::Entry)
        }
        FileCall::Move { from, to } => {
            let (from, to) = (ground.spot(from)?, ground.spot(to)?);
            from.told(rename(&from, &to))?;
            to.told(to.entry()).map(FileAnswer::Entry)
        }
        FileCall::Remove { path, recursive } => {
            let spot = ground.spot(path)?;
            let entry = spot.told(spot.entry())?;
            spot.told(spot.remove(*recursive))?;
            Ok(FileAnswer::Entry(entry))
        }
        FileCall::SetMode { path, mode } => {
            let spot = ground.spot(path)?;
            spot.told(spot.set_mode(*mode))?;
            spot.told(spot.entry()).map(FileAnswer::Entry)
        }
        // It outlasts its call, so it is the lookout's.
        FileCall::Watch { path, .. } => {
            Err((FileFault::Forbidden, format!("path '{path}' cannot be watched")))
        }
    }
}

impl Ground<'_> {
    /// Returns whether a directory of the sandbox's own exists; nothing for one of the system.
    pub(super) fn has_directory(&self, path: &str) -> Option<bool> {
        let spot = self.spot(path).ok()?;
        Some(spot.open_directory().is_ok())
    }

    /// Finds a path inside. What is neither home nor `/tmp` does not exist for calls on files.
    pub(super) fn spot(&self, path: &str) -> Result<Spot, Fault> {
        let missing = || (FileFault::Missing, format!("path '{path}' does not exist"));
        let inside = inside(self.home, path).ok_or_else(missing)?;
        let places = [(self.home, "home"), ("/tmp", "tmp")];
        let found = places.iter().find_map(|(place, name)| {
            let below = Path::new(&inside).strip_prefix(place).ok()?;
            Some((below.to_owned(), *name))
        });
        let (below, name) = found.ok_or_else(missing)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, self.directory.join(name), flags, Mode::empty());
        let root = root.map_err(|errno| keep_cause(&errno, missing()))?;
        Ok(Spot { root, below, inside })
    }
}

/// One path of a sandbox.
pub(super) struct Spot {
    root: OwnedFd,
    /// Below the root; empty for the root itself.
    below: PathBuf,
    inside: String,
}

impl Spot {
    /// Returns the path as it is inside.
    pub(super) fn inside(&self) -> &str {
        &self.inside
    }

    pub(super) fn told<T>(&self, result: Result<T, Errno>) -> Result<T, Fault> {
        result.map_err(|errno| {
            let path = &self.inside;
            match errno {
                Errno::NOENT => (FileFault::Missing, format!("path '{path}' does not exist")),
                Errno::EXIST => (FileFault::Exists, format!("path '{path}' already exists")),
                Errno::ISDIR => (FileFault::IsDirectory, format!("path '{path}' is a directory")),
                Errno::NOTDIR => {
                    (FileFault::NotDirectory, format!("path '{path}' is not a directory"))
                }
                Errno::NOTEMPTY => (FileFault::NotEmpty, format!("path '{path}' is not empty")),
                Errno::FBIG | Errno::NOSPC | Errno::DQUOT => {
                    (FileFault::TooLarge, format!("path '{path}' is too large"))
                }
                _ => (
                    FileFault::Forbidden,
                    format!("path '{path}' cannot be used: links and devices are not followed"),
                ),
            }
        })
    }

    /// What policy masks cannot be read through this way either.
    fn check_masks(&self, masks: &[String]) -> Result<(), Fault> {
        if Masks::new(masks).veil(&self.below.to_string_lossy()) {
            let message = format!("path '{}' is masked by policy", self.inside);
            return Err((FileFault::Forbidden, message));
        }
        Ok(())
    }

    fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        open_below(&self.root, &self.below, flags, mode)
    }

    pub(super) fn open_directory(&self) -> Result<OwnedFd, Errno> {
        self.open(OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Returns the directory a name is in, and the name. The root itself has neither.
    fn parent(&self) -> Result<(OwnedFd, &std::ffi::OsStr), Errno> {
        let name = self.below.file_name().ok_or(Errno::PERM)?;
        let parent = self.below.parent().unwrap_or(Path::new(""));
        Ok((open_below(&self.root, parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }

    /// Makes the directories a name is in.
    fn make_parents(&self) -> Result<(), Errno> {
        let parent = self.below.parent().unwrap_or(Path::new(""));
        make_all(&self.root, parent)
    }

    fn read(&self) -> Result<Vec<u8>, Errno> {
        read_below(&self.root, &self.below, MOST_BYTES)
    }

    fn write(&self, content: &[u8], mode: Option<u32>) -> Result<(), Errno> {
        if self.below.as_os_str().is_empty() {
            return Err(Errno::ISDIR);
        }
        if content.len() as u64 > MOST_BYTES {
            return Err(Errno::FBIG);
        }
        self.make_parents()?;
        // Not truncated on opening: it may be a pipe or another thing that must not be touched.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let private = Mode::from_raw_mode(0o600);
        let made = self.open(flags | OFlags::CREATE | OFlags::EXCL, private);
        // Set by hand, since the umask of whoever started the plane says nothing here.
        let mode = mode.or(made.is_ok().then_some(0o644));
        let fd = match made {
            Err(Errno::EXIST) => self.open(flags | OFlags::CREATE, private)?,
            made => made?,
        };
        let stat = fstat(&fd)?;
        check_plain(&stat)?;
        if stat.st_size > 0 {
            ftruncate(&fd, 0)?;
        }
        if let Some(mode) = mode {
            fchmod(&fd, Mode::from_raw_mode(mode & 0o777))?;
        }
        let written = File::from(fd).write_all(content);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn make_directory(&self, mode: Option<u32>) -> Result<(), Errno> {
        if self.below.as_os_str().is_empty() {
            return Err(Errno::EXIST);
        }
        self.make_parents()?;
        let (parent, name) = self.parent()?;
        match make_one(&parent, name, mode.unwrap_or(0o755)) {
            Err(Errno::EXIST) if self.entry()?.kind != EntryKind::Directory => Err(Errno::NOTDIR),
            other => other,
        }
    }

    fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        let fd = self.open(OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let stat = fstat(&fd)?;
        if kind_of(&stat) != EntryKind::Directory {
            check_plain(&stat)?;
        }
        fchmod(&fd, Mode::from_raw_mode(mode & 0o777))
    }

    fn entry(&self) -> Result<Entry, Errno> {
        if self.below.as_os_str().is_empty() {
            let stat = fstat(&self.root)?;
            return Ok(entry_of(&self.inside, &stat, None));
        }
        let (parent, name) = self.parent()?;
        look(&parent, name, &self.inside)
    }

    fn list(&self, depth: u32, entries: &mut Vec<Entry>) -> Result<(), Errno> {
        let mut waiting = vec![(self.below.clone(), self.inside.clone(), 1_u32)];
        while let Some((below, inside, level)) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let directory = match open_below(&self.root, &below, flags, Mode::empty()) {
                Ok(directory) => directory,
                // What vanishes or cannot be opened while it is listed is left out.
                Err(_) if level > 1 => continue,
                Err(errno) => return Err(errno),
            };
            for found in Dir::read_from(&directory)? {
                let found = found?;
                let name = std::ffi::OsStr::from_bytes(found.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                let shown = format!("{}/{}", inside.trim_end_matches('/'), name.to_string_lossy());
                let Ok(entry) = look(&directory, name, &shown) else { continue };
                if entries.len() >= MOST_ENTRIES {
                    return Err(Errno::FBIG);
                }
                if entry.kind == EntryKind::Directory && level < depth {
                    waiting.push((below.join(name), shown, level + 1));
                }
                entries.push(entry);
            }
        }
        // By names, so that what is in a directory follows it.
        entries.sort_by(|a, b| Path::new(&a.path).cmp(Path::new(&b.path)));
        Ok(())
    }

    fn remove(&self, recursive: bool) -> Result<(), Errno> {
        let (parent, name) = self.parent()?;
        match unlinkat(&parent, name, AtFlags::empty()) {
            Err(Errno::ISDIR) if recursive => remove_tree(&parent, name, 0),
            Err(Errno::ISDIR) => unlinkat(&parent, name, AtFlags::REMOVEDIR),
            other => other,
        }
    }
}

/// Opens a path below a directory through no link.
pub(super) fn open_below(
    root: &OwnedFd,
    below: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    // SECURITY: a link planted inside must not lead to a file of the host.
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, below, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode, how)
}

/// Reads a plain file below a directory, if it holds no more than so many bytes.
pub(super) fn read_below(root: &OwnedFd, below: &Path, most: u64) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = File::from(open_below(root, below, flags, Mode::empty())?);
    let stat = fstat(&file)?;
    check_plain(&stat)?;
    if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > most {
        return Err(Errno::FBIG);
    }
    let mut content = Vec::new();
    let read = file.take(most + 1).read_to_end(&mut content);
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    match content.len() as u64 > most {
        true => Err(Errno::FBIG),
        false => Ok(content),
    }
}

fn make_all(root: &OwnedFd, below: &Path) -> Result<(), Errno> {
    let mut done = PathBuf::new();
    for component in below.components() {
        let parent = open_below(root, &done, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        match make_one(&parent, component.as_os_str(), 0o755) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        done.push(component);
    }
    Ok(())
}

/// Makes a directory with these permissions, whatever the umask of the plane is.
fn make_one(parent: &OwnedFd, name: &std::ffi::OsStr, mode: u32) -> Result<(), Errno> {
    mkdirat(parent, name, Mode::RWXU)?;
    let made =
        open_below(parent, Path::new(name), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    fchmod(&made, Mode::from_raw_mode(mode & 0o777))
}

fn rename(from: &Spot, to: &Spot) -> Result<(), Errno> {
    to.make_parents()?;
    let (source, name) = from.parent()?;
    let (target, new_name) = to.parent()?;
    renameat(&source, name, &target, new_name)
}

fn remove_tree(parent: &OwnedFd, name: &std::ffi::OsStr, depth: usize) -> Result<(), Errno> {
    if depth > DEEPEST {
        return Err(Errno::NAMETOOLONG);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = open_below(parent, Path::new(name), flags, Mode::empty())?;
    for found in Dir::read_from(&directory)? {
        let found = found?;
        let inner = std::ffi::OsStr::from_bytes(found.file_name().to_bytes());
        if inner == "." || inner == ".." {
            continue;
        }
        match unlinkat(&directory, inner, AtFlags::empty()) {
            Err(Errno::ISDIR) => remove_tree(&directory, inner, depth + 1)?,
            other => other?,
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Looks at one name of a directory.
pub(super) fn look(
    directory: &OwnedFd,
    name: &std::ffi::OsStr,
    inside: &str,
) -> Result<Entry, Errno> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = match kind_of(&stat) {
        EntryKind::Link => readlinkat(directory, name, Vec::new()).ok(),
        EntryKind::File | EntryKind::Directory | EntryKind::Other => None,
    };
    Ok(entry_of(inside, &stat, target.map(|target| target.to_string_lossy().into_owned())))
}

fn entry_of(inside: &str, stat: &Stat, target: Option<String>) -> Entry {
    Entry {
        name: inside.rsplit('/').next().unwrap_or_default().to_owned(),
        path: inside.to_owned(),
        kind: kind_of(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified_ns: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
        target,
    }
}

const fn kind_of(stat: &Stat) -> EntryKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Link,
        _ => EntryKind::Other,
    }
}

/// Only plain files have content here.
const fn check_plain(stat: &Stat) -> Result<(), Errno> {
    match kind_of(stat) {
        EntryKind::File => Ok(()),
        EntryKind::Directory => Err(Errno::ISDIR),
        EntryKind::Link | EntryKind::Other => Err(Errno::PERM),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn what_a_call_makes_has_its_permissions_whatever_the_umask_is() {
        // For the whole process; nothing else that is tested here depends on it.
        rustix::process::umask(Mode::from_raw_mode(0o077));
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("home")).unwrap();
        let ground = Ground { directory: root.path(), home: "/home/user" };
        let mode = |call: FileCall| match perform(&ground, &call, &[]) {
            Ok(FileAnswer::Entry(entry)) => entry.mode,
            other => panic!("{other:?}"),
        };
        let write = |mode| FileCall::Write { path: "a/b/file".into(), content: "x".into(), mode };
        assert_eq!(mode(write(None)), 0o644);
        assert_eq!(mode(FileCall::Stat { path: "a".into() }), 0o755);
        assert_eq!(mode(write(Some(0o666))), 0o666);
        assert_eq!(mode(write(None)), 0o666, "what is there keeps its permissions");
        assert_eq!(mode(FileCall::MakeDirectory { path: "c".into(), mode: Some(0o775) }), 0o775);
        assert_eq!(mode(FileCall::MakeDirectory { path: "d/e".into(), mode: None }), 0o755);
    }

    #[test]
    fn a_directory_that_is_there_is_told_from_a_file_that_is_in_its_way() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("home/there")).unwrap();
        std::fs::write(root.path().join("home/file"), "x").unwrap();
        let ground = Ground { directory: root.path(), home: "/home/user" };
        for (path, fault) in [("there", FileFault::Exists), ("file", FileFault::NotDirectory)] {
            let call = FileCall::MakeDirectory { path: path.into(), mode: None };
            assert_eq!(perform(&ground, &call, &[]).unwrap_err().0, fault, "{path}");
        }
    }
}
