//! Makes one git-format, binary-safe diff from old and new versions of files.
//!
//! Small files go through `git diff-tree` on two small trees in a scratch store of ours. A large
//! file is written as a literal binary patch by ourselves, streamed, so memory stays bounded.

mod literal;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use warrant_protocol::Digest;

use crate::blob::StoredBlob;
use crate::change::{Change, ChangeKind, Diff};
use crate::git::ScratchRepo;
use crate::object::{Oid, WrittenBlob, copy_named};
use crate::{FileMode, GitError, TreePath};

/// A file above this is not shown line by line.
pub(crate) const LARGE_BYTES: u64 = 8 << 20;

/// One side of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) mode: FileMode,
    pub(crate) oid: Oid,
    pub(crate) stored: StoredBlob,
}

/// A file with what it was and what it is.
#[derive(Debug)]
struct Row {
    path: TreePath,
    old: Option<Version>,
    new: Option<Version>,
}

/// Gathers versions, then writes the diff.
#[derive(Debug)]
pub(crate) struct Patcher {
    scratch: PathBuf,
    /// Made with the first version: of most runs there is none.
    repo: OnceLock<ScratchRepo>,
    rows: Vec<Row>,
}

impl Patcher {
    pub(crate) fn new(scratch: &Path) -> Self {
        Self { scratch: scratch.to_owned(), repo: OnceLock::new(), rows: Vec::new() }
    }

    fn repo(&self) -> io::Result<&ScratchRepo> {
        if let Some(repo) = self.repo.get() {
            return Ok(repo);
        }
        let repo = ScratchRepo::create(&self.scratch)?;
        fs::create_dir(repo.path().join("large"))?;
        Ok(self.repo.get_or_init(|| repo))
    }

    /// Stores a version of exactly `bytes` bytes.
    pub(crate) fn store(
        &self,
        mode: FileMode,
        source: &mut dyn Read,
        bytes: u64,
    ) -> io::Result<Version> {
        let WrittenBlob { oid, stored } = if bytes > LARGE_BYTES {
            self.store_large(source, bytes)?
        } else {
            self.repo()?.loose().write_blob(source, bytes)?
        };
        Ok(Version { mode, oid, stored })
    }

    /// Adds a file whose versions differ.
    pub(crate) fn add(&mut self, path: TreePath, old: Option<Version>, new: Option<Version>) {
        if old != new {
            self.rows.push(Row { path, old, new });
        }
    }

    /// Returns the changes and writes the diff.
    pub(crate) fn finish(mut self) -> Result<(Vec<Change>, Option<Diff>), GitError> {
        if self.rows.is_empty() {
            return Ok((Vec::new(), None));
        }
        self.rows.sort_by(|a, b| a.path.cmp(&b.path));
        let broken = |source| GitError::Io { command: "diff-tree", source };
        let mut file = tempfile::tempfile_in(&self.scratch).map_err(broken)?;
        let mut renames = HashMap::new();
        let is_small = |version: &Option<Version>| {
            version.is_none_or(|version| version.stored.bytes <= LARGE_BYTES)
        };
        let (small, large): (Vec<&Row>, Vec<&Row>) =
            self.rows.iter().partition(|row| is_small(&row.old) && is_small(&row.new));
        if !small.is_empty() {
            let old = self.tree(&small, |row| row.old).map_err(broken)?;
            let new = self.tree(&small, |row| row.new).map_err(broken)?;
            renames = self.renames(&small, &old, &new)?;
            let sink = file.try_clone().map_err(broken)?;
            self.repo()
                .map_err(broken)?
                .git("diff-tree")
                .args(["-r", "-p", "--binary", "--full-index", "-M100%", "--no-ext-diff"])
                .args(["--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"])
                .args([&old, &new])
                .run_into(sink)?;
        }
        file.seek(SeekFrom::End(0)).map_err(broken)?;
        for row in large {
            self.write_large(row, &mut file).map_err(broken)?;
        }
        let diff = Diff::of(file).map_err(broken)?;
        Ok((changes(self.rows, &renames), diff))
    }

    fn tree(&self, rows: &[&Row], side: impl Fn(&Row) -> Option<Version>) -> io::Result<String> {
        let files: Vec<_> = rows
            .iter()
            .filter_map(|row| side(row).map(|version| (&row.path, version.mode, version.oid)))
            .collect();
        Ok(self.repo()?.loose().write_tree(&files)?.to_hex())
    }

