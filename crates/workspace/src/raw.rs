//! Reads git's raw list of changes.

use crate::TreePath;
use crate::object::{FileMode, Oid};

/// A file of a tree: what git knows of it besides its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseFile {
    pub(crate) mode: FileMode,
    pub(crate) oid: Oid,
}

/// Parses `git diff-index --raw -z`.
pub(crate) fn parse_raw(raw: &[u8]) -> Option<Vec<(TreePath, Option<BaseFile>)>> {
    let mut fields = raw.split(|byte| *byte == 0).filter(|field| !field.is_empty());
    let mut changes = Vec::new();
    while let Some(head) = fields.next() {
        let head = std::str::from_utf8(head).ok()?;
        let path = TreePath::new(fields.next()?).ok()?;
        let mut words = head.strip_prefix(':')?.split(' ');
        let mode = match words.nth(1)? {
            "000000" => None,
            "100644" => Some(FileMode::Regular),
            "100755" => Some(FileMode::Executable),
            "120000" => Some(FileMode::Symlink),
            "160000" => Some(FileMode::Submodule),
            _ => return None,
        };
        let oid = Oid::from_hex(words.nth(1)?)?;
        changes.push((path, mode.map(|mode| BaseFile { mode, oid })));
    }
    Some(changes)
}
