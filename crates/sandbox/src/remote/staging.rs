//! The workspace on its way to a sandbox and back.
//!
//! What leaves is what is read here by descriptor, with masked files emptied. What comes back is
//! compared with what left; the difference becomes an overlay's upper directory.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, mkdirat, mknodat, open, openat, readlinkat,
    statat, symlinkat,
};
use warrant_protocol::Digest;
use warrant_protocol::glob::Masks;

use super::archive::{Entry, Node};
use crate::namespace::veiled;

/// The most that is sent or taken back.
pub(crate) const MOST_BYTES: u64 = 512 << 20;
const MOST_ENTRIES: usize = 200_000;
const DEEPEST: usize = 200;

/// What left this machine.
#[derive(Debug, Clone)]
pub(crate) struct Staged {
    /// By path: enough to know whether it came back the same.
    pub(crate) sent: BTreeMap<Vec<u8>, Mark>,
    /// Paths that were sent empty because a mask covers them.
    pub(crate) masked: Vec<Vec<u8>>,
}

/// Enough of a node to compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    Directory(u32),
    File(u32, Digest),
    Link(Vec<u8>),
}

impl Mark {
    fn of(node: &Node) -> Self {
        match node {
            Node::Directory { mode } => Self::Directory(mode & 0o777),
            Node::File { mode, content } => Self::File(mode & 0o777, Digest::of(content)),
            Node::Link { target } => Self::Link(target.clone()),
        }
    }
}

/// Reads a workspace; files under a mask become empty and unreadable.
pub(crate) fn collect(workspace: &Path, masks: &[String]) -> io::Result<(Vec<Entry>, Staged)> {
    let root = open(workspace, directory_flags(), Mode::empty())?;
    let veiled = veiled(workspace, masks)?.into_iter();
    let mut reader = Reader {
        masks: Masks::new(masks),
        veiled: veiled.map(|path| path.into_os_string().into_encoded_bytes()).collect(),
        entries: Vec::new(),
        masked: Vec::new(),
        bytes: 0,
        secrets: Vec::new(),
    };
    reader.folder(&root, Vec::new(), 0)?;
    reader.veil_aliases();
    let sent = reader.entries.iter();
    let sent = sent.map(|(entry, _)| (entry.path.clone(), Mark::of(&entry.node))).collect();
    let entries = reader.entries.into_iter().map(|(entry, _)| entry).collect();
    Ok((entries, Staged { sent, masked: reader.masked }))
}

/// A file's place on its disk, by which all its names are found.
type Inode = (u64, u64);

struct Reader {
    masks: Masks,
    /// What is masked under another name, too: further names of a file, and where links lead.
    veiled: HashSet<Vec<u8>>,
    entries: Vec<(Entry, Option<Inode>)>,
    masked: Vec<Vec<u8>>,
    bytes: u64,
    /// Inodes of masked files that have further names.
    secrets: Vec<Inode>,
}

impl Reader {
    fn folder(&mut self, at: &OwnedFd, path: Vec<u8>, depth: usize) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(io::Error::other("the workspace is too deep to be sent"));
        }
        let mut names = Vec::new();
        for entry in &mut Dir::read_from(at)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            let child =
                if path.is_empty() { name.clone() } else { [&path, &b"/"[..], &name].concat() };
            self.node(at, OsStr::from_bytes(&name), (child, depth))?;
            if self.entries.len() > MOST_ENTRIES || self.bytes > MOST_BYTES {
                return Err(io::Error::other("the workspace is too large to be sent"));
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        at: &OwnedFd,
        name: &OsStr,
        (path, depth): (Vec<u8>, usize),
    ) -> io::Result<()> {
        let stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = stat.st_mode & 0o777;
        let text = String::from_utf8_lossy(&path).into_owned();
        let is_masked = self.masks.match_path(&text) || self.veiled.contains(&path);
        match FileType::from_raw_mode(stat.st_mode) {
            // A masked directory is sent without what it holds, a masked link as an empty file.
            FileType::Directory => {
                let mode = if is_masked { 0 } else { mode };
                self.push(path.clone(), Node::Directory { mode }, None);
                if is_masked {
                    self.masked.push(path);
                    return Ok(());
                }
                let folder = openat(at, name, directory_flags(), Mode::empty())?;
                self.folder(&folder, path, depth + 1)
            }
            FileType::Symlink if !is_masked => {
                let target = readlinkat(at, name, Vec::new())?.into_bytes();
                self.push(path, Node::Link { target }, None);
                Ok(())
            }
            FileType::RegularFile | FileType::Symlink if is_masked => {
                if stat.st_nlink > 1 {
                    self.secrets.push((stat.st_dev, stat.st_ino));
                }
                self.masked.push(path.clone());
                self.push(path, Node::File { mode: 0, content: Vec::new() }, None);
                Ok(())
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = openat(at, name, flags, Mode::empty())?;
                let mut content = Vec::new();
                let left = (MOST_BYTES + 1).saturating_sub(self.bytes);
                std::fs::File::from(file).take(left).read_to_end(&mut content)?;
                self.bytes += content.len() as u64;
                let inode = (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
                self.push(path, Node::File { mode, content }, inode);
                Ok(())
            }
            // Sockets, pipes and devices mean nothing on another machine.
            _ => Ok(()),
        }
    }

    fn push(&mut self, path: Vec<u8>, node: Node, inode: Option<Inode>) {
        self.entries.push((Entry { path, node }, inode));
    }

    /// SECURITY: a secret under a second, unmasked name is the same secret.
    fn veil_aliases(&mut self) {
        for (entry, inode) in &mut self.entries {
            if inode.is_some_and(|inode| self.secrets.contains(&inode)) {
                entry.node = Node::File { mode: 0, content: Vec::new() };
                self.masked.push(entry.path.clone());
            }
        }
    }
}

