//! Git objects: names, file modes, trees, and loose objects written by ourselves.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use thiserror::Error;
use warrant_protocol::Digest;

use crate::TreePath;
use crate::blob::{BUFFER_BYTES, StoredBlob, read_some};
use crate::path::{is_git_name, quoted};

/// The SHA-1 name of a git object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Oid([u8; 20]);

impl Oid {
    /// The name that stands for "no object" in a diff.
    pub(crate) const NULL: Self = Self([0; 20]);

    pub(crate) const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    /// Returns the raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    /// Returns the object name written as 40 lower-case hex digits, if that is what `text` is.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text
            .bytes()
            .map(|byte| match byte {
                b'0'..=b'9' => Some(byte - b'0'),
                b'a'..=b'f' => Some(byte - b'a' + 10),
                _ => None,
            })
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits
            .chunks_exact(2)
            .filter_map(|pair| match pair {
                [high, low] => Some(high << 4 | low),
                _ => None,
            })
            .collect();
        if digits.len() == 40 { bytes.try_into().ok().map(Self) } else { None }
    }

    /// Returns the 40 hex digits.
    #[must_use]
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// A map by object name.
pub(crate) type ByOid<T> = std::collections::HashMap<Oid, T, OidState>;

/// Hashes object names faster than the standard hasher: they are hashes already.
///
/// SECURITY: a pack's author chooses its objects and so, with effort, some bits of their names; a
/// secret of this process keeps them from choosing which of them meet in the map.
#[derive(Debug, Clone)]
pub(crate) struct OidState(u64);

impl Default for OidState {
    fn default() -> Self {
        use std::hash::BuildHasher as _;
        Self(std::hash::RandomState::new().hash_one(0_u8) | 1)
    }
}

impl std::hash::BuildHasher for OidState {
    type Hasher = OidHasher;

    fn build_hasher(&self) -> OidHasher {
        OidHasher { secret: self.0, value: 0 }
    }
}

/// Takes the bytes of one object name.
pub(crate) struct OidHasher {
    secret: u64,
    value: u64,
}

impl std::hash::Hasher for OidHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            let mixed = u128::from(self.value ^ u64::from_le_bytes(word) ^ self.secret)
                * u128::from(self.secret.rotate_left(32) | 1);
            let half = |value: u128| u64::try_from(value & u128::from(u64::MAX)).unwrap_or(0);
            self.value = half(mixed) ^ half(mixed >> 64);
        }
    }

    fn finish(&self) -> u64 {
        self.value
    }
}

/// What git knows of a file besides its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileMode {
    /// A file.
    Regular,
    /// A file its owner may execute.
    Executable,
    /// A symbolic link; its content is the target.
    Symlink,
    /// A commit of another repository.
    Submodule,
}

impl FileMode {
    /// Returns the octal text used in trees and diffs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "100644",
            Self::Executable => "100755",
            Self::Symlink => "120000",
            Self::Submodule => "160000",
        }
    }

    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_644,
            Self::Executable => 0o100_755,
            Self::Symlink => 0o120_000,
            Self::Submodule => 0o160_000,
        }
    }

    /// Returns the mode of a regular file with these permission bits.
    pub(crate) const fn of_permissions(permissions: u32) -> Self {
        if permissions & 0o100 == 0 { Self::Regular } else { Self::Executable }
    }
}

/// The four kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Commit,
    Tree,
    Blob,
    Tag,
}

impl ObjectKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }
}

/// Returns a hash that has taken the header of an object.
pub(crate) fn object_hash(kind: ObjectKind, bytes: u64) -> Sha1 {
    let mut hash = Sha1::new();
    hash.update(format!("{} {bytes}\0", kind.as_str()));
    hash
}

/// Returns the name of an object.
pub(crate) fn object_name(kind: ObjectKind, content: &[u8]) -> Oid {
    let mut hash = object_hash(kind, content.len() as u64);
    hash.update(content);
    Oid(hash.finalize().into())
}

/// One line of a tree object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TreeEntry {
    Directory { name: Vec<u8>, oid: Oid },
    File { name: Vec<u8>, mode: FileMode, oid: Oid },
}

