//! Writes a plan by descriptor into a directory that was empty.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

use super::dirty::Dirty;
use super::plan::Plan;
use super::{MaterializeError, MaterializeOptions, Written, read_small};
use crate::blob::copy_hashed;
use crate::object::{FileMode, ObjectKind};
use crate::pack::Pack;
use crate::progress::{Phase, Step};
use crate::raw::BaseFile;
use crate::root::{Facts, Node, Root, node_at};
use crate::threads::{FEW_FILES, on_all_processors};
use crate::{BlobSource, PackError, TreePath};

/// Files of one directory.
type Batch<'a> = &'a [(TreePath, BaseFile)];

/// Makes every directory and writes the unchanged files of the base, on all processors unless there
/// are few.
pub(super) fn write(
    root: &Root,
    plan: &Plan,
    pack: &Pack,
    options: &MaterializeOptions<'_>,
) -> Result<HashMap<TreePath, Written>, MaterializeError> {
    for path in &plan.directories {
        let made = rustix::fs::mkdirat(root, path.as_path(), Mode::from_raw_mode(0o755));
        made.map_err(|error| failed(path)(error.into()))?;
    }
    let total = plan.base.len();
    let beside = |a: &(TreePath, _), b: &(TreePath, _)| a.0.parent_bytes() == b.0.parent_bytes();
    let batches: Mutex<Vec<Batch<'_>>> =
        Mutex::new(plan.base.chunk_by(beside).flat_map(|files| files.chunks(256)).collect());
    let done = AtomicU64::new(0);
    let work = || -> Result<Vec<(TreePath, Written)>, MaterializeError> {
        let mut written = Vec::new();
        loop {
            let next = batches.lock().ok().and_then(|mut batches| batches.pop());
            let Some(files) = next else { return Ok(written) };
            write_batch(root, files, pack, &mut written)?;
            let count = files.len() as u64;
            let done = done.fetch_add(count, Ordering::Relaxed) + count;
            (options.progress)(Step { phase: Phase::Writing, done, total: Some(total as u64) });
        }
    };
    if total <= FEW_FILES {
        return Ok(work()?.into_iter().collect());
    }
    let mut written = HashMap::with_capacity(total);
    for result in on_all_processors(work) {
        let part = result.map_err(|_| MaterializeError::Scratch(io::ErrorKind::Other.into()))?;
        written.extend(part?);
    }
    Ok(written)
}

fn write_batch(
    root: &Root,
    files: Batch<'_>,
    pack: &Pack,
    written: &mut Vec<(TreePath, Written)>,
) -> Result<(), MaterializeError> {
    let directory = files.first().and_then(|(path, _)| path.parent());
    let at = root.directory(directory.as_ref()).map_err(|source| MaterializeError::Write {
        path: directory.as_ref().map_or_else(|| ".".into(), ToString::to_string),
        source,
    })?;
    for (path, base) in files {
        let facts = match base.mode {
            FileMode::Submodule => continue,
            FileMode::Symlink => {
                let target = pack.read(base.oid, ObjectKind::Blob)?;
                make_link(&at, path, &target)?
            }
            FileMode::Regular | FileMode::Executable => {
                let mut file = create(&at, path, base.mode)?;
                pack.copy_blob(base.oid, &mut file).map_err(|error| match error {
                    PackError::Io(source) => failed(path)(source),
                    error => MaterializeError::Pack(error),
                })?;
                facts_of(&file, path)?
            }
        };
        written.push((path.clone(), Written { file: *base, facts }));
    }
    Ok(())
}

