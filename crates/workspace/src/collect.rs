//! Finds what a session changed, by descriptor, and makes one diff of it.
//!
//! The session cannot influence how it is read: nothing of its `.git` is opened, what is compared
//! with lies outside its reach, no path is followed through a link, and everything is bounded.

use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use sha1::Digest as _;
use thiserror::Error;

use crate::blob::{BUFFER_BYTES, StoredBlob, read_some};
use crate::change::{Collected, Unread, WhyUnread};
use crate::materialize::{Checkout, Written};
use crate::object::{FileMode, ObjectKind, Oid, object_hash, object_name};
use crate::overlay::{self, OverlayError, Scanned};
use crate::patch::{LARGE_BYTES, Patcher, Version};
use crate::progress::{Phase, Progress, Step, Stop};
use crate::raw::BaseFile;
use crate::root::{Facts, Node, Root, node_at, open_regular};
use crate::threads::{FEW_FILES, on_all_processors};
use crate::walk::{Folder, GitNames, child_of, walk_open};
use crate::{GitError, LimitExceeded, PackError, TreeLimits, TreePath, WalkError};

/// How to collect.
#[derive(Clone, Copy)]
pub struct CollectOptions<'a> {
    /// A directory of ours for scratch files, which the session never saw.
    pub scratch: &'a Path,
    /// Bounds on what is read.
    pub limits: TreeLimits,
    /// Told how far it is.
    pub progress: Progress<'a>,
    /// Asked whether to read no further; what is left is reported as unread.
    pub stop: Stop<'a>,
    /// Shown every content that the diff is made from, what was and what is, because the diff
    /// holds both and may have them compressed.
    pub watch: Watch<'a>,
}

/// Is shown content, piece by piece.
pub type Watch<'a> = &'a (dyn Fn(&[u8]) + Sync);

