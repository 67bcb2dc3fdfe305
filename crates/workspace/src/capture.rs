//! Captures a workspace: what of it travels, as blobs and a manifest, and what stays at home.
//!
//! Git reads the person's objects, a copy of the index and the files, but from a repository
//! directory of ours: config, hooks, filters and attributes of the workspace are never asked.

mod folder;
mod pack;
mod tracked;
mod untracked;

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use thiserror::Error;
use warrant_protocol::manifest::{ManifestVersion, UntrackedFile};
use warrant_protocol::{RelPath, WorkspaceManifest};

use crate::change::Diff;
use crate::discover::{DiscoverError, Repository};
use crate::git::ScratchRepo;
use crate::object::Oid;
use crate::progress::{Phase, Progress, Step};
use crate::root::Root;
use crate::{BlobSink, GitError, StoredBlob, TreePath, WalkError};

pub use folder::capture_folder;
use untracked::Sorter;

/// The patterns that are held back unless others are given.
pub const DEFAULT_DENY: [&str; 6] = [".env", ".env.*", "*.pem", "*.key", "id_rsa*", "id_ed25519*"];

/// How to capture.
#[derive(Clone, Copy)]
pub struct CaptureOptions<'a> {
    /// A directory of ours for scratch files.
    pub scratch: &'a Path,
    /// Patterns of untracked files that may travel.
    pub allow_untracked: &'a [String],
    /// Patterns of files that must not; they win over the allowed ones.
    pub deny_patterns: &'a [String],
    /// How much history travels.
    pub history: History,
    /// Told how far it is.
    pub progress: Progress<'a>,
}

/// How much of the repository's past travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// All of it, in a bundle any git can clone, as the reference does.
    ///
    /// Tracked files cannot be held back then; the report names those that match a deny pattern.
    Full,
    /// The one commit. Tracked files that match a deny pattern stay at home.
    Commit,
}

/// What was captured.
#[derive(Debug)]
pub struct Captured {
    /// The manifest; its blobs are in the sink.
    pub manifest: WorkspaceManifest,
    /// Tracked files that match a deny pattern: held back or, with full history, travelling.
    pub tracked_denied: Vec<TreePath>,
    /// Sentences the person should read.
    pub warnings: Vec<String>,
}

/// Why nothing was captured.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// This is no repository we can capture.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// A merge is not finished.
    #[error("{0} has unmerged changes; finish the merge first")]
    Unmerged(TreePath),
    /// The repository lacks history that was asked for.
    #[error(
        "the repository is shallow, so its full history cannot travel; capture the commit only"
    )]
    Shallow,
    /// A pattern is beyond what is matched.
    #[error("pattern {0} is too complex")]
    Pattern(String),
    /// Too many files would have to be held back one by one.
    #[error("{0} changed files are held back by patterns, more than can be left out of one diff")]
    TooManyDenied(usize),
    /// Git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The folder could not be walked.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A file could not be read.
    #[error("{path} could not be read")]
    Read {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A blob could not be stored or a scratch file failed.
    #[error("a blob could not be stored")]
    Store(#[source] io::Error),
}

/// Captures the repository that `path` is in.
///
/// Untracked files that are links, executable or named beyond what a manifest can say travel
/// inside the dirty diff. Ignored files never travel.
///
/// # Errors
/// [`CaptureError`] when the repository is of a kind that cannot travel or something fails.
pub fn capture(
    path: &Path,
    sink: &dyn BlobSink,
    options: &CaptureOptions<'_>,
) -> Result<Captured, CaptureError> {
    let repository = Repository::discover(path)?;
    if options.history == History::Full && repository.is_shallow {
        return Err(CaptureError::Shallow);
    }
    let repo = borrow(&repository, options.scratch).map_err(CaptureError::Store)?;
    if options.history == History::Commit {
        let head = format!("{}\n", repository.head.to_hex());
        fs::write(repo.path().join("shallow"), head).map_err(CaptureError::Store)?;
    }
    let job = Job { repository: &repository, repo: &repo, sink, options };
    let (bundled, rest) = std::thread::scope(|scope| {
        let bundler = scope.spawn(|| bundle(&job));
        let rest = capture_files(&job);
        (bundler.join(), rest)
    });
    let bundled = bundled.map_err(|_| CaptureError::Store(io::ErrorKind::Other.into()))??;
    let rest = rest?;
    assemble(repository.head, options, bundled, rest)
}

/// What every part of a capture needs.
struct Job<'a> {
    repository: &'a Repository,
    repo: &'a ScratchRepo,
    sink: &'a dyn BlobSink,
    options: &'a CaptureOptions<'a>,
}

