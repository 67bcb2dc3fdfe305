//! Applies a change to the files themselves, through the journal.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Read as _};
use std::path::Path;
use std::time::SystemTime;

use super::commits::OpenedCommits;
use super::{Change, Changed, PullError, PullOptions, is_plain};
use crate::export::ExportError;
use crate::export::git::GitRows;
use crate::export::root_owner;
use crate::gitstate::GitLocks;
use crate::journal::{ContentStore, Journal, JournalError, PathState, Prepared, Row, escaped};
use crate::object::{ObjectKind, Oid, object_hash, object_name};
use crate::raw::BaseFile;
use crate::root::{Node, Root};
use crate::walk::{GitNames, child_of, walk};
use crate::{FileMode, GitError, TreeLimits, TreePath, WalkError};

/// How an attempt to change the files ended.
pub(super) enum InPlace {
    Done(Vec<TreePath>),
    /// This file is not what the base says; nothing was changed.
    InTheWay(TreePath),
}

/// Changes the files, if every one of them is exactly what the base says.
pub(super) fn apply(
    top: &Path,
    change: &Change,
    journal: &Journal,
    options: &PullOptions<'_>,
) -> Result<InPlace, PullError> {
    apply_with(top, change, journal, (options, None))
}

/// As [`apply`], together with what the run committed.
pub(super) fn apply_with(
    top: &Path,
    change: &Change,
    journal: &Journal,
    (options, commits): (&PullOptions<'_>, Option<&OpenedCommits<'_>>),
) -> Result<InPlace, PullError> {
    let root = Root::open(top).map_err(PullError::Scratch)?;
    let deleted: HashSet<&TreePath> =
        change.files.iter().filter(|file| file.new.is_none()).map(|file| &file.path).collect();
    for file in &change.files {
        if !matches_base(&root, file, &deleted)? {
            return Ok(InPlace::InTheWay(file.path.clone()));
        }
    }
    let planned = match commits {
        Some(commits) => match commits.plan(&root)? {
            Some(planned) => Some(planned),
            None => return Ok(InPlace::InTheWay(TreePath::segment(b".git"))),
        },
        None => None,
    };
    let mut prepared = prepare(&root, change, journal, options)?;
    let mut locks = None;
    if let Some(planned) = planned {
        let refused = |error: ExportError| PullError::Commits(error.to_string());
        let changing = planned.rows.iter().map(|row| &row.path);
        let held = GitLocks::acquire(&root, prepared.store.path(), changing);
        locks = Some(held.map_err(|error| PullError::Commits(error.to_string()))?);
        let mut git = GitRows { lower: &root, upper: &root, store: &mut prepared.store };
        let objects = git.objects(planned.objects).map_err(refused)?;
        let rows = git.rows(planned.rows).map_err(refused)?;
        prepared.objects.extend(objects);
        prepared.rows.extend(rows);
    }
    let paths = change.files.iter().map(|file| file.path.clone()).collect();
    journal.apply(&root, &format!("pull {}", options.run_id), prepared)?;
    drop(locks);
    Ok(InPlace::Done(paths))
}

pub(super) fn walk_error(path: &TreePath) -> impl FnOnce(io::Error) -> PullError {
    let fail = WalkError::at(Some(path));
    move |error| PullError::Journal(JournalError::Walk(fail(error)))
}

/// Returns whether the file on the disk is the base's, byte for byte.
fn matches_base(
    root: &Root,
    file: &Changed,
    deleted: &HashSet<&TreePath>,
) -> Result<bool, PullError> {
    let failed = || walk_error(&file.path);
    if [file.old, file.new].iter().flatten().any(|file| !is_plain(file)) {
        return Ok(false);
    }
    let now = match root.node(&file.path).map_err(failed())? {
        Node::Absent => None,
        Node::Special(_) => return Ok(false),
        Node::Directory(_) => {
            return Ok(file.old.is_none() && becomes_empty(root, &file.path, deleted)?);
        }
        Node::Link(_) => {
            let target = root.link(&file.path).map_err(failed())?;
            let oid = object_name(ObjectKind::Blob, &target);
            Some(BaseFile { mode: FileMode::Symlink, oid })
        }
        Node::File(_) => {
            let (mut content, facts) = root.file(&file.path).map_err(failed())?;
            let mut hash = object_hash(ObjectKind::Blob, facts.bytes);
            let mut buffer = vec![0; crate::blob::BUFFER_BYTES];
            loop {
                let count = content.read(&mut buffer).map_err(failed())?;
                let chunk = buffer.get(..count).unwrap_or_default();
                if chunk.is_empty() {
                    break;
                }
                sha1::Digest::update(&mut hash, chunk);
            }
            let oid = Oid::from_bytes(sha1::Digest::finalize(hash).into());
            Some(BaseFile { mode: FileMode::of_permissions(facts.permissions), oid })
        }
    };
    Ok(now == file.old)
}