/// A source whose content is shown while it is read, until it is to stop.
struct Watched<'a> {
    source: &'a mut dyn Read,
    watch: Watch<'a>,
    stop: Stop<'a>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.stop)() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let count = self.source.read(buffer)?;
        (self.watch)(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// How long making the diff may take once reading was stopped.
const FINISH_TIME: Duration = Duration::from_secs(5);

/// A file of at least this many bytes is looked at for holes before it is read.
const SPARSE_BYTES: u64 = 64 << 20;

/// Why nothing was collected.
#[derive(Debug, Error)]
pub enum CollectError {
    /// The tree could not be walked.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// The overlay could not be read.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The base could not be read back.
    #[error(transparent)]
    Base(#[from] PackError),
    /// The diff could not be made.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A scratch file failed.
    #[error("the scratch directory failed")]
    Scratch(#[source] io::Error),
}

impl From<LimitExceeded> for CollectError {
    fn from(limit: LimitExceeded) -> Self {
        Self::Walk(WalkError::Limit(limit))
    }
}

/// Collects what changed in a checkout since its base commit.
///
/// As on the wire, changes that came in with the dirty diff and untracked files are part of it.
/// Empty directories are not, because a git diff has no word for them.
///
/// # Errors
/// [`CollectError`] when a bound is passed or something cannot be read.
pub fn collect(
    checkout: &Checkout,
    options: &CollectOptions<'_>,
) -> Result<Collected, CollectError> {
    let walked = walk_open(&checkout.root, None, &options.limits, GitNames::Leave)?;
    let stamps = Stamps::of(checkout);
    let found = compare(checkout, &walked.folders, &stamps, options)?;
    let mut keeper = Keeper::new(options);
    let mut unread: Vec<Unread> = walked
        .git_names
        .iter()
        .filter(|path| path.as_bytes() != b".git")
        .map(|path| Unread { path: path.clone(), why: WhyUnread::GitName })
        .collect();
    let forbidden = |path: &TreePath| Unread { path: path.clone(), why: WhyUnread::Forbidden };
    unread.extend(walked.closed.iter().map(forbidden));
    let too_deep = |path: &TreePath| Unread { path: path.clone(), why: WhyUnread::TooDeep };
    unread.extend(walked.too_deep.iter().map(too_deep));
    let seen = walked.paths();
    let mut cut = None;
    let compared = found.len();
    for (done, Found { path, state }) in found.into_iter().enumerate() {
        match state {
            State::Same => {}
            State::Unread(why) => unread.push(Unread { path, why }),
            State::Different => match keeper.keep(&checkout.root, &path)? {
                Ok(new) => {
                    let old = keeper.old_version(checkout, &path)?;
                    keeper.patcher.add(path, old, Some(new));
                }
                Err(WhyUnread::OutOfTime { .. }) => {
                    cut = Some(cut_at(path, seen.len() - done - 1));
                    break;
                }
                Err(why) => unread.push(Unread { path, why }),
            },
        }
    }
    if cut.is_none() && compared < seen.len() {
        // Which files were left is known to the threads that compared; the count is enough.
        let first = seen.iter().min().cloned();
        cut = first.map(|path| cut_at(path, seen.len() - compared - 1));
    }
    // SECURITY: what lies in a closed or too deep directory is unknown; told as deleted, it would
    // be lost to whoever pulls the diff.
    let is_unknown = |path: &TreePath| {
        let hidden =
            |above: &TreePath| walked.closed.contains(above) || walked.too_deep.contains(above);
        let has_hidden = !walked.closed.is_empty() || !walked.too_deep.is_empty();
        has_hidden && std::iter::successors(path.parent(), TreePath::parent).any(|a| hidden(&a))
    };
    let gone = checkout.base.iter().filter(|(path, file)| {
        file.mode != FileMode::Submodule && !seen.contains(*path) && !is_unknown(path)
    });
    for (path, _) in gone {
        let old = keeper.old_version(checkout, path)?;
        keeper.patcher.add(path.clone(), old, None);
    }
    finish(keeper, unread, cut)
}

/// Says where reading was stopped, with how many paths after that one.
const fn cut_at(path: TreePath, left: usize) -> Unread {
    Unread { path, why: WhyUnread::OutOfTime { left: left as u64 } }
}

/// Collects what an overlay's upper directory changes in the directory below it.
///
/// `upper` is in the kernel's overlayfs format. Both are read by descriptor; neither is changed.
///
/// # Errors
/// [`CollectError`] when a bound is passed or something cannot be read.
pub fn collect_overlay(
    lower: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    options: &CollectOptions<'_>,
) -> Result<Collected, CollectError> {
    let lower = Root::duplicate(lower).map_err(CollectError::Scratch)?;
    let upper = Root::duplicate(upper).map_err(CollectError::Scratch)?;
    let scanned = overlay::scan(&lower, &upper, &options.limits, GitNames::Leave)?;
    let mut unread: Vec<Unread> = scanned
        .git_names
        .into_iter()
        .map(|path| Unread { path, why: WhyUnread::GitName })
        .collect();
    let too_deep = |path| Unread { path, why: WhyUnread::TooDeep };
    unread.extend(scanned.too_deep.into_iter().map(too_deep));
    let mut keeper = Keeper::new(options);
    let count = scanned.rows.len();
    let total = Some(count as u64);
    let mut cut = None;
    for (done, Scanned { path, before, after }) in scanned.rows.into_iter().enumerate() {
        let old = keeper.version(&lower, &path, before)?;
        let new = keeper.version(&upper, &path, after)?;
        match (old, new) {
            (Err(WhyUnread::OutOfTime { .. }), _) | (_, Err(WhyUnread::OutOfTime { .. })) => {
                cut = Some(cut_at(path, count - done - 1));
                break;
            }
            (_, Err(why)) => unread.push(Unread { path, why }),
            // What was not readable before is told as if it had not been there.
            (old, Ok(new)) => keeper.patcher.add(path, old.ok().flatten(), new),
        }
        (options.progress)(Step { phase: Phase::Comparing, done: done as u64, total });
    }
    finish(keeper, unread, cut)
}

/// Makes the diff. What was read before the stop is kept, if that takes no longer than
/// [`FINISH_TIME`].
fn finish(
    keeper: Keeper<'_>,
    mut unread: Vec<Unread>,
    cut: Option<Unread>,
) -> Result<Collected, CollectError> {
    let until = Instant::now() + FINISH_TIME;
    let is_over = || Instant::now() >= until;
    let (changes, diff) = match cut {
        None => keeper.patcher.finish(keeper.stop)?,
        Some(cut) => {
            unread.push(cut);
            keeper.patcher.finish(&is_over)?
        }
    };
    unread.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Collected { changes, unread, diff })
}

/// One path of the checkout, compared.
struct Found {
    path: TreePath,
    state: State,
}

enum State {
    Same,
    Different,
    Unread(WhyUnread),
}

/// Compares every file with the base, on all processors unless there are few.
fn compare(
    checkout: &Checkout,
    folders: &[Folder],
    stamps: &Stamps,
    options: &CollectOptions<'_>,
) -> Result<Vec<Found>, CollectError> {
    let total: usize = folders.iter().map(|folder| folder.files.len()).sum();
    let waiting: Mutex<Vec<(&Folder, &[crate::root::Listed])>> = Mutex::new(
        folders
            .iter()
            .flat_map(|folder| folder.files.chunks(256).map(move |files| (folder, files)))
            .collect(),
    );
    let work = || -> Result<Vec<Found>, CollectError> {
        let mut found = Vec::new();
        let buffer = Vec::new();
        let mut comparer = Comparer { checkout, stamps, limits: &options.limits, buffer };
        loop {
            let next = waiting.lock().ok().and_then(|mut waiting| waiting.pop());
            let Some((folder, files)) = next else { return Ok(found) };
            if (options.stop)() {
                return Ok(found);
            }
            let at = checkout.root.directory(folder.path.as_ref());
            let at = at.map_err(WalkError::at(folder.path.as_ref()))?;
            for file in files {
                let path = child_of(folder.path.as_ref(), &file.name);
                let state = match file.kind {
                    FileType::RegularFile => comparer.file(&at, &path),
                    FileType::Symlink => comparer.link(&at, &path),
                    _ => special(&at, &path),
                };
                let state = match state {
                    // SECURITY: one such file must not keep everything else from being collected.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        State::Unread(WhyUnread::Forbidden)
                    }
                    state => state.map_err(WalkError::at(Some(&path)))?,
                };
                found.push(Found { path, state });
            }
            (options.progress)(Step {
                phase: Phase::Comparing,
                done: found.len() as u64,
                total: Some(total as u64),
            });
        }
    };
    if total <= FEW_FILES {
        return work();
    }
    let mut found = Vec::with_capacity(total);
    for result in on_all_processors(work) {
        found.extend(result.map_err(|_| CollectError::Scratch(io::ErrorKind::Other.into()))??);
    }
    Ok(found)
}

/// Compares files of a checkout, one after the other.
struct Comparer<'a> {
    checkout: &'a Checkout,
    stamps: &'a Stamps,
    limits: &'a TreeLimits,
    buffer: Vec<u8>,
}

