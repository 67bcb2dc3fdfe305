//! Reads the copied index, and finds which tracked files may have changed without starting git.
//!
//! This only ever saves a question: a file that is not certainly as the index and the commit say
//! is asked of git. Whatever an index may hold that only git should judge (an unfinished merge,
//! hidden entries, a shared index) makes the answer "ask about everything".

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::tracked::{Listed, Listing};
use crate::object::Oid;
use crate::raw::BaseFile;
use crate::root::{Facts, Node, Root, node_at};
use crate::{FileMode, TreePath};

/// A larger index is left to git.
const MAX_BYTES: u64 = 256 << 20;

/// An index all of whose entries are plain.
#[derive(Debug)]
pub(super) struct Index {
    entries: Vec<Entry>,
    /// The tree that git found the whole index to be, when it last wrote one.
    tree: Option<Oid>,
    /// The modification time of the index file.
    written_at: (i64, u32),
}

#[derive(Debug)]
struct Entry {
    path: TreePath,
    file: BaseFile,
    /// Change time, modification time, device, inode, mode, owner, group and size.
    stat: [u32; 10],
}

impl Index {
    /// Reads an index; `None` when there is none, or one that only git should judge.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let metadata = file.metadata()?;
        if metadata.len() > MAX_BYTES {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        let nanoseconds = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
        Ok(parse(&bytes, (metadata.mtime(), nanoseconds)))
    }

    /// Returns what the commit holds, if this index is known to be exactly its tree.
    pub(super) fn listing_of(&self, tree: Oid) -> Option<Listing> {
        let listed = |entry: &Entry| Listed {
            path: entry.path.clone(),
            oid: entry.file.oid,
            mode: Some(entry.file.mode),
        };
        (self.tree == Some(tree)).then(|| Listing(self.entries.iter().map(listed).collect()))
    }

    /// Returns the tracked files that are not certainly as the commit has them.
    pub(super) fn suspects(&self, root: &Root, listing: &Listing) -> io::Result<Vec<TreePath>> {
        let mut suspects = self.differing(listing);
        let mut directory: Option<(Option<TreePath>, Option<std::os::fd::OwnedFd>)> = None;
        for entry in &self.entries {
            if entry.file.mode == FileMode::Submodule {
                continue;
            }
            let parent = entry.path.parent();
            if directory.as_ref().is_none_or(|(open, _)| *open != parent) {
                // SECURITY: a directory that became a link is not looked through.
                let opened = root.directory(parent.as_ref()).ok();
                directory = Some((parent, opened));
            }
            let at = directory.as_ref().and_then(|(_, opened)| opened.as_ref());
            let node = match at {
                Some(at) => node_at(at, entry.path.name())?,
                None => Node::Absent,
            };
            if !self.is_untouched(entry, &node) {
                suspects.insert(entry.path.clone());
            }
        }
        Ok(suspects.into_iter().collect())
    }

    /// Returns the paths at which the index and the commit differ.
    fn differing(&self, listing: &Listing) -> HashSet<TreePath> {
        let files = listing.0.iter().filter_map(|listed| {
            let file = BaseFile { mode: listed.mode?, oid: listed.oid };
            Some((&listed.path, file))
        });
        let mut committed: HashMap<&TreePath, BaseFile> = files.collect();
        let mut differing = HashSet::new();
        for entry in &self.entries {
            if committed.remove(&entry.path) != Some(entry.file) {
                differing.insert(entry.path.clone());
            }
        }
        differing.extend(committed.into_keys().cloned());
        differing
    }

    /// Returns whether nothing happened to a file since the index was written.
    fn is_untouched(&self, entry: &Entry, node: &Node) -> bool {
        let facts = match (node, entry.file.mode) {
            (Node::File(facts), FileMode::Regular | FileMode::Executable)
                if FileMode::of_permissions(facts.permissions) == entry.file.mode =>
            {
                facts
            }
            (Node::Link(facts), FileMode::Symlink) => facts,
            _ => return false,
        };
        entry.has_stat(facts) && !self.is_recent(facts.mtime)
    }

    /// Returns whether a file was written so shortly before the index that a write after it might
    /// carry the same time.
    fn is_recent(&self, mtime: (i64, u32)) -> bool {
        // File systems without fractions of a second may round to two of them.
        let margin_ns = if mtime.1 == 0 { 2_000_000_000 } else { 20_000_000 };
        let ns = |time: (i64, u32)| i128::from(time.0) * 1_000_000_000 + i128::from(time.1);
        ns(mtime) + margin_ns >= ns(self.written_at)
    }
}