/// Why a tree object is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidTree {
    /// The bytes are not a tree.
    #[error("a tree object is malformed")]
    Malformed,
    /// A name that may not be written.
    #[error("a tree names {0}, which may not be written")]
    Name(String),
}

/// Parses a tree object, refusing every name that may not be written to a disk.
pub(crate) fn parse_tree(mut rest: &[u8]) -> Result<Vec<TreeEntry>, InvalidTree> {
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (mode, after) = split_at_byte(rest, b' ').ok_or(InvalidTree::Malformed)?;
        let (name, after) = split_at_byte(after, 0).ok_or(InvalidTree::Malformed)?;
        let (oid, after) = after.split_first_chunk::<20>().ok_or(InvalidTree::Malformed)?;
        rest = after;
        // SECURITY: a tree that names `.git`, `..` or a path would write outside or plant config.
        if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || is_git_name(name) {
            return Err(InvalidTree::Name(quoted(name)));
        }
        let (name, oid) = (name.to_vec(), Oid(*oid));
        entries.push(match mode {
            b"40000" | b"040000" => TreeEntry::Directory { name, oid },
            b"100644" | b"100664" => TreeEntry::File { name, mode: FileMode::Regular, oid },
            b"100755" => TreeEntry::File { name, mode: FileMode::Executable, oid },
            b"120000" => TreeEntry::File { name, mode: FileMode::Symlink, oid },
            b"160000" => TreeEntry::File { name, mode: FileMode::Submodule, oid },
            _ => return Err(InvalidTree::Malformed),
        });
    }
    Ok(entries)
}

/// Returns the tree a commit names and its parents.
pub(crate) fn parse_commit(content: &[u8]) -> Option<(Oid, Vec<Oid>)> {
    let text = |line: &[u8]| std::str::from_utf8(line).ok().map(str::to_owned);
    let mut lines = content.split(|byte| *byte == b'\n');
    let tree = Oid::from_hex(text(lines.next()?)?.strip_prefix("tree ")?)?;
    let parents =
        lines.map_while(|line| Oid::from_hex(text(line)?.strip_prefix("parent ")?)).collect();
    Some((tree, parents))
}

fn split_at_byte(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == wanted)?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

/// A blob written as a loose object, with both of its hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrittenBlob {
    pub(crate) oid: Oid,
    pub(crate) stored: StoredBlob,
}

/// Copies a blob of `bytes` bytes and returns it with both of its hashes.
///
/// # Errors
/// When it cannot be read or written, or is not as long as was said.
pub(crate) fn copy_named(
    source: &mut dyn Read,
    bytes: u64,
    sink: &mut dyn Write,
) -> io::Result<WrittenBlob> {
    let mut name = object_hash(ObjectKind::Blob, bytes);
    let mut hash = Sha256::new();
    let most = usize::try_from(bytes).unwrap_or(BUFFER_BYTES).saturating_add(1);
    let mut buffer = vec![0; BUFFER_BYTES.min(most)];
    let mut seen = 0;
    loop {
        let count = read_some(source, &mut buffer)?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
        seen += count as u64;
        if seen > bytes {
            break;
        }
        name.update(chunk);
        hash.update(chunk);
        sink.write_all(chunk)?;
    }
    if seen != bytes {
        let changed = "the file changed while it was read";
        return Err(io::Error::new(io::ErrorKind::InvalidData, changed));
    }
    let digest = Digest::from_bytes(hash.finalize().into());
    Ok(WrittenBlob { oid: Oid(name.finalize().into()), stored: StoredBlob { digest, bytes } })
}

/// Writes loose objects into the `objects` directory of a repository of ours.
#[derive(Debug)]
pub(crate) struct LooseObjects<'a> {
    pub(crate) objects: &'a Path,
}

