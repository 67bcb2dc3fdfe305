//! Paths inside a workspace: bytes, relative, without any way up, and the names that mean `.git`.
//!
//! A [`TreePath`] says nothing about what lies on the disk; whoever opens it does so by descriptor
//! and without following links.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

/// A relative path of any bytes: no leading slash, no empty, `.` or `..` segment, no NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreePath(Arc<[u8]>);

/// Why bytes are not a path inside a workspace.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("path {0} must be relative and stay below the workspace")]
pub struct InvalidPath(pub String);

impl TreePath {
    /// Returns the path with these bytes.
    ///
    /// # Errors
    /// [`InvalidPath`] when it is empty, absolute, climbs, or has an empty or `.` segment.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, InvalidPath> {
        let bytes = bytes.into();
        let is_inside = |segment: &[u8]| !matches!(segment, b"" | b"." | b"..");
        if bytes.contains(&0) || !bytes.split(|byte| *byte == b'/').all(is_inside) {
            return Err(InvalidPath(quoted(&bytes)));
        }
        Ok(Self(bytes.into()))
    }

    /// Returns this path with one more segment, as read from a directory.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        Self([&self.0, b"/".as_slice(), name].concat().into())
    }

    /// Returns a path of one segment, as read from a directory.
    pub(crate) fn segment(name: &[u8]) -> Self {
        Self(name.into())
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for file system calls.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns the segments from the top.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// Returns the last segment.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Returns the path without its last segment; `None` at the top.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.parent_bytes().map(|bytes| Self(bytes.into()))
    }

    /// Returns the bytes of the path without its last segment.
    pub(crate) fn parent_bytes(&self) -> Option<&[u8]> {
        self.0.get(..self.0.iter().rposition(|byte| *byte == b'/')?)
    }

    /// Returns how many segments it has.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.segments().count()
    }

    /// Returns whether `self` is `above` or lies below it.
    #[must_use]
    pub fn is_within(&self, above: &Self) -> bool {
        self.0.strip_prefix(above.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    }

    /// Returns the part up to and with the first segment that some file system reads as `.git`.
    #[must_use]
    pub fn git_part(&self) -> Option<Self> {
        let mut end = 0;
        for segment in self.segments() {
            end += segment.len();
            if is_git_name(segment) {
                return self.0.get(..end).map(|bytes| Self(bytes.into()));
            }
            end += 1;
        }
        None
    }

    /// Returns the bytes folded so that names a case-insensitive disk confuses are equal.
    pub(crate) fn folded(&self) -> Vec<u8> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => text.to_lowercase().into_bytes(),
            Err(_) => self.0.to_ascii_lowercase(),
        }
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&self.0))
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Returns bytes of a name as text for people: as they are if printable, else git's quoted form.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() || c == '"') => text.to_owned(),
        _ => c_quoted(bytes),
    }
}

/// Returns the name as git writes it in a diff: in double quotes with octal escapes where needed.
pub(crate) fn c_quoted(bytes: &[u8]) -> String {
    let plain = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    if bytes.iter().all(|byte| plain(*byte)) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut text = String::with_capacity(bytes.len() + 8);
    text.push('"');
    for byte in bytes {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            byte if plain(*byte) => text.push(char::from(*byte)),
            byte => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}

/// Returns whether some file system we know of opens `.git` when asked for this name.
///
/// SECURITY: a name that is harmless here becomes `.git/config` on a disk that folds case,
/// ignores invisible code points (HFS+), trailing dots, spaces, streams and short names (NTFS).
#[must_use]
pub fn is_git_name(segment: &[u8]) -> bool {
    segment.split(|byte| *byte == b'\\').any(is_git_piece)
}

fn is_git_piece(piece: &[u8]) -> bool {
    let visible: Vec<u8> = match std::str::from_utf8(piece) {
        Ok(text) => {
            text.chars().filter(|c| !is_ignored_on_hfs(*c)).collect::<String>().into_bytes()
        }
        Err(_) => piece.to_vec(),
    };
    let lower = visible.to_ascii_lowercase();
    let stem = lower.split(|byte| *byte == b':').next().unwrap_or_default();
    let end = stem.iter().rposition(|byte| !matches!(byte, b'.' | b' ')).map_or(0, |at| at + 1);
    match stem.get(..end) {
        Some(b".git") => true,
        Some([b'g', b'i', b't', b'~', digits @ ..]) => {
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        }
        Some(_) | None => false,
    }
}

const fn is_ignored_on_hfs(c: char) -> bool {
    matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn climbing_and_absolute_paths_are_no_tree_paths() {
        for bad in ["", "/a", "a/", "a//b", ".", "./a", "a/./b", "..", "a/../b", "a\0b"] {
            assert!(TreePath::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "..a", "a..", "...", "-x", " ", "a\nb"] {
            assert!(TreePath::new(good).is_ok(), "{good:?}");
        }
        assert!(TreePath::new(vec![0xff, b'/', 0xfe]).is_ok());
    }

    #[test]
    fn dot_git_is_known_in_every_spelling() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git. .",
            ".git::$INDEX_ALLOCATION",
            "git~1",
            "GIT~2",
            ".g\u{200c}it",
            "\u{feff}.git",
            "a\\.git",
            ".GIT\\config",
        ] {
            assert!(is_git_name(name.as_bytes()), "{name:?}");
        }
        for name in [".gitignore", ".github", "git", "dot.git", ".git2", "git~", "x.git"] {
            assert!(!is_git_name(name.as_bytes()), "{name:?}");
        }
    }

    #[test]
    fn git_part_ends_at_the_first_git_segment() {
        let path = TreePath::new("a/.Git/hooks/x").unwrap();
        assert_eq!(path.git_part().unwrap().as_bytes(), b"a/.Git");
        assert_eq!(TreePath::new("a/b").unwrap().git_part(), None);
    }
}