impl Entry {
    fn has_stat(&self, facts: &Facts) -> bool {
        let low = |value: u64| (value & 0xffff_ffff) as u32;
        let [ctime, ctime_ns, mtime, mtime_ns, _, inode, _, uid, gid, bytes] = self.stat;
        ctime == low(facts.ctime.0.cast_unsigned())
            && ctime_ns == facts.ctime.1
            && mtime == low(facts.mtime.0.cast_unsigned())
            && mtime_ns == facts.mtime.1
            && inode == low(facts.inode)
            && (uid, gid) == (facts.uid, facts.gid)
            && bytes == low(facts.bytes)
    }
}

/// A place in the bytes of an index.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn short(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Takes up to a byte and passes over it.
    fn until(&mut self, end: u8) -> Option<&'a [u8]> {
        let at = self.0.iter().position(|byte| *byte == end)?;
        let taken = self.take(at)?;
        self.take(1)?;
        Some(taken)
    }

    /// Takes git's number of variable length.
    fn number(&mut self) -> Option<usize> {
        let [mut byte] = self.array()?;
        let mut value = usize::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            [byte] = self.array()?;
            value =
                value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
        }
        Some(value)
    }
}

fn parse(bytes: &[u8], written_at: (i64, u32)) -> Option<Index> {
    const CHECKSUM_BYTES: usize = 20;
    let end = bytes.len().checked_sub(CHECKSUM_BYTES)?;
    let mut rest = Bytes(bytes.get(..end)?);
    if rest.take(4)? != b"DIRC" {
        return None;
    }
    let version = rest.word().filter(|version| (2..=4).contains(version))?;
    let count = rest.word()?;
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..count {
        let before = entries.last().map_or(&[][..], |entry| entry.path.as_bytes());
        let entry = parse_entry(&mut rest, version, before)?;
        entries.push(entry);
    }
    let tree = parse_extensions(rest)?;
    Some(Index { entries, tree, written_at })
}

/// Reads one entry; `None` when it is hidden, unmerged, promised, or a whole directory.
fn parse_entry(rest: &mut Bytes<'_>, version: u32, before: &[u8]) -> Option<Entry> {
    const PLAIN_FLAGS: u16 = 0x0fff;
    let start = rest.0.len();
    let mut stat = [0; 10];
    for word in &mut stat {
        *word = rest.word()?;
    }
    let oid = Oid::from_bytes(rest.array()?);
    if rest.short()? & !PLAIN_FLAGS != 0 {
        return None;
    }
    let path = if version == 4 {
        let kept = before.len().checked_sub(rest.number()?)?;
        [before.get(..kept)?, rest.until(0)?].concat()
    } else {
        let path = rest.until(0)?.to_vec();
        let taken = start - rest.0.len();
        rest.take((8 - taken % 8) % 8)?;
        path
    };
    let [.., mode, _, _, _] = stat;
    let mode = match mode {
        0o100_644 => FileMode::Regular,
        0o100_755 => FileMode::Executable,
        0o120_000 => FileMode::Symlink,
        0o160_000 => FileMode::Submodule,
        _ => return None,
    };
    Some(Entry { path: TreePath::new(path).ok()?, file: BaseFile { mode, oid }, stat })
}

/// Returns the tree the whole index is, if it says so; `None` for an extension that changes what
/// the entries mean.
fn parse_extensions(mut rest: Bytes<'_>) -> Option<Option<Oid>> {
    let mut tree = None;
    while !rest.0.is_empty() {
        let name: [u8; 4] = rest.array()?;
        let length = usize::try_from(rest.word()?).ok()?;
        let mut content = Bytes(rest.take(length)?);
        match &name {
            b"TREE" => {
                let is_top = content.until(0)?.is_empty();
                let is_valid = !content.until(b' ')?.starts_with(b"-");
                content.until(b'\n')?;
                if is_top && is_valid {
                    tree = Some(Oid::from_bytes(content.array()?));
                }
            }
            // By git's rule a name in capitals may be passed over.
            [first, ..] if first.is_ascii_uppercase() => {}
            _ => return None,
        }
    }
    Some(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_index_is_left_to_git() {
        let whole = [b"DIRC\0\0\0\x02\0\0\0\0".as_slice(), &[0; 20]].concat();
        assert!(parse(&whole, (0, 0)).is_some());
        for cut in 0..whole.len() {
            assert!(parse(&whole[..cut], (0, 0)).is_none(), "{cut}");
        }
        let linked = [b"DIRC\0\0\0\x02\0\0\0\0link\0\0\0\0".as_slice(), &[0; 20]].concat();
        assert!(parse(&linked, (0, 0)).is_none(), "a shared index is git's to read");
    }
}