/// The bundle and what was seen of the tracked files.
struct Bundled {
    bundle: StoredBlob,
    tracked_denied: Vec<TreePath>,
    submodules: Vec<TreePath>,
}

/// What was captured besides the bundle.
struct Files {
    dirty: Option<StoredBlob>,
    untracked: Vec<UntrackedFile>,
    denied: Vec<TreePath>,
    warnings: Vec<String>,
}

impl CaptureOptions<'_> {
    fn is_denied(&self, path: &TreePath) -> Result<bool, CaptureError> {
        matches_any(path, self.deny_patterns)
    }

    fn is_allowed(&self, path: &TreePath) -> Result<bool, CaptureError> {
        matches_any(path, self.allow_untracked)
    }
}

/// A name that is not text is matched with its bad bytes replaced, so `*.pem` still holds it back.
fn matches_any(path: &TreePath, patterns: &[String]) -> Result<bool, CaptureError> {
    let text = String::from_utf8_lossy(path.as_bytes());
    for pattern in patterns {
        let is_match = warrant_protocol::glob::matches_pattern(&text, pattern);
        if is_match.map_err(|_| CaptureError::Pattern(pattern.clone()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a repository of ours that sees the person's objects, index and files.
pub(crate) fn borrow(repository: &Repository, scratch: &Path) -> io::Result<ScratchRepo> {
    let repo = ScratchRepo::create(scratch)?
        .borrowing_objects(&repository.objects())
        .with_work_tree(&repository.top);
    fs::write(repo.path().join("HEAD"), format!("{}\n", repository.head.to_hex()))?;
    let index = repository.git_directory.join("index");
    copy_if_there(&index, &repo.path().join("index"))?;
    if let Ok(metadata) = fs::metadata(&index) {
        // Git takes a file for changed if its time is not older than the index; a copy with a
        // later time would hide what was written in the same second.
        let copy = fs::File::options().write(true).open(repo.path().join("index"))?;
        copy.set_modified(metadata.modified()?)?;
    }
    let exclude = repository.common_directory.join("info/exclude");
    copy_if_there(&exclude, &repo.path().join("info/exclude"))?;
    for entry in fs::read_dir(&repository.git_directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b"sharedindex.") {
            fs::copy(entry.path(), repo.path().join(entry.file_name()))?;
        }
    }
    Ok(repo)
}

fn copy_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::copy(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn bundle(job: &Job<'_>) -> Result<Bundled, CaptureError> {
    let Job { repository, repo, sink, options } = job;
    (options.progress)(Step { phase: Phase::Bundling, done: 0, total: None });
    if options.history == History::Commit {
        let listing = tracked::list(repo, repository.head)?;
        let tracked_denied = listing.denied(options)?;
        let bundle = pack::commit_bundle(job, &listing, &tracked_denied)?;
        return Ok(Bundled { bundle, tracked_denied, submodules: listing.submodules() });
    }
    // The list of files is read while git packs, so that it costs no extra time.
    let (listing, bundle) = std::thread::scope(|scope| {
        let listing = scope.spawn(|| tracked::list(repo, repository.head));
        let bundle = repo
            .git("bundle")
            .args(["create", "-q", "-", "HEAD"])
            .stream(Vec::new(), |stdout| sink.put(stdout));
        (listing.join(), bundle)
    });
    let listing = listing.map_err(|_| CaptureError::Store(io::ErrorKind::Other.into()))??;
    let tracked_denied = listing.denied(options)?;
    Ok(Bundled { bundle: bundle?, tracked_denied, submodules: listing.submodules() })
}

fn capture_files(job: &Job<'_>) -> Result<Files, CaptureError> {
    let Job { repository, repo, sink, options } = job;
    let root = Root::open(&repository.top).map_err(CaptureError::Store)?;
    let held_back = tracked::held_back_changes(job, &root)?;
    let mut sorter = Sorter::create(&root, *sink, options)?;
    for name in untracked::list(repo)? {
        sorter.sort(&name)?;
    }
    let (sorted, extra) = sorter.finish()?;
    let dirty = dirty_diff(job, &held_back.paths, extra.as_ref())?;
    let mut denied = sorted.denied;
    denied.extend(held_back.paths);
    let warnings = held_back.warnings.into_iter().chain(sorted.warnings).collect();
    Ok(Files { dirty, untracked: sorted.files, denied, warnings })
}

/// Stores the diff between the commit and the files, and what else travels in it.
fn dirty_diff(
    job: &Job<'_>,
    held_back: &[TreePath],
    extra: Option<&Diff>,
) -> Result<Option<StoredBlob>, CaptureError> {
    let mut pathspecs = Vec::new();
    if !held_back.is_empty() {
        pathspecs.push(os_string(b":/".to_vec()));
        let exclude = |path: &TreePath| [b":(top,literal,exclude)", path.as_bytes()].concat();
        pathspecs.extend(held_back.iter().map(|path| os_string(exclude(path))));
    }
    let call = job
        .repo
        .git("diff")
        .args(["--binary", "--no-ext-diff", "--no-textconv", "--no-color"])
        .args(["--ignore-submodules=all", "HEAD", "--"])
        .args(pathspecs);
    Ok(call.stream(Vec::new(), |stdout| {
        let extra: Box<dyn Read> = match extra {
            Some(diff) => Box::new(diff.reader()?),
            None => Box::new(io::empty()),
        };
        put_unless_empty(job.sink, &mut stdout.chain(extra))
    })?)
}

fn os_string(bytes: Vec<u8>) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes)
}

/// Stores what `source` yields, unless it yields nothing.
fn put_unless_empty(sink: &dyn BlobSink, source: &mut dyn Read) -> io::Result<Option<StoredBlob>> {
    let mut first = vec![0; 8192];
    let count = crate::blob::read_some(source, &mut first)?;
    if count == 0 {
        return Ok(None);
    }
    first.truncate(count);
    sink.put(&mut first.as_slice().chain(source)).map(Some)
}

fn assemble(
    head: Oid,
    options: &CaptureOptions<'_>,
    bundled: Bundled,
    files: Files,
) -> Result<Captured, CaptureError> {
    let mut warnings = files.warnings;
    let mut denied = files.denied;
    let names = names_of(&bundled.tracked_denied);
    match options.history {
        _ if bundled.tracked_denied.is_empty() => {}
        History::Full => warnings.push(format!(
            "tracked files match a deny pattern and travel with the full history: {names}"
        )),
        History::Commit => {
            denied.extend(bundled.tracked_denied.iter().cloned());
            warnings.push(format!(
                "tracked files match a deny pattern and stay at home (the repository's history may \
                 still hold them): {names}"
            ));
        }
    }
    if !bundled.submodules.is_empty() {
        let names = names_of(&bundled.submodules);
        warnings.push(format!("submodules travel as empty directories: {names}"));
    }
    denied.sort();
    denied.dedup();
    let mut denied_paths = Vec::with_capacity(denied.len());
    for path in &denied {
        match std::str::from_utf8(path.as_bytes())
            .ok()
            .and_then(|text| text.parse::<RelPath>().ok())
        {
            Some(path) => denied_paths.push(path),
            None => {
                warnings.push(format!("{path} stays at home; the manifest cannot say its name"))
            }
        }
    }
    let manifest = WorkspaceManifest {
        version: ManifestVersion::V1,
        base_ref: head.to_hex(),
        bundle_hash: bundled.bundle.digest,
        dirty_diff_hash: files.dirty.map(|dirty| dirty.digest),
        untracked_files: files.untracked,
        denied_patterns: options.deny_patterns.to_vec(),
        denied_paths,
    };
    Ok(Captured { manifest, tracked_denied: bundled.tracked_denied, warnings })
}

/// Returns at most a few names, for a sentence.
fn names_of(paths: &[TreePath]) -> String {
    const SHOWN: usize = 5;
    let mut names: Vec<String> = paths.iter().take(SHOWN).map(ToString::to_string).collect();
    if paths.len() > SHOWN {
        names.push(format!("and {} more", paths.len() - SHOWN));
    }
    names.join(", ")
}