/// Writes the files the dirty diff made, read from the scratch repository.
pub(super) fn write_dirty(
    root: &Root,
    plan: &Plan,
    dirty: &Dirty,
    written: &mut HashMap<TreePath, Written>,
) -> Result<(), MaterializeError> {
    let files: Vec<_> =
        plan.dirty.iter().filter(|(_, file)| file.mode != FileMode::Submodule).collect();
    if files.is_empty() {
        return Ok(());
    }
    let input: String = files.iter().map(|(_, file)| format!("{}\n", file.oid.to_hex())).collect();
    let mut failure = None;
    let streamed =
        dirty.repo.git("cat-file").args(["--batch"]).stream(input.into_bytes(), |stdout| {
            let mut stdout = io::BufReader::new(stdout);
            for (path, file) in &files {
                match write_from_batch(root, path, *file, &mut stdout) {
                    Ok(facts) => drop(written.insert(path.clone(), Written { file: *file, facts })),
                    Err(error) => {
                        failure = Some(error);
                        return Err(io::ErrorKind::Other.into());
                    }
                }
            }
            Ok(())
        });
    match failure {
        Some(error) => Err(error),
        None => streamed.map_err(MaterializeError::Dirty),
    }
}

fn write_from_batch(
    root: &Root,
    path: &TreePath,
    file: BaseFile,
    stdout: &mut impl io::BufRead,
) -> Result<Facts, MaterializeError> {
    let mut head = String::new();
    stdout.read_line(&mut head).map_err(MaterializeError::Scratch)?;
    let bytes = head.trim_end().rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
    let bytes =
        bytes.ok_or_else(|| MaterializeError::Scratch(io::ErrorKind::InvalidData.into()))?;
    let mut content = stdout.take(bytes);
    let at = root.directory(path.parent().as_ref()).map_err(failed(path))?;
    let facts = if file.mode == FileMode::Symlink {
        let target = read_small(&mut content, 1 << 16).map_err(failed(path))?;
        make_link(&at, path, &target)?
    } else {
        let mut sink = create(&at, path, file.mode)?;
        io::copy(&mut content, &mut sink).map_err(failed(path))?;
        facts_of(&sink, path)?
    };
    let mut newline = [0];
    stdout.read_exact(&mut newline).map_err(MaterializeError::Scratch)?;
    Ok(facts)
}

/// Fetches and writes the untracked files, hashing each on arrival.
pub(super) fn write_untracked(
    root: &Root,
    plan: &Plan,
    source: &dyn BlobSource,
    written: &mut HashMap<TreePath, Written>,
) -> Result<(), MaterializeError> {
    for (path, digest, bytes) in &plan.untracked {
        let fetch_failed = |source| MaterializeError::Fetch { digest: *digest, source };
        let at = root.directory(path.parent().as_ref()).map_err(failed(path))?;
        let mut reader = source.open(digest).map_err(fetch_failed)?.take(bytes.saturating_add(1));
        let mut sink = create(&at, path, FileMode::Regular)?;
        let stored = copy_hashed(&mut reader, &mut sink).map_err(fetch_failed)?;
        if stored.bytes != *bytes {
            return Err(MaterializeError::Size(path.clone()));
        }
        if stored.digest != *digest {
            return Err(MaterializeError::Digest { wanted: *digest, found: stored.digest });
        }
        sink.flush().map_err(failed(path))?;
        // Untracked files are in no base, so they are always read again when collecting.
        written.remove(path);
    }
    Ok(())
}

fn create(at: impl AsFd, path: &TreePath, mode: FileMode) -> Result<File, MaterializeError> {
    let permissions = if mode == FileMode::Executable { 0o755 } else { 0o644 };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, path.name(), flags, Mode::from_raw_mode(permissions))
        .map(File::from)
        .map_err(|error| failed(path)(error.into()))
}

fn make_link(at: &OwnedFd, path: &TreePath, target: &[u8]) -> Result<Facts, MaterializeError> {
    rustix::fs::symlinkat(target, at, path.name()).map_err(|error| failed(path)(error.into()))?;
    match node_at(at, path.name()).map_err(failed(path))? {
        Node::Link(facts) => Ok(facts),
        _ => Err(failed(path)(io::ErrorKind::InvalidData.into())),
    }
}

fn facts_of(file: &File, path: &TreePath) -> Result<Facts, MaterializeError> {
    let stat = rustix::fs::fstat(file).map_err(|error| failed(path)(error.into()))?;
    Ok(Facts::of(&stat))
}

fn failed(path: &TreePath) -> impl Fn(io::Error) -> MaterializeError + use<> {
    let path = path.to_string();
    move |source| MaterializeError::Write { path: path.clone(), source }
}
