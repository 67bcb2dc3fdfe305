//! Makes one git-format, binary-safe diff from old and new versions of files.
//!
//! Small files go into one pack of a scratch repository of ours, then through `git diff-tree` on
//! two trees. A large file is written as a literal binary patch by ourselves, streamed, so memory
//! stays bounded.

mod literal;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use warrant_protocol::Digest;

use crate::blob::StoredBlob;
use crate::change::{Change, ChangeKind, Diff};
use crate::git::ScratchRepo;
use crate::object::{Oid, WrittenBlob, copy_named, write_tree};
use crate::pack::PackWriter;
use crate::progress::Stop;
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
    repo: Option<PatchRepo>,
    rows: Vec<Row>,
}

/// The scratch repository and the pack it gets.
#[derive(Debug)]
struct PatchRepo {
    git: ScratchRepo,
    pack: PackWriter,
}

impl Patcher {
    pub(crate) fn new(scratch: &Path) -> Self {
        Self { scratch: scratch.to_owned(), repo: None, rows: Vec::new() }
    }

    fn repo(&mut self) -> io::Result<&mut PatchRepo> {
        if self.repo.is_none() {
            let git = ScratchRepo::create(&self.scratch)?;
            fs::create_dir(git.path().join("large"))?;
            let pack = PackWriter::create(&git.path().join("objects"))?;
            self.repo = Some(PatchRepo { git, pack });
        }
        self.repo.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Stores a version of exactly `bytes` bytes.
    pub(crate) fn store(
        &mut self,
        mode: FileMode,
        source: &mut dyn Read,
        bytes: u64,
    ) -> io::Result<Version> {
        let repo = self.repo()?;
        let WrittenBlob { oid, stored } = if bytes > LARGE_BYTES {
            store_large(&repo.git, source, bytes)?
        } else {
            repo.pack.add_blob(source, bytes)?
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
    pub(crate) fn finish(
        mut self,
        stop: Stop<'_>,
    ) -> Result<(Vec<Change>, Option<Diff>), GitError> {
        let Some(PatchRepo { git, mut pack }) = self.repo.take() else {
            return Ok((Vec::new(), None));
        };
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
        let old = tree(&mut pack, &small, |row| row.old).map_err(broken)?;
        let new = tree(&mut pack, &small, |row| row.new).map_err(broken)?;
        pack.finish().map_err(broken)?;
        if !small.is_empty() {
            renames = find_renames(&git, &small, [&old, &new], stop)?;
            let sink = file.try_clone().map_err(broken)?;
            git.git("diff-tree")
                .args(["-r", "-p", "--binary", "--full-index", "-M100%", "--no-ext-diff"])
                .args(["--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"])
                .args([&old, &new])
                .run_into(sink, stop)?;
        }
        file.seek(SeekFrom::End(0)).map_err(broken)?;
        for row in large {
            write_large(&git, row, &mut Stoppable { sink: &mut file, stop }).map_err(broken)?;
        }
        let diff = Diff::of(file).map_err(broken)?;
        Ok((changes(self.rows, &renames), diff))
    }
}

fn tree(
    pack: &mut PackWriter,
    rows: &[&Row],
    side: impl Fn(&Row) -> Option<Version>,
) -> io::Result<String> {
    let files: Vec<_> = rows
        .iter()
        .filter_map(|row| side(row).map(|version| (&row.path, version.mode, version.oid)))
        .collect();
    Ok(write_tree(pack, &files)?.to_hex())
}

/// Asks git which added file is which deleted one, when there can be any.
fn find_renames(
    git: &ScratchRepo,
    rows: &[&Row],
    trees: [&str; 2],
    stop: Stop<'_>,
) -> Result<HashMap<TreePath, TreePath>, GitError> {
    let gone: HashSet<Oid> =
        rows.iter().filter(|row| row.new.is_none()).filter_map(|row| Some(row.old?.oid)).collect();
    let came = |row: &&Row| row.old.is_none() && row.new.is_some_and(|new| gone.contains(&new.oid));
    if stop() || !rows.iter().any(came) {
        return Ok(HashMap::new());
    }
    let raw = git
        .git("diff-tree")
        .args(["-r", "--raw", "-z", "-M100%", "--diff-filter=R"])
        .args(trees)
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

fn large_path(git: &ScratchRepo, oid: Oid) -> PathBuf {
    git.path().join("large").join(oid.to_hex())
}

fn store_large(git: &ScratchRepo, source: &mut dyn Read, bytes: u64) -> io::Result<WrittenBlob> {
    let mut temporary = tempfile::NamedTempFile::new_in(git.path().join("large"))?;
    let written = copy_named(source, bytes, &mut temporary)?;
    temporary.persist(large_path(git, written.oid))?;
    Ok(written)
}

fn write_large(git: &ScratchRepo, row: &Row, sink: &mut impl io::Write) -> io::Result<()> {
    let mut sink = io::BufWriter::new(sink);
    let retyped = matches!((row.old, row.new), (Some(old), Some(new))
        if (old.mode == FileMode::Symlink) != (new.mode == FileMode::Symlink));
    if retyped {
        literal::write(&mut sink, &row.path, (row.old, None), None)?;
    }
    let content = match row.new {
        Some(new) => Some(content(git, new)?),
        None => None,
    };
    let old = row.old.filter(|_| !retyped);
    literal::write(&mut sink, &row.path, (old, row.new), content)?;
    sink.flush()
}

/// Opens the content of a stored version; small ones are asked from git.
fn content(git: &ScratchRepo, version: Version) -> io::Result<Box<dyn Read>> {
    if version.stored.bytes > LARGE_BYTES {
        return Ok(Box::new(File::open(large_path(git, version.oid))?));
    }
    let hex = version.oid.to_hex();
    let content = git.git("cat-file").args(["blob", &hex]).output();
    Ok(Box::new(io::Cursor::new(content.map_err(io::Error::other)?)))
}

/// A sink that refuses to go on when it is told to stop.
struct Stoppable<'a> {
    sink: &'a mut File,
    stop: Stop<'a>,
}

impl io::Write for Stoppable<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.stop)() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.sink.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
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
