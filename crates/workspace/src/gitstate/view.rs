//! A git directory seen twice: as it is on the host, and as the run left it.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::time::Duration;

use crate::TreePath;
use crate::overlay::Scanned;
use crate::root::{Node, Root};

/// The two views of one workspace, with the moment the run started.
pub(crate) struct Views<'a> {
    pub(crate) lower: &'a Root,
    pub(crate) upper: &'a Root,
    rows: HashMap<&'a TreePath, &'a Scanned>,
    /// Since 1970; what the host changed after it was changed by somebody else.
    pub(crate) started_at: Option<Duration>,
}

/// What a view shows at a path that should hold a small file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SmallFile {
    Absent,
    Content(Vec<u8>),
    /// A link, a directory, a pipe, or more bytes than such a file has.
    NoFile,
}

impl SmallFile {
    pub(crate) fn content(self) -> Option<Vec<u8>> {
        match self {
            Self::Content(content) => Some(content),
            Self::Absent | Self::NoFile => None,
        }
    }
}

impl<'a> Views<'a> {
    pub(crate) fn new(
        lower: &'a Root,
        upper: &'a Root,
        rows: &'a [Scanned],
        started_at: Option<Duration>,
    ) -> Self {
        let rows = rows.iter().map(|row| (&row.path, row)).collect();
        Self { lower, upper, rows, started_at }
    }

    /// Returns whether the run touched a path.
    pub(crate) fn is_touched(&self, path: &TreePath) -> bool {
        self.rows.contains_key(path)
    }

    /// Reads a file as it is on the host.
    pub(crate) fn before(&self, path: &TreePath, most: u64) -> io::Result<SmallFile> {
        let node = self.lower.node(path)?;
        read_small(self.lower, path, node, most)
    }

    /// Reads a file as the run left it.
    pub(crate) fn after(&self, path: &TreePath, most: u64) -> io::Result<SmallFile> {
        match self.rows.get(path) {
            Some(row) => read_small(self.upper, path, row.after, most),
            None => self.before(path, most),
        }
    }

    /// Returns whether somebody changed a file of the host since the run started.
    pub(crate) fn is_changed_since(&self, path: &TreePath) -> io::Result<bool> {
        let Some(started_at) = self.started_at else { return Ok(false) };
        let ctime = match self.lower.node(path)? {
            Node::File(facts) | Node::Link(facts) => facts.ctime,
            Node::Absent | Node::Directory(_) | Node::Special(_) => return Ok(false),
        };
        let time = u64::try_from(ctime.0).map(|seconds| Duration::new(seconds, ctime.1));
        Ok(time.is_ok_and(|time| time > started_at))
    }
}

fn read_small(root: &Root, path: &TreePath, node: Node, most: u64) -> io::Result<SmallFile> {
    match node {
        Node::Absent => Ok(SmallFile::Absent),
        Node::File(facts) if facts.bytes <= most => {
            let (file, _) = root.file(path)?;
            let mut content = Vec::with_capacity(usize::try_from(facts.bytes).unwrap_or(0));
            file.take(most.saturating_add(1)).read_to_end(&mut content)?;
            let is_small = content.len() as u64 <= most;
            Ok(if is_small { SmallFile::Content(content) } else { SmallFile::NoFile })
        }
        Node::File(_) | Node::Directory(_) | Node::Link(_) | Node::Special(_) => {
            Ok(SmallFile::NoFile)
        }
    }
}