impl Comparer<'_> {
    fn file(&mut self, at: &OwnedFd, path: &TreePath) -> io::Result<State> {
        let base = self.checkout.base.get(path);
        let written = self.checkout.written.get(path).filter(|_| self.stamps.trusted);
        if let (Some(base), Some(written)) = (base, written)
            && let Node::File(facts) = node_at(at, path.name())?
            && self.stamps.unchanged(written, &facts)
        {
            return Ok(if written.file == *base { State::Same } else { State::Different });
        }
        let (mut file, facts) = open_regular(at, path.name())?;
        if facts.bytes > self.limits.file_bytes {
            return Ok(State::Unread(WhyUnread::TooLarge { bytes: facts.bytes }));
        }
        let Some(base) = base else { return Ok(State::Different) };
        let bytes = self.checkout.pack.stat(base.oid).map(|(_, bytes)| bytes);
        if base.mode != FileMode::of_permissions(facts.permissions) || bytes != Some(facts.bytes) {
            return Ok(State::Different);
        }
        let mut hash = object_hash(ObjectKind::Blob, facts.bytes);
        let mut left = facts.bytes;
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
        self.buffer.resize(self.buffer.len().max(room), 0);
        while left > 0 {
            let count = read_some(&mut file, &mut self.buffer)?;
            hash.update(self.buffer.get(..count).unwrap_or_default());
            match left.checked_sub(count as u64) {
                Some(rest) if count > 0 => left = rest,
                _ => return Ok(State::Different),
            }
        }
        let is_same = Oid::from_bytes(hash.finalize().into()) == base.oid;
        Ok(if is_same { State::Same } else { State::Different })
    }

    fn link(&self, at: &OwnedFd, path: &TreePath) -> io::Result<State> {
        let target = rustix::fs::readlinkat(at, path.name(), Vec::new())?;
        let oid = object_name(ObjectKind::Blob, target.to_bytes());
        let now = BaseFile { mode: FileMode::Symlink, oid };
        let is_same = self.checkout.base.get(path) == Some(&now);
        Ok(if is_same { State::Same } else { State::Different })
    }
}

