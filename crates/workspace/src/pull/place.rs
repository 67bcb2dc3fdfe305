//! Applies a change to the files themselves, through the journal.

use std::io::{self, Read as _};
use std::time::SystemTime;

use super::{Change, Changed, PullError, PullOptions, is_plain};
use crate::discover::Repository;
use crate::journal::{Journal, JournalError, PathState, Prepared, Row, escaped};
use crate::object::{ObjectKind, Oid, object_hash, object_name};
use crate::raw::BaseFile;
use crate::root::{Node, Root};
use crate::{FileMode, GitError, TreePath, WalkError};

/// How an attempt to change the files ended.
pub(super) enum InPlace {
    Done(Vec<TreePath>),
    /// This file is not what the base says; nothing was changed.
    InTheWay(TreePath),
}

/// Changes the files, if every one of them is exactly what the base says.
pub(super) fn apply(
    repository: &Repository,
    change: &Change,
    journal: &Journal,
    options: &PullOptions<'_>,
) -> Result<InPlace, PullError> {
    let root = Root::open(&repository.top).map_err(PullError::Scratch)?;
    for file in &change.files {
        let is_as_expected = matches_base(&root, file).map_err(walk_error(&file.path))?;
        if !is_as_expected {
            return Ok(InPlace::InTheWay(file.path.clone()));
        }
    }
    let prepared = prepare(&root, change, journal, options)?;
    let paths = change.files.iter().map(|file| file.path.clone()).collect();
    journal.apply(&root, &format!("pull {}", options.run_id), prepared)?;
    Ok(InPlace::Done(paths))
}

fn walk_error(path: &TreePath) -> impl FnOnce(io::Error) -> PullError {
    let fail = WalkError::at(Some(path));
    move |error| PullError::Journal(JournalError::Walk(fail(error)))
}

/// Returns whether the file on the disk is the base's, byte for byte.
fn matches_base(root: &Root, file: &Changed) -> io::Result<bool> {
    if [file.old, file.new].iter().flatten().any(|file| !is_plain(file)) {
        return Ok(false);
    }
    let now = match root.node(&file.path)? {
        Node::Absent => None,
        // Only an empty directory can be where a file should be, and that is left to the person.
        Node::Directory(_) | Node::Special(_) => return Ok(false),
        Node::Link(_) => {
            let oid = object_name(ObjectKind::Blob, &root.link(&file.path)?);
            Some(BaseFile { mode: FileMode::Symlink, oid })
        }
        Node::File(_) => {
            let (mut content, facts) = root.file(&file.path)?;
            let mut hash = object_hash(ObjectKind::Blob, facts.bytes);
            let mut buffer = vec![0; crate::blob::BUFFER_BYTES];
            loop {
                let count = content.read(&mut buffer)?;
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

/// Stores the old and the new content of every file.
fn prepare(
    root: &Root,
    change: &Change,
    journal: &Journal,
    options: &PullOptions<'_>,
) -> Result<Prepared, PullError> {
    let mut store = journal.prepare()?;
    let mut rows = parents(root, change, options)?;
    let wanted: Vec<BaseFile> = change.files.iter().filter_map(|file| file.new).collect();
    let input: String = wanted.iter().map(|file| format!("{}\n", file.oid.to_hex())).collect();
    let owner = crate::export::root_owner(root).map_err(PullError::Scratch)?;
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
            rows.push(Row { path: file.path.clone(), before, after });
        }
        Ok(())
    });
    stored.map_err(|error: GitError| PullError::Git(error))?;
    Ok(Prepared { store, rows })
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

/// Returns rows for the directories that must be made, or go because nothing is left in them.
fn parents(root: &Root, change: &Change, options: &PullOptions<'_>) -> Result<Vec<Row>, PullError> {
    let mut rows: Vec<Row> = Vec::new();
    let owner = crate::export::root_owner(root).map_err(PullError::Scratch)?;
    let mtime = seconds(options);
    let mut seen = std::collections::HashSet::new();
    for file in change.files.iter().filter(|file| file.new.is_some()) {
        for path in std::iter::successors(file.path.parent(), TreePath::parent) {
            if !seen.insert(path.clone()) {
                break;
            }
            if root.node(&path).map_err(walk_error(&path))? == Node::Absent {
                let after = PathState::Directory { mode: 0o755, mtime, owner };
                rows.push(Row { path, before: PathState::Absent, after });
            }
        }
    }
    Ok(rows)
}

fn seconds(options: &PullOptions<'_>) -> (i64, u32) {
    let since = options.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(0), since.subsec_nanos())
}
