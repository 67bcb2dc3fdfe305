//! Contents of a change, copied out of the workspace before anything in it is touched.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use warrant_protocol::Digest;

use super::state::{Escaped, Owner, PathState};
use crate::TreePath;
use crate::blob::{copy_hashed, copy_sparse};
use crate::root::{Facts, Node, Root};

/// A directory with numbered contents.
#[derive(Debug)]
pub(crate) struct ContentStore {
    path: PathBuf,
    count: u64,
}

impl ContentStore {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().mode(0o700).create(path)?;
        fs::DirBuilder::new().mode(0o700).create(path.join("content"))?;
        Ok(Self { path: path.to_path_buf(), count: 0 })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure everything stored is on the disk.
    pub(crate) fn seal(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.path)?)?)
    }

    /// Returns what lies at `path`, with its content copied here.
    pub(crate) fn keep(&mut self, root: &Root, path: &TreePath) -> io::Result<PathState> {
        let node = root.node(path)?;
        self.keep_node(root, path, node)
    }

    /// Stores content that is in no workspace yet and returns its number and digest.
    pub(crate) fn put(&mut self, source: &mut dyn io::Read) -> io::Result<(u64, Digest)> {
        let number = self.count;
        self.count += 1;
        let mut copy =
            File::options().write(true).create_new(true).open(content_path(&self.path, number))?;
        Ok((number, copy_hashed(source, &mut copy)?.digest))
    }

    /// Returns what a node is, with its content copied here.
    pub(crate) fn keep_node(
        &mut self,
        root: &Root,
        path: &TreePath,
        node: Node,
    ) -> io::Result<PathState> {
        let Node::File(_) = node else { return state_of(root, path, node) };
        let (mut file, facts) = root.file(path)?;
        let number = self.count;
        self.count += 1;
        let digest = self.copy(&mut file, number)?;
        Ok(file_state(&facts, digest, Some(number)))
    }

    /// Copies a file here, sharing its blocks where the file system can.
    fn copy(&self, file: &mut File, number: u64) -> io::Result<Digest> {
        let mut copy = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(content_path(&self.path, number))?;
        if rustix::fs::ioctl_ficlone(&copy, &*file).is_ok() {
            return Ok(copy_hashed(&mut copy, &mut io::sink())?.digest);
        }
        Ok(copy_sparse(file, &mut copy)?.digest)
    }
}

/// Returns where a content of an entry lies.
pub(crate) fn content_path(entry: &Path, number: u64) -> PathBuf {
    entry.join("content").join(number.to_string())
}

/// Returns what lies at `path` without keeping its content.
pub(crate) fn look(root: &Root, path: &TreePath) -> io::Result<PathState> {
    let node = root.node(path)?;
    let Node::File(_) = node else { return state_of(root, path, node) };
    let (mut file, facts) = root.file(path)?;
    let digest = copy_hashed(&mut file, &mut io::sink())?.digest;
    Ok(file_state(&facts, digest, None))
}

fn file_state(facts: &Facts, digest: Digest, content: Option<u64>) -> PathState {
    let (mode, mtime) = (facts.permissions, facts.mtime);
    PathState::File { mode, mtime, owner: owner(facts), digest, content }
}

fn state_of(root: &Root, path: &TreePath, node: Node) -> io::Result<PathState> {
    Ok(match node {
        Node::Absent => PathState::Absent,
        Node::Directory(facts) => PathState::Directory {
            mode: facts.permissions,
            mtime: facts.mtime,
            owner: owner(&facts),
        },
        Node::Link(facts) => PathState::Link {
            target: Escaped(root.link(path)?),
            mtime: facts.mtime,
            owner: owner(&facts),
        },
        Node::File(_) | Node::Special(_) => PathState::Special,
    })
}

pub(crate) const fn owner(facts: &Facts) -> Owner {
    (facts.uid, facts.gid)
}