fn special(at: &OwnedFd, path: &TreePath) -> io::Result<State> {
    match node_at(at, path.name())? {
        Node::Special(kind) => Ok(State::Unread(WhyUnread::Special(kind))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it changed while it was read")),
    }
}

/// Stores versions until the limit on bytes.
struct Keeper<'a> {
    patcher: Patcher,
    left: u64,
    limits: TreeLimits,
    watch: Watch<'a>,
    stop: Stop<'a>,
}

impl<'a> Keeper<'a> {
    fn new(options: &CollectOptions<'a>) -> Self {
        let patcher = Patcher::new(options.scratch);
        let CollectOptions { limits, watch, stop, .. } = *options;
        Self { patcher, left: limits.bytes, limits, watch, stop }
    }

    fn store(&mut self, mode: FileMode, source: &mut dyn Read, bytes: u64) -> io::Result<Version> {
        let mut source = Watched { source, watch: self.watch, stop: self.stop };
        self.patcher.store(mode, &mut source, bytes)
    }

    /// Stores what lies at `path`, which was a file or link a moment ago.
    fn keep(
        &mut self,
        root: &Root,
        path: &TreePath,
    ) -> Result<Result<Version, WhyUnread>, CollectError> {
        let node = root.node(path).map_err(WalkError::at(Some(path)))?;
        let changed = || io::Error::new(io::ErrorKind::InvalidData, "it changed while it was read");
        match self.version(root, path, node)? {
            Ok(Some(version)) => Ok(Ok(version)),
            Ok(None) => Err(WalkError::at(Some(path))(changed()).into()),
            Err(why) => Ok(Err(why)),
        }
    }