/// One difference between what left and what came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Difference {
    /// This lies there now.
    Now(Entry),
    /// Nothing lies there any more.
    Gone(Vec<u8>),
}

impl Staged {
    /// Returns what differs, by path; masked paths never do.
    pub(crate) fn compare(&self, came: Vec<Entry>) -> Vec<Difference> {
        // A change of a directory above a masked file would take the file along.
        let is_masked = |path: &[u8]| {
            self.masked.iter().any(|mask| is_within(path, mask) || is_within(mask, path))
        };
        let is_directory = |entry: &Entry| matches!(entry.node, Node::Directory { .. });
        let mut gone: BTreeMap<&[u8], ()> =
            self.sent.keys().map(|path| (path.as_slice(), ())).collect();
        let mut differences = Vec::new();
        for entry in came {
            gone.remove(entry.path.as_slice());
            let is_same = self.sent.get(&entry.path) == Some(&Mark::of(&entry.node));
            let is_above = is_directory(&entry) && !self.masked.contains(&entry.path);
            if !is_same && (is_above || !is_masked(&entry.path)) {
                differences.push(Difference::Now(entry));
            }
        }
        let gone = gone.into_keys().filter(|path| !is_masked(path));
        differences.extend(gone.map(|path| Difference::Gone(path.to_vec())));
        differences
    }
}

/// Whether a path is another one or lies below it.
fn is_within(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Writes differences as an overlay's upper directory.
pub(crate) fn write_upper(
    upper: &OwnedFd,
    staged: &Staged,
    differences: &[Difference],
) -> io::Result<()> {
    for difference in differences {
        match difference {
            Difference::Now(entry) => place(upper, entry)?,
            Difference::Gone(path) => whiteout(upper, path)?,
        }
    }
    set_modes(upper, differences)?;
    // Directories that only lead to a difference are as they were.
    for (path, mark) in staged.sent.iter().rev() {
        let Mark::Directory(mode) = mark else { continue };
        let leads = |difference: &Difference| {
            let changed = match difference {
                Difference::Now(entry) => &entry.path,
                Difference::Gone(path) => path,
            };
            changed != path && is_within(changed, path)
        };
        let is_itself = |difference: &Difference| matches!(difference, Difference::Now(entry) if entry.path == *path);
        if differences.iter().any(leads) && !differences.iter().any(is_itself) {
            // What is gone itself has no permissions to keep.
            let Ok((folder, name)) = existing_parent(upper, path) else { continue };
            if let Ok(directory) = openat(&folder, name, directory_flags(), Mode::empty()) {
                fchmod(&directory, Mode::from_bits_truncate(*mode))?;
            }
        }
    }
    Ok(())
}

fn place(root: &OwnedFd, entry: &Entry) -> io::Result<()> {
    let (folder, name) = parent(root, &entry.path)?;
    match &entry.node {
        Node::Directory { .. } => make_directory(&folder, name),
        Node::Link { target } => Ok(symlinkat(OsStr::from_bytes(target), &folder, name)?),
        Node::File { mode, content } => {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&folder, name, flags, Mode::from_bits_truncate(0o600))?;
            let mut file = std::fs::File::from(file);
            io::Write::write_all(&mut file, content)?;
            Ok(fchmod(&file, Mode::from_bits_truncate(mode & 0o777))?)
        }
    }
}