/// Returns whether the change deletes everything in a directory, so that a file can take its place.
fn becomes_empty(
    root: &Root,
    top: &TreePath,
    deleted: &HashSet<&TreePath>,
) -> Result<bool, PullError> {
    let walked = walk(root, Some(top), &TreeLimits::generous(), GitNames::Enter)
        .map_err(|error| PullError::Journal(error.into()))?;
    let mut paths = walked.folders.iter().flat_map(|folder| {
        folder.files.iter().map(|file| child_of(folder.path.as_ref(), &file.name))
    });
    Ok(paths.all(|path| deleted.contains(&path)))
}

/// Stores the old and the new content of every file.
fn prepare(
    root: &Root,
    change: &Change,
    journal: &Journal,
    options: &PullOptions<'_>,
) -> Result<Prepared, PullError> {
    let mut store = journal.prepare()?;
    let mut rows = directories(root, change, &mut store, options)?;
    let made: HashSet<TreePath> = rows.iter().map(|row| row.path.clone()).collect();
    let wanted: Vec<BaseFile> = change.files.iter().filter_map(|file| file.new).collect();
    let input: String = wanted.iter().map(|file| format!("{}\n", file.oid.to_hex())).collect();
    let owner = root_owner(root).map_err(PullError::Scratch)?;
    let mtime = seconds(options);
    let call = change.repo.git("cat-file").args(["--batch"]);
    let stored = call.stream(input.into_bytes(), |stdout| {
        let mut stdout = io::BufReader::new(stdout);
        for file in &change.files {
            let before = store.keep(root, &file.path)?;
            let after = match file.new {
                None => PathState::Absent,
                Some(new) => {
                    let mut content = next_blob(&mut stdout)?;
                    let after = if new.mode == FileMode::Symlink {
                        let mut target = Vec::new();
                        content.read_to_end(&mut target)?;
                        PathState::Link { target: escaped(target), mtime, owner }
                    } else {
                        let (number, digest) = store.put(&mut content)?;
                        let mode = mode_after(&before, new.mode);
                        PathState::File { mode, mtime, owner, digest, content: Some(number) }
                    };
                    stdout.read_exact(&mut [0])?;
                    after
                }
            };
            // A file whose name becomes a directory has its row there.
            if !made.contains(&file.path) {
                rows.push(Row { path: file.path.clone(), before, after });
            }
        }
        Ok(())
    });
    stored.map_err(|error: GitError| PullError::Git(error))?;
    Ok(Prepared { store, rows, objects: Vec::new() })
}

/// Keeps the permissions a file had, but for what git says of executing.
fn mode_after(before: &PathState, mode: FileMode) -> u32 {
    let old = match before {
        PathState::File { mode, .. } => mode & 0o777,
        _ => 0o644,
    };
    if mode == FileMode::Executable { old | (old & 0o444) >> 2 } else { old & !0o111 }
}

/// Reads the head of the next blob and returns a reader of its content.
fn next_blob<R: io::BufRead>(stdout: &mut R) -> io::Result<io::Take<&mut R>> {
    let mut head = String::new();
    stdout.read_line(&mut head)?;
    let bytes = head.trim_end().rsplit(' ').next().and_then(|word| word.parse().ok());
    Ok(stdout.take(bytes.ok_or(io::ErrorKind::InvalidData)?))
}

/// Returns rows for the directories that must be made, and for those that nothing is left in.
///
/// One that turns out not to be empty stays; driving it away is not an error.
fn directories(
    root: &Root,
    change: &Change,
    store: &mut ContentStore,
    options: &PullOptions<'_>,
) -> Result<Vec<Row>, PullError> {
    let ancestors = |path: &TreePath| std::iter::successors(path.parent(), TreePath::parent);
    let files = |is_kept: bool| {
        change.files.iter().filter(move |file| file.new.is_some() == is_kept).map(|file| &file.path)
    };
    let owner = root_owner(root).map_err(PullError::Scratch)?;
    let wanted: BTreeSet<TreePath> = files(true).flat_map(ancestors).collect();
    let mut rows = Vec::new();
    for path in &wanted {
        if let Node::Directory(_) = root.node(path).map_err(walk_error(path))? {
            continue;
        }
        let before = store.keep(root, path).map_err(walk_error(path))?;
        let after = PathState::Directory { mode: 0o755, mtime: seconds(options), owner };
        rows.push(Row { path: path.clone(), before, after });
    }
    let kept: HashSet<&TreePath> = files(true).collect();
    let left: BTreeSet<TreePath> = files(false).flat_map(ancestors).collect();
    for path in left.into_iter().filter(|path| !wanted.contains(path) && !kept.contains(path)) {
        let before = store.keep(root, &path).map_err(walk_error(&path))?;
        if let PathState::Directory { .. } = before {
            rows.push(Row { path, before, after: PathState::Absent });
        }
    }
    Ok(rows)
}

fn seconds(options: &PullOptions<'_>) -> (i64, u32) {
    let since = options.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(0), since.subsec_nanos())
}
