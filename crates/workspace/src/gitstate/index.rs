//! Reads the index that a run left, and writes the one the host gets.
//!
//! SECURITY: an index is believed in what it names and in nothing it remembers. Cached trees,
//! untracked caches and file system monitors are dropped, because they can hide changes; so is the
//! remembered state of every entry that the host's own index does not hold in the same form.

use std::collections::{HashMap, HashSet};

use sha1::{Digest as _, Sha1};

use crate::object::Oid;
use crate::{FileMode, TreePath};

/// A larger index is not read.
pub(super) const MOST_BYTES: u64 = 512 << 20;

const ASSUME_VALID: u16 = 0x8000;
const EXTENDED: u16 = 0x4000;
const SKIP_WORKTREE: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;
const CHECKSUM_BYTES: usize = 20;

/// One path of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) path: TreePath,
    /// 0, or the side of an unfinished merge.
    pub(crate) stage: u8,
    pub(crate) mode: FileMode,
    pub(crate) oid: Oid,
    /// Change time, modification time, device, inode, mode, owner, group and size.
    stat: [u32; 10],
    is_assumed_valid: bool,
    is_skipped: bool,
    is_intent: bool,
}

/// Why an index is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidIndex(pub(crate) &'static str);

impl IndexEntry {
    /// Returns the entry of a file of a commit, about which nothing is remembered.
    pub(crate) const fn of_file(path: TreePath, mode: FileMode, oid: Oid) -> Self {
        let stat = [0, 0, 0, 0, 0, 0, mode.bits(), 0, 0, 0];
        Self {
            path,
            stage: 0,
            mode,
            oid,
            stat,
            is_assumed_valid: false,
            is_skipped: false,
            is_intent: false,
        }
    }

    /// Returns whether both name the same content at the same place.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.key() == other.key()
            && (self.mode, self.oid, self.is_intent) == (other.mode, other.oid, other.is_intent)
    }

    /// Returns whether its object must be there; a file that is only meant to be added has none.
    pub(crate) const fn names_content(&self) -> bool {
        !self.is_intent
    }

    fn key(&self) -> (&[u8], u8) {
        (self.path.as_bytes(), self.stage)
    }
}

/// Parses an index of version 2, 3 or 4.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<IndexEntry>, InvalidIndex> {
    let end = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(InvalidIndex("it is cut"))?;
    let (content, sum) = bytes.split_at_checked(end).ok_or(InvalidIndex("it is cut"))?;
    let expected: [u8; 20] = Sha1::digest(content).into();
    // Zeros stand for "no checksum", with `index.skipHash`.
    if sum != expected && sum != [0; CHECKSUM_BYTES] {
        return Err(InvalidIndex("its checksum is wrong"));
    }
    let mut rest = IndexBytes(content);
    let version = rest.header().ok_or(InvalidIndex("it has no header"))?;
    let count = rest.word().ok_or(InvalidIndex("it is cut"))?;
    let mut entries: Vec<IndexEntry> = Vec::new();
    for _ in 0..count {
        let before = entries.last();
        let entry = rest.entry(version, before.map_or(&[][..], |entry| entry.path.as_bytes()))?;
        if before.is_some_and(|before| before.key() >= entry.key()) {
            return Err(InvalidIndex("its entries are not in order"));
        }
        entries.push(entry);
    }
    rest.extensions()?;
    Ok(entries)
}

struct IndexBytes<'a>(&'a [u8]);

impl<'a> IndexBytes<'a> {
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

    fn until_zero(&mut self) -> Option<&'a [u8]> {
        let at = self.0.iter().position(|byte| *byte == 0)?;
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

    fn header(&mut self) -> Option<u32> {
        let is_index = self.take(4)? == b"DIRC";
        self.word().filter(|version| is_index && (2..=4).contains(version))
    }