/// A deleted name below a directory that is gone itself is told by the directory.
fn whiteout(root: &OwnedFd, path: &[u8]) -> io::Result<()> {
    let (folder, name) = match parent(root, path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(()),
        Err(error) => return Err(error),
    };
    match mknodat(&folder, name, FileType::CharacterDevice, Mode::empty(), 0) {
        // Something else lies there now, which hides what was below as well.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Directories get their permissions last, so that none stands in the way of writing.
fn set_modes(root: &OwnedFd, differences: &[Difference]) -> io::Result<()> {
    for difference in differences.iter().rev() {
        if let Difference::Now(Entry { path, node: Node::Directory { mode } }) = difference {
            let (folder, name) = parent(root, path)?;
            let directory = openat(&folder, name, directory_flags(), Mode::empty())?;
            fchmod(&directory, Mode::from_bits_truncate(mode & 0o777))?;
        }
    }
    Ok(())
}

/// Opens the directory of a path, making what is missing; never through a link.
fn parent<'a>(root: &OwnedFd, path: &'a [u8]) -> io::Result<(OwnedFd, &'a OsStr)> {
    let (folders, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (&[][..], path),
    };
    let mut at = root.as_fd().try_clone_to_owned()?;
    for segment in folders.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()) {
        let segment = OsStr::from_bytes(segment);
        make_directory(&at, segment)?;
        at = openat(&at, segment, directory_flags(), Mode::empty())?;
    }
    Ok((at, OsStr::from_bytes(name)))
}

fn make_directory(at: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match mkdirat(at, name, Mode::from_bits_truncate(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Brings differences straight into a workspace, for the mode that asks for that.
pub(crate) fn apply(workspace: &Path, differences: &[Difference]) -> io::Result<()> {
    let root = open(workspace, directory_flags(), Mode::empty())?;
    for difference in differences.iter().rev() {
        let path = match difference {
            // What was never sent stays, and keeps its directory.
            Difference::Gone(path) if is_directory(&root, path) => {
                let (folder, name) = existing_parent(&root, path)?;
                let _ = rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR);
                continue;
            }
            Difference::Gone(path) => path,
            Difference::Now(Entry { node: Node::Directory { .. }, path }) => {
                // A directory stays where one is; anything else makes room.
                if is_directory(&root, path) {
                    continue;
                }
                path
            }
            Difference::Now(entry) => &entry.path,
        };
        remove(&root, path)?;
    }
    for difference in differences {
        if let Difference::Now(entry) = difference {
            place(&root, entry)?;
        }
    }
    set_modes(&root, differences)
}

fn is_directory(root: &OwnedFd, path: &[u8]) -> bool {
    let stat = existing_parent(root, path)
        .and_then(|(folder, name)| Ok(statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?));
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn existing_parent<'a>(root: &OwnedFd, path: &'a [u8]) -> io::Result<(OwnedFd, &'a OsStr)> {
    let (folders, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (&[][..], path),
    };
    let mut at = root.as_fd().try_clone_to_owned()?;
    for segment in folders.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()) {
        at = openat(&at, OsStr::from_bytes(segment), directory_flags(), Mode::empty())?;
    }
    Ok((at, OsStr::from_bytes(name)))
}

/// Removes what lies at a path, with everything below it; nothing there is fine.
fn remove(root: &OwnedFd, path: &[u8]) -> io::Result<()> {
    let (folder, name) = match existing_parent(root, path) {
        Ok(found) => found,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    remove_below(&folder, name)
}

fn remove_below(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    use rustix::fs::unlinkat;
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = openat(folder, name, directory_flags(), Mode::empty())?;
    let mut names = Vec::new();
    for entry in &mut Dir::read_from(&directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    for name in names {
        remove_below(&directory, OsStr::from_bytes(&name))?;
    }
    Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}

/// Makes a fresh directory of ours for what comes back.
pub(crate) fn fresh_directory(scratch: &Path, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
    use std::os::unix::fs::DirBuilderExt as _;
    let path = scratch.join(name);
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700);
    builder.recursive(true).create(scratch)?;
    builder.recursive(false).create(&path)?;
    let opened = openat(CWD, &path, directory_flags(), Mode::empty())?;
    Ok((path, opened))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_masked_link_leads_to_does_not_leave_this_machine() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("vault")).unwrap();
        for name in ["real", "plain", "vault/key", "a.pem"] {
            fs::write(at(name), "content").unwrap();
        }
        symlink("real", at(".env")).unwrap();
        symlink("vault", at("private")).unwrap();
        fs::hard_link(at("a.pem"), at("other")).unwrap();
        let masks = [".env", "private/", "*.{pem,key}"].map(str::to_owned);
        let (entries, _) = collect(directory.path(), &masks).unwrap();
        let has_content = |entry: &&Entry| matches!(&entry.node, Node::File { content, .. } if !content.is_empty());
        let sent: Vec<&[u8]> =
            entries.iter().filter(has_content).map(|entry| entry.path.as_slice()).collect();
        assert_eq!(sent, [b"plain"]);
    }
}