    /// Asks git which added file is which deleted one, when there can be any.
    fn renames(
        &self,
        rows: &[&Row],
        old: &str,
        new: &str,
    ) -> Result<HashMap<TreePath, TreePath>, GitError> {
        let gone: HashSet<Oid> = rows
            .iter()
            .filter(|row| row.new.is_none())
            .filter_map(|row| Some(row.old?.oid))
            .collect();
        let came =
            |row: &&Row| row.old.is_none() && row.new.is_some_and(|new| gone.contains(&new.oid));
        if !rows.iter().any(came) {
            return Ok(HashMap::new());
        }
        let raw = self
            .repo()
            .map_err(|source| GitError::Io { command: "diff-tree", source })?
            .git("diff-tree")
            .args(["-r", "--raw", "-z", "-M100%", "--diff-filter=R", old, new])
            .output()?;
        let mut fields = raw.split(|byte| *byte == 0).filter(|field| !field.is_empty());
        let mut renames = HashMap::new();
        while let (Some(_), Some(from), Some(to)) = (fields.next(), fields.next(), fields.next()) {
            if let (Ok(from), Ok(to)) = (TreePath::new(from), TreePath::new(to)) {
                renames.insert(to, from);
            }
        }
        Ok(renames)
    }

    fn large_path(&self, oid: Oid) -> io::Result<PathBuf> {
        Ok(self.repo()?.path().join("large").join(oid.to_hex()))
    }

    fn store_large(&self, source: &mut dyn Read, bytes: u64) -> io::Result<WrittenBlob> {
        let mut temporary = tempfile::NamedTempFile::new_in(self.repo()?.path().join("large"))?;
        let written = copy_named(source, bytes, &mut temporary)?;
        temporary.persist(self.large_path(written.oid)?)?;
        Ok(written)
    }

    fn write_large(&self, row: &Row, sink: &mut File) -> io::Result<()> {
        let mut sink = io::BufWriter::new(sink);
        let retyped = matches!((row.old, row.new), (Some(old), Some(new))
            if (old.mode == FileMode::Symlink) != (new.mode == FileMode::Symlink));
        if retyped {
            literal::write(&mut sink, &row.path, (row.old, None), None)?;
        }
        let content = match row.new {
            Some(new) => Some(self.content(new)?),
            None => None,
        };
        let old = row.old.filter(|_| !retyped);
        literal::write(&mut sink, &row.path, (old, row.new), content)?;
        sink.flush()
    }

    /// Opens the content of a stored version; small ones are asked from git.
    fn content(&self, version: Version) -> io::Result<Box<dyn Read>> {
        if version.stored.bytes > LARGE_BYTES {
            return Ok(Box::new(File::open(self.large_path(version.oid)?)?));
        }
        let hex = version.oid.to_hex();
        let content = self.repo()?.git("cat-file").args(["blob", &hex]).output();
        Ok(Box::new(io::Cursor::new(content.map_err(io::Error::other)?)))
    }
}

fn changes(rows: Vec<Row>, renames: &HashMap<TreePath, TreePath>) -> Vec<Change> {
    let moved: HashSet<&TreePath> = renames.values().collect();
    rows.into_iter()
        .filter(|row| row.new.is_some() || !moved.contains(&row.path))
        .filter_map(|row| {
            let kind = match (row.old, row.new) {
                (None, Some(_)) => match renames.get(&row.path) {
                    Some(from) => ChangeKind::Renamed { from: from.clone() },
                    None => ChangeKind::Added,
                },
                (Some(_), None) => ChangeKind::Deleted,
                (Some(old), Some(new)) => kind_of(old, new),
                (None, None) => return None,
            };
            let version = row.new.or(row.old)?;
            let deleted = StoredBlob { digest: Digest::DELETED, bytes: 0 };
            let StoredBlob { digest, bytes } = row.new.map_or(deleted, |new| new.stored);
            Some(Change { path: row.path, kind, mode: version.mode, digest, bytes })
        })
        .collect()
}

fn kind_of(old: Version, new: Version) -> ChangeKind {
    let is_link = |version: Version| version.mode == FileMode::Symlink;
    if is_link(old) != is_link(new) {
        ChangeKind::Retyped
    } else if old.oid == new.oid {
        ChangeKind::ModeChanged
    } else {
        ChangeKind::Modified
    }
}