    fn entry(&mut self, version: u32, before: &[u8]) -> Result<IndexEntry, InvalidIndex> {
        let (entry, path) = self.raw_entry(version, before).ok_or(InvalidIndex("it is cut"))?;
        let path = TreePath::new(path).map_err(|_| InvalidIndex("a path leaves the work tree"))?;
        // SECURITY: git would write such an entry into its own directory.
        if path.git_part().is_some() {
            return Err(InvalidIndex("an entry names a git directory"));
        }
        let [.., mode, _, _, _] = entry.stat;
        let mode = match mode {
            0o100_644 => FileMode::Regular,
            0o100_755 => FileMode::Executable,
            0o120_000 => FileMode::Symlink,
            0o160_000 => FileMode::Submodule,
            0o040_000 => return Err(InvalidIndex("it is sparse")),
            _ => return Err(InvalidIndex("an entry has an unknown mode")),
        };
        Ok(IndexEntry {
            path,
            stage: u8::try_from((entry.flags >> 12) & 3).unwrap_or(0),
            mode,
            oid: entry.oid,
            stat: entry.stat,
            is_assumed_valid: entry.flags & ASSUME_VALID != 0,
            is_skipped: entry.extended & SKIP_WORKTREE != 0,
            is_intent: entry.extended & INTENT_TO_ADD != 0,
        })
    }

    fn raw_entry(&mut self, version: u32, before: &[u8]) -> Option<(RawEntry, Vec<u8>)> {
        let start = self.0.len();
        let mut stat = [0; 10];
        for word in &mut stat {
            *word = self.word()?;
        }
        let oid = Oid::from_bytes(self.array()?);
        let flags = self.short()?;
        let extended = match flags & EXTENDED {
            0 => 0,
            _ if version >= 3 => self.short()?,
            _ => return None,
        };
        let path = if version == 4 {
            let kept = before.len().checked_sub(self.number()?)?;
            [before.get(..kept)?, self.until_zero()?].concat()
        } else {
            let path = self.until_zero()?.to_vec();
            let taken = start - self.0.len();
            self.take((8 - taken % 8) % 8)?;
            path
        };
        Some((RawEntry { stat, oid, flags, extended }, path))
    }

    /// Passes over extensions; one that changes what the entries mean makes the index invalid.
    fn extensions(mut self) -> Result<(), InvalidIndex> {
        while !self.0.is_empty() {
            let name: [u8; 4] = self.array().ok_or(InvalidIndex("it is cut"))?;
            let length = self.word().and_then(|length| usize::try_from(length).ok());
            length.and_then(|length| self.take(length)).ok_or(InvalidIndex("it is cut"))?;
            match &name {
                b"link" => return Err(InvalidIndex("it is split")),
                [first, ..] if first.is_ascii_uppercase() => {}
                _ => return Err(InvalidIndex("it has an unknown extension")),
            }
        }
        Ok(())
    }
}

struct RawEntry {
    stat: [u32; 10],
    oid: Oid,
    flags: u16,
    extended: u16,
}

/// Returns whether two indexes name the same.
pub(crate) fn names_same(one: &[IndexEntry], other: &[IndexEntry]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_same(other))
}

/// Returns whether two index files name the same, whatever else they remember.
pub(crate) fn names_same_bytes(one: &[u8], other: &[u8]) -> bool {
    match (parse(one), parse(other)) {
        (Ok(one), Ok(other)) => names_same(&one, &other),
        _ => one == other,
    }
}

/// Takes away what an index of a run remembers, unless the host's own index says the same.
pub(crate) fn distrust(entries: &mut [IndexEntry], host: &[IndexEntry]) {
    let known: HashMap<(TreePath, u8), &IndexEntry> =
        host.iter().map(|entry| ((entry.path.clone(), entry.stage), entry)).collect();
    for entry in entries {
        let key = (entry.path.clone(), entry.stage);
        let same = known.get(&key).filter(|known| known.is_same(entry));
        match same {
            Some(known) => {
                entry.stat = known.stat;
                entry.is_assumed_valid = known.is_assumed_valid;
                entry.is_skipped = known.is_skipped;
            }
            None => {
                entry.stat = [0, 0, 0, 0, 0, 0, entry.mode.bits(), 0, 0, 0];
                entry.is_assumed_valid = false;
                entry.is_skipped = false;
            }
        }
    }
}

/// Returns the entries of one index that another does not have in the same form.
pub(crate) fn added<'a>(entries: &'a [IndexEntry], host: &[IndexEntry]) -> Vec<&'a IndexEntry> {
    let known: HashMap<(&[u8], u8), &IndexEntry> =
        host.iter().map(|entry| (entry.key(), entry)).collect();
    let is_new =
        |entry: &&IndexEntry| !known.get(&entry.key()).is_some_and(|known| known.is_same(entry));
    entries.iter().filter(is_new).collect()
}