    /// Stores the version a node is, if it is a file or link that may be read.
    fn version(
        &mut self,
        root: &Root,
        path: &TreePath,
        node: Node,
    ) -> Result<Result<Option<Version>, WhyUnread>, CollectError> {
        if (self.stop)() {
            return Ok(Err(WhyUnread::OutOfTime { left: 0 }));
        }
        match node {
            Node::Absent | Node::Directory(_) => Ok(Ok(None)),
            Node::Special(kind) => Ok(Err(WhyUnread::Special(kind))),
            Node::Link(_) => {
                let target = root.link(path).map_err(WalkError::at(Some(path)))?;
                let bytes = target.len() as u64;
                let stored = self.store(FileMode::Symlink, &mut target.as_slice(), bytes);
                Ok(Ok(Some(stored.map_err(CollectError::Scratch)?)))
            }
            Node::File(facts) if facts.bytes > self.limits.file_bytes => {
                Ok(Err(WhyUnread::TooLarge { bytes: facts.bytes }))
            }
            Node::File(_) => {
                let (mut file, facts) = match root.file(path) {
                    // SECURITY: one such file must not keep everything else from being collected.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        return Ok(Err(WhyUnread::Forbidden));
                    }
                    opened => opened.map_err(WalkError::at(Some(path)))?,
                };
                if facts.bytes >= SPARSE_BYTES && is_mostly_holes(&file, facts.bytes) {
                    return Ok(Err(WhyUnread::Sparse { bytes: facts.bytes }));
                }
                let left = self.left.checked_sub(facts.bytes);
                self.left = left.ok_or(LimitExceeded::Bytes(self.limits.bytes))?;
                let mode = FileMode::of_permissions(facts.permissions);
                match self.store(mode, &mut file, facts.bytes) {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        Ok(Err(WhyUnread::OutOfTime { left: 0 }))
                    }
                    stored => Ok(Ok(Some(stored.map_err(WalkError::at(Some(path)))?))),
                }
            }
        }
    }

    /// Stores the base version of a path; of a large one only its name is needed.
    fn old_version(
        &mut self,
        checkout: &Checkout,
        path: &TreePath,
    ) -> Result<Option<Version>, CollectError> {
        let Some(base) = checkout.base.get(path) else { return Ok(None) };
        let (_, bytes) = checkout.pack.stat(base.oid).ok_or(PackError::Missing(base.oid))?;
        if bytes > LARGE_BYTES {
            let mut sink = Sha256Sink::default();
            checkout.pack.copy_blob(base.oid, &mut sink)?;
            let stored = StoredBlob { digest: sink.digest(), bytes };
            return Ok(Some(Version { mode: base.mode, oid: base.oid, stored }));
        }
        let content = checkout.pack.read(base.oid, ObjectKind::Blob)?;
        let version = self.store(base.mode, &mut content.as_ref().take(bytes), bytes);
        Ok(Some(version.map_err(CollectError::Scratch)?))
    }
}

/// Whether less than an eighth of a file is on the disk.
///
/// SECURITY: a program makes terabytes of holes for nothing; whoever reads them pays for each byte.
fn is_mostly_holes(file: &std::fs::File, bytes: u64) -> bool {
    let blocks = rustix::fs::fstat(file).ok().and_then(|stat| u64::try_from(stat.st_blocks).ok());
    blocks.is_some_and(|blocks| blocks.saturating_mul(512) < bytes / 8)
}

#[derive(Default)]
struct Sha256Sink(sha2::Sha256);

impl Sha256Sink {
    fn digest(self) -> warrant_protocol::Digest {
        warrant_protocol::Digest::from_bytes(self.0.finalize().into())
    }
}

impl io::Write for Sha256Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether times of the checkout's file system can stand for "nobody wrote this".
struct Stamps {
    trusted: bool,
    newest: (i64, u32),
}

impl Stamps {
    /// SECURITY: a session may set mtimes, but the change time is the kernel's. It is believed
    /// only on file systems that also move it for writes through a memory map (tmpfs does not).
    fn of(checkout: &Checkout) -> Self {
        const BELIEVED: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
        let kind = rustix::fs::fstatfs(&checkout.root).ok().map(|stat| stat.f_type);
        let newest = checkout.written.values().map(|written| written.facts.ctime).max();
        Self {
            trusted: kind.is_some_and(|kind| BELIEVED.contains(&kind)),
            newest: newest.unwrap_or_default(),
        }
    }

    /// Returns whether nothing happened to the file since it was written.
    ///
    /// Files of the last moments of writing are not believed: the clock of change times ticks
    /// slowly, and a write in the same tick would not show.
    fn unchanged(&self, written: &Written, now: &Facts) -> bool {
        const TICK_NS: i128 = 50_000_000;
        let ns = |time: (i64, u32)| i128::from(time.0) * 1_000_000_000 + i128::from(time.1);
        written.facts == *now && ns(self.newest) - ns(now.ctime) > TICK_NS
    }
}
