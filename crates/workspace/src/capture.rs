//! Captures a workspace: what of it travels, as blobs and a manifest, and what stays at home.
//!
//! Git reads the person's objects, a copy of the index and the files, but from a repository
//! directory of ours: config, hooks, filters and attributes of the workspace are never asked.

mod folder;
mod index;
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
use index::Index;
pub(crate) use pack::snapshot_commit;
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
    ///
    /// Its parents are missing, so only we materialize it.
    Commit,
    /// The files of the commit, under a commit of our making that has no parents; any git can
    /// clone it. Tracked files that match a deny pattern stay at home.
    ///
    /// The manifest's base is then that commit; [`crate::pull()`] finds the person's own again,
    /// unless files were held back: then [`Captured::commit`] is the base to pull onto.
    Snapshot,
}

impl History {
    /// Returns whether tracked files that match a deny pattern stay at home.
    const fn leaves_denied(self) -> bool {
        match self {
            Self::Full => false,
            Self::Commit | Self::Snapshot => true,
        }
    }
}

/// What was captured.
#[derive(Debug)]
pub struct Captured {
    /// The manifest; its blobs are in the sink.
    pub manifest: WorkspaceManifest,
    /// The person's commit; the manifest's base, unless the files travel without history.
    pub commit: String,
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
    let crashed = |_| CaptureError::Store(io::ErrorKind::Other.into());
    std::thread::scope(|scope| {
        // Git packs and looks for untracked files while the index is read here.
        let history = scope.spawn(|| history_bundle(&job));
        let untracked = scope.spawn(|| untracked::list(&repo));
        let seen = Seen::look(&job)?;
        let tracked_denied = seen.listing.denied(options)?;
        let (commit, files) = std::thread::scope(|inner| {
            let commit = inner.spawn(|| tree_bundle(&job, &seen.listing, &tracked_denied));
            let files = capture_files(&job, &seen, || untracked.join().map_err(crashed)?);
            (commit.join(), files)
        });
        let history = history.join().map_err(crashed)??.map(|bundle| (repository.head, bundle));
        let bundled = history.or(commit.map_err(crashed)??);
        let (base, bundle) = bundled.ok_or(CaptureError::Store(io::ErrorKind::Other.into()))?;
        let submodules = seen.listing.submodules();
        let bundled = Bundled { bundle, tracked_denied, submodules };
        let captured = assemble(base, options, bundled, files?)?;
        Ok(Captured { commit: repository.head.to_hex(), ..captured })
    })
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
    let name = text.rsplit('/').next().unwrap_or_default();
    for pattern in patterns.iter().filter(|pattern| !certainly_differs(name, pattern)) {
        let is_match = warrant_protocol::glob::matches_pattern(&text, pattern);
        if is_match.map_err(|_| CaptureError::Pattern(pattern.clone()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a pattern of letters and stars cannot match this name, which is most of the
/// answers and costs nothing; every other pattern is left to the matcher.
fn certainly_differs(name: &str, pattern: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '*');
    if !pattern.chars().all(is_plain) {
        return false;
    }
    let start = pattern.split('*').next().unwrap_or_default();
    let end = pattern.rsplit('*').next().unwrap_or_default();
    !name.starts_with(start) || !name.ends_with(end)
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

/// What is known of the tracked files before git is asked about any.
struct Seen {
    root: Root,
    listing: tracked::Listing,
    /// The files that may differ from the commit; `None` when any may.
    suspects: Option<Vec<TreePath>>,
}

impl Seen {
    /// Looks at the index, the commit's tree and the files.
    fn look(job: &Job<'_>) -> Result<Self, CaptureError> {
        let Job { repository, repo, options, .. } = job;
        let root = Root::open(&repository.top).map_err(CaptureError::Store)?;
        let index = Index::read(&repo.path().join("index")).map_err(CaptureError::Store)?;
        // SECURITY: what must stay at home is found in the tree itself; the index is the
        // repository's own word for it, good enough where everything travels anyway.
        let known = index.as_ref().filter(|_| options.history == History::Full);
        let listing = match known.and_then(|index| index.listing_of(repository.tree)) {
            Some(listing) => listing,
            None => tracked::list(repo, repository.head)?,
        };
        let suspects = match &index {
            Some(index) => Some(index.suspects(&root, &listing).map_err(CaptureError::Store)?),
            None => None,
        };
        Ok(Self { root, listing, suspects: suspects.filter(|paths| fits_a_call(paths)) })
    }
}

/// Returns whether these paths can be named in one call of git.
fn fits_a_call(paths: &[TreePath]) -> bool {
    const MAX_PATHS: usize = 2000;
    const MAX_BYTES: usize = 256 * 1024;
    paths.len() <= MAX_PATHS
        && paths.iter().map(|path| path.as_bytes().len()).sum::<usize>() <= MAX_BYTES
}

/// Stores the bundle of the whole history, if that is what travels.
fn history_bundle(job: &Job<'_>) -> Result<Option<StoredBlob>, CaptureError> {
    (job.options.progress)(Step { phase: Phase::Bundling, done: 0, total: None });
    if job.options.history != History::Full {
        return Ok(None);
    }
    let call = job.repo.git("bundle").args(["create", "-q", "-", "HEAD"]);
    Ok(Some(call.stream(Vec::new(), |stdout| job.sink.put(stdout))?))
}

/// Stores the bundle of the one commit's files, if that is what travels, and names its commit.
fn tree_bundle(
    job: &Job<'_>,
    listing: &tracked::Listing,
    denied: &[TreePath],
) -> Result<Option<(Oid, StoredBlob)>, CaptureError> {
    match job.options.history {
        History::Full => Ok(None),
        History::Commit => {
            let bundle = pack::commit_bundle(job, listing, denied)?;
            Ok(Some((job.repository.head, bundle)))
        }
        History::Snapshot => pack::snapshot_bundle(job, listing, denied).map(Some),
    }
}

fn capture_files(
    job: &Job<'_>,
    seen: &Seen,
    untracked: impl FnOnce() -> Result<Vec<Vec<u8>>, CaptureError>,
) -> Result<Files, CaptureError> {
    let Job { sink, options, .. } = job;
    let untracked = untracked()?;
    let held_back = tracked::held_back_changes(job, seen)?;
    let mut sorter = Sorter::new(&seen.root, *sink, options);
    for name in untracked {
        sorter.sort(&name)?;
    }
    let (sorted, extra) = sorter.finish()?;
    let dirty = dirty_diff(job, seen, (&held_back.paths, extra.as_ref()))?;
    let mut denied = sorted.denied;
    denied.extend(held_back.paths);
    let warnings = held_back.warnings.into_iter().chain(sorted.warnings).collect();
    Ok(Files { dirty, untracked: sorted.files, denied, warnings })
}

/// Stores the diff between the commit and the files, and what else travels in it.
fn dirty_diff(
    job: &Job<'_>,
    seen: &Seen,
    (held_back, extra): (&[TreePath], Option<&Diff>),
) -> Result<Option<StoredBlob>, CaptureError> {
    let extra: Box<dyn Read> = match extra {
        Some(diff) => Box::new(diff.reader().map_err(CaptureError::Store)?),
        None => Box::new(io::empty()),
    };
    if seen.suspects.as_ref().is_some_and(Vec::is_empty) {
        return put_unless_empty(job.sink, &mut { extra }).map_err(CaptureError::Store);
    }
    let exclude = |path: &TreePath| [b":(top,literal,exclude)", path.as_bytes()].concat();
    let call = job
        .repo
        .git("diff")
        .args(["--binary", "--no-ext-diff", "--no-textconv", "--no-color"])
        .args(["--ignore-submodules=all", "HEAD", "--"])
        .args(seen.pathspecs())
        .args(held_back.iter().map(|path| os_string(exclude(path))));
    Ok(call.stream(Vec::new(), |stdout| put_unless_empty(job.sink, &mut stdout.chain(extra)))?)
}

impl Seen {
    /// Returns what git must look at: the suspects, or everything.
    fn pathspecs(&self) -> Vec<std::ffi::OsString> {
        let include = |path: &TreePath| os_string([b":(top,literal)", path.as_bytes()].concat());
        match &self.suspects {
            Some(suspects) => suspects.iter().map(include).collect(),
            None => vec![os_string(b":/".to_vec())],
        }
    }
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
        History::Commit | History::Snapshot => {
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
    let commit = manifest.base_ref.clone();
    Ok(Captured { manifest, commit, tracked_denied: bundled.tracked_denied, warnings })
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