/// Returns whether some added path is a directory of another one.
pub(crate) fn has_file_as_directory(entries: &[IndexEntry], added: &[&IndexEntry]) -> bool {
    let files: HashSet<&[u8]> = entries
        .iter()
        .filter(|entry| entry.stage == 0)
        .map(|entry| entry.path.as_bytes())
        .collect();
    added.iter().filter(|entry| entry.stage == 0).any(|entry| {
        std::iter::successors(entry.path.parent(), TreePath::parent)
            .any(|above| files.contains(above.as_bytes()))
    })
}

/// Returns the bytes of an index file.
pub(crate) fn to_bytes(entries: &[IndexEntry]) -> Vec<u8> {
    let is_extended = |entry: &IndexEntry| entry.is_skipped || entry.is_intent;
    let version: u32 = if entries.iter().any(is_extended) { 3 } else { 2 };
    let mut bytes = Vec::with_capacity(32 + entries.len() * 96);
    bytes.extend_from_slice(b"DIRC");
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(entries.len()).unwrap_or(u32::MAX).to_be_bytes());
    for entry in entries {
        let start = bytes.len();
        for word in entry.stat {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        bytes.extend_from_slice(entry.oid.as_bytes());
        let length = u16::try_from(entry.path.as_bytes().len()).unwrap_or(u16::MAX).min(0xfff);
        let mut flags = length | u16::from(entry.stage) << 12;
        if entry.is_assumed_valid {
            flags |= ASSUME_VALID;
        }
        if is_extended(entry) {
            bytes.extend_from_slice(&(flags | EXTENDED).to_be_bytes());
            let skipped = if entry.is_skipped { SKIP_WORKTREE } else { 0 };
            let intent = if entry.is_intent { INTENT_TO_ADD } else { 0 };
            bytes.extend_from_slice(&(skipped | intent).to_be_bytes());
        } else {
            bytes.extend_from_slice(&flags.to_be_bytes());
        }
        bytes.extend_from_slice(entry.path.as_bytes());
        let padding = 8 - (bytes.len() - start) % 8;
        bytes.extend(std::iter::repeat_n(0, padding));
    }
    let sum: [u8; 20] = Sha1::digest(&bytes).into();
    bytes.extend_from_slice(&sum);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, byte: u8) -> IndexEntry {
        let path = TreePath::new(path).unwrap();
        IndexEntry::of_file(path, FileMode::Regular, Oid::from_bytes([byte; 20]))
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let mut entries = vec![entry("a", 1), entry("a/b", 2), entry("c", 3)];
        entries[1].is_intent = true;
        entries[2].stage = 2;
        assert_eq!(parse(&to_bytes(&entries)).unwrap(), entries);
    }

    #[test]
    fn index_naming_a_git_directory_or_leaving_the_work_tree_is_invalid() {
        for (path, why) in [
            (".git/config", "an entry names a git directory"),
            ("a/.GIT/hooks/x", "an entry names a git directory"),
            ("git~1/config", "an entry names a git directory"),
        ] {
            assert_eq!(parse(&to_bytes(&[entry(path, 1)])), Err(InvalidIndex(why)), "{path}");
        }
        let climbing = to_bytes(&[entry("xx/y", 1)]);
        let end = climbing.len() - CHECKSUM_BYTES;
        let mut content = climbing[..end].to_vec();
        let at = content.windows(4).position(|window| window == b"xx/y").unwrap();
        content[at..at + 2].copy_from_slice(b"..");
        let sum: [u8; 20] = Sha1::digest(&content).into();
        content.extend_from_slice(&sum);
        assert_eq!(parse(&content), Err(InvalidIndex("a path leaves the work tree")));
    }

    #[test]
    fn torn_or_unordered_index_is_invalid() {
        let whole = to_bytes(&[entry("a", 1), entry("b", 2)]);
        for cut in 0..whole.len() {
            assert!(parse(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(parse(&to_bytes(&[entry("b", 1), entry("a", 2)])).is_err());
        assert!(parse(&to_bytes(&[entry("a", 1), entry("a", 2)])).is_err());
    }

    #[test]
    fn remembered_state_of_a_run_is_dropped() {
        let mut run = vec![entry("a", 1), entry("b", 2)];
        for entry in &mut run {
            entry.stat[2] = 7;
            entry.is_assumed_valid = true;
            entry.is_skipped = true;
        }
        let mut host = vec![entry("a", 1), entry("b", 9)];
        host[0].stat[2] = 5;
        distrust(&mut run, &host);
        assert_eq!(run[0], host[0]);
        assert_eq!(run[1], entry("b", 2));
    }
}