impl LooseObjects<'_> {
    /// Writes an object held in memory.
    pub(crate) fn write(&self, kind: ObjectKind, content: &[u8]) -> io::Result<Oid> {
        let oid = object_name(kind, content);
        let path = self.path_of(oid)?;
        if path.exists() {
            return Ok(oid);
        }
        let mut sink = ZlibEncoder::new(File::create(path)?, Compression::fast());
        sink.write_all(format!("{} {}\0", kind.as_str(), content.len()).as_bytes())?;
        sink.write_all(content)?;
        sink.finish()?;
        Ok(oid)
    }

    /// Writes a blob of `bytes` bytes from `source`; a source of another length is an error.
    pub(crate) fn write_blob(&self, source: &mut dyn Read, bytes: u64) -> io::Result<WrittenBlob> {
        let mut temporary = tempfile::NamedTempFile::new_in(self.objects)?;
        let mut sink = ZlibEncoder::new(BufWriter::new(&mut temporary), Compression::fast());
        sink.write_all(format!("blob {bytes}\0").as_bytes())?;
        let written = copy_named(source, bytes, &mut sink)?;
        sink.finish()?.flush()?;
        temporary.persist(self.path_of(written.oid)?)?;
        Ok(written)
    }

    fn path_of(&self, oid: Oid) -> io::Result<std::path::PathBuf> {
        let hex = oid.to_hex();
        let (directory, name) = hex.split_at(2);
        let directory = self.objects.join(directory);
        match fs::create_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(directory.join(name))
    }
}

/// Takes objects of a repository of ours.
pub(crate) trait ObjectSink {
    /// Writes an object held in memory.
    fn write(&mut self, kind: ObjectKind, content: &[u8]) -> io::Result<Oid>;
}

impl ObjectSink for LooseObjects<'_> {
    fn write(&mut self, kind: ObjectKind, content: &[u8]) -> io::Result<Oid> {
        Self::write(self, kind, content)
    }
}

/// Writes the trees that hold exactly these files and returns the top one.
pub(crate) fn write_tree(
    sink: &mut dyn ObjectSink,
    files: &[(&TreePath, FileMode, Oid)],
) -> io::Result<Oid> {
    let mut rows: Vec<(&[u8], FileMode, Oid)> =
        files.iter().map(|(path, mode, oid)| (path.as_bytes(), *mode, *oid)).collect();
    rows.sort_by(|a, b| a.0.cmp(b.0));
    write_subtree(sink, &rows)
}

fn write_subtree(sink: &mut dyn ObjectSink, rows: &[(&[u8], FileMode, Oid)]) -> io::Result<Oid> {
    let mut lines: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut rest = rows;
    while let Some((path, mode, oid)) = rest.first() {
        let Some((name, _)) = split_at_byte(path, b'/') else {
            lines.push((path.to_vec(), tree_line(mode.as_str(), path, *oid)));
            rest = rest.get(1..).unwrap_or_default();
            continue;
        };
        let is_below = |row: &(&[u8], FileMode, Oid)| {
            row.0.strip_prefix(name).is_some_and(|tail| tail.starts_with(b"/"))
        };
        let below: Vec<_> = rest
            .iter()
            .take_while(|row| is_below(row))
            .filter_map(|(path, mode, oid)| Some((path.get(name.len() + 1..)?, *mode, *oid)))
            .collect();
        let oid = write_subtree(sink, &below)?;
        lines.push(([name, b"/"].concat(), tree_line("40000", name, oid)));
        rest = rest.get(below.len()..).unwrap_or_default();
    }
    lines.sort();
    let content: Vec<u8> = lines.into_iter().flat_map(|(_, line)| line).collect();
    sink.write(ObjectKind::Tree, &content)
}

fn tree_line(mode: &str, name: &[u8], oid: Oid) -> Vec<u8> {
    [mode.as_bytes(), b" ", name, b"\0", &oid.0].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_git_s_own() {
        assert_eq!(
            object_name(ObjectKind::Blob, b"original\n").to_hex(),
            "4b48deed3a433909bfd6b6ab3d4b91348b6af464"
        );
        assert_eq!(
            object_name(ObjectKind::Tree, b"").to_hex(),
            "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        );
    }

    #[test]
    fn tree_naming_dot_git_is_refused() {
        for name in [".git", ".GIT", "..", ".", "a/b", "git~1"] {
            let tree = tree_line("100644", name.as_bytes(), Oid::NULL);
            assert!(matches!(parse_tree(&tree), Err(InvalidTree::Name(_))), "{name}");
        }
        assert_eq!(parse_tree(b"100644 x"), Err(InvalidTree::Malformed));
    }
}
