//! Brings the diff of a finished run into the person's repository.
//!
//! In place when nothing stands in the way, otherwise as a commit on a branch of its own. It never
//! merges and never overwrites: where histories diverged the merge is only tried, in a scratch
//! repository, and its conflicts are shown. A diff that has no commit as its base is applied to the
//! very files it was made from, or not at all.

mod base;
mod branch;
mod commits;
mod files;
mod place;
mod preview;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use thiserror::Error;

use crate::discover::{DiscoverError, Repository};
use crate::export::Gated;
use crate::gate::{classify, link_class};
use crate::git::ScratchRepo;
use crate::journal::{Journal, JournalError};
use crate::object::Oid;
use crate::raw::{BaseFile, parse_raw};
use crate::root::Root;
use crate::{FileMode, GateClass, GatePolicy, GitError, TreePath, Verdict};

use commits::OpenedCommits;
pub use commits::PullCommits;
pub use preview::{Conflict, MergePreview};

/// How to pull.
#[derive(Clone, Copy)]
pub struct PullOptions<'a> {
    /// A directory of ours for scratch files.
    pub scratch: &'a Path,
    /// The run's id, which names the branch and the commit.
    pub run_id: &'a str,
    /// The commit the run started from.
    pub base_ref: &'a str,
    /// Whether a branch is wanted even where the diff applies in place.
    pub branch: BranchWish,
    /// What a branch's name starts with; the reference uses `warrant/`.
    pub branch_prefix: &'a str,
    /// When the commit was made.
    pub at: SystemTime,
    /// What happens to files that execute later.
    pub policy: &'a GatePolicy,
    /// Held paths the person has released.
    pub released: &'a [TreePath],
}

/// Whether a branch is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchWish {
    /// Only when the diff cannot be applied in place.
    WhenNeeded,
    /// In any case.
    Always,
}

/// What a pull did.
#[derive(Debug)]
pub enum Pulled {
    /// The diff is empty, or the gate kept all of it out.
    Empty {
        /// Paths the gate named.
        gated: Vec<Gated>,
    },
    /// The files were changed in place; [`Journal::undo`] takes it back.
    Applied {
        /// The changed paths.
        paths: Vec<TreePath>,
        /// Paths the gate named.
        gated: Vec<Gated>,
    },
    /// The change is a commit on a branch; the files were left alone.
    Branch {
        /// The branch's name.
        branch: String,
        /// Its commit.
        commit: String,
        /// Why it was not applied in place.
        why: WhyBranch,
        /// What merging it into HEAD would do.
        merge: MergePreview,
        /// Paths the gate named.
        gated: Vec<Gated>,
    },
}

/// Why a diff was not applied in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhyBranch {
    /// It was asked for.
    Wished,
    /// HEAD is another commit than the run started from.
    Diverged,
    /// The repository has uncommitted changes.
    Uncommitted,
    /// A file the diff would change or make is not what the base says.
    InTheWay(TreePath),
}

/// Why nothing was pulled.
#[derive(Debug, Error)]
pub enum PullError {
    /// This is no repository to pull into.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The run started from a commit this repository does not have.
    #[error("commit {0}, from which the run started, is not in this repository")]
    UnknownBase(String),
    /// The diff does not apply to its own base.
    #[error("the diff does not apply to the commit the run started from")]
    Diff(#[source] GitError),
    /// The files are not those the diff was made from.
    #[error("the files are not those the run started from, so its diff is not applied")]
    Stale(#[source] GitError),
    /// A file is not what the diff was made from.
    #[error("{0} is not what the run started from, so its diff is not applied")]
    InTheWay(TreePath),
    /// The run's commits cannot be taken over.
    #[error("the run's commits cannot be taken over: {0}")]
    Commits(String),
    /// A path of the diff names a git directory.
    #[error("the diff names {0}, which may not be written")]
    Path(TreePath),
    /// Git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The journal or a file failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A scratch file failed.
    #[error("the scratch directory failed")]
    Scratch(#[source] io::Error),
    /// There is no free branch name left.
    #[error("every branch name from {0} on is taken by other commits")]
    Branches(String),
}

/// The diff, applied to its base in a scratch repository.
struct Change {
    repo: ScratchRepo,
    /// The commit it was applied to, or the tree of the files as they are.
    base: Oid,
    tree: Oid,
    /// The files that change, with what they become and what they were.
    files: Vec<Changed>,
    gated: Vec<Gated>,
}

struct Changed {
    path: TreePath,
    old: Option<BaseFile>,
    new: Option<BaseFile>,
}

/// Pulls a run's diff into the repository that `path` is in.
///
/// # Errors
/// [`PullError`]; then neither files nor branches were changed, unless the journal failed, in
/// which case its next opening finishes the change.
pub fn pull(
    path: &Path,
    diff: &mut dyn Read,
    journal: &Journal,
    options: &PullOptions<'_>,
) -> Result<Pulled, PullError> {
    pull_with_commits(path, diff, journal, &PullWork { options: *options, commits: None })
}

/// What is pulled besides a diff.
#[derive(Clone, Copy)]
pub struct PullWork<'a> {
    /// How.
    pub options: PullOptions<'a>,
    /// What the run committed, if it did.
    pub commits: Option<PullCommits<'a>>,
}

/// Pulls a run's diff together with its commits: in place they become those of the repository,
/// else the branch is made on top of them.
///
/// # Errors
/// As [`pull`].
pub fn pull_with_commits(
    path: &Path,
    diff: &mut dyn Read,
    journal: &Journal,
    work: &PullWork<'_>,
) -> Result<Pulled, PullError> {
    let options = &work.options;
    let commits = work.commits.map(OpenedCommits::open).transpose()?;
    let diff = &stored(diff, options)?;
    let Some(base) = Oid::from_hex(options.base_ref) else {
        // The run started from a folder, not from a commit.
        return pull_onto_files(path, diff, journal, options);
    };
    let repository = Repository::discover(path)?;
    let change = match apply_to_base(&repository, base, diff, options) {
        // The run started from uncommitted work on top of that commit.
        Err(PullError::Diff(_))
            if options.branch == BranchWish::WhenNeeded && commits.is_none() =>
        {
            return pull_onto_files(&repository.top, diff, journal, options);
        }
        change => change?,
    };
    let base = change.base;
    // Commits on top of files that travelled without their history lead to no commit here.
    let commits = commits.filter(|_| base.to_hex() == options.base_ref);
    if change.files.is_empty() && commits.is_none() {
        return Ok(Pulled::Empty { gated: change.gated });
    }
    let why = if options.branch == BranchWish::Always {
        WhyBranch::Wished
    } else if repository.head != base {
        WhyBranch::Diverged
    } else if !is_clean(&repository, options)? {
        WhyBranch::Uncommitted
    } else {
        match place::apply_with(&repository.top, &change, journal, (options, commits.as_ref()))? {
            place::InPlace::Done(paths) => {
                return Ok(Pulled::Applied { paths, gated: change.gated });
            }
            place::InPlace::InTheWay(path) => WhyBranch::InTheWay(path),
        }
    };
    if let Some(commits) = &commits {
        commits.install(&repository, &change.repo.path().join("objects"))?;
    }
    let head = commits.as_ref().map(|commits| commits.head);
    let (branch, commit) = branch::make(&repository, &change, options, head)?;
    let merge = preview::preview(&change.repo, base, repository.head, commit)?;
    Ok(Pulled::Branch { branch, commit: commit.to_hex(), why, merge, gated: change.gated })
}

/// Returns whether the files below `top` are already what a diff makes of them.
///
/// # Errors
/// [`PullError`] when the diff or a file cannot be read.
pub fn is_applied(top: &Path, diff: &mut dyn Read, scratch: &Path) -> Result<bool, PullError> {
    let root = Root::open(top).map_err(PullError::Scratch)?;
    let mut file = tempfile::tempfile_in(scratch).map_err(PullError::Scratch)?;
    io::copy(diff, &mut file).map_err(PullError::Scratch)?;
    files::is_applied(&root, &file, scratch)
}

/// Changes the files the diff was made from, without any commit.
fn pull_onto_files(
    top: &Path,
    diff: &File,
    journal: &Journal,
    options: &PullOptions<'_>,
) -> Result<Pulled, PullError> {
    let root = Root::open(top).map_err(PullError::Scratch)?;
    if diff.metadata().map_err(PullError::Scratch)?.len() == 0 {
        return Ok(Pulled::Empty { gated: Vec::new() });
    }
    let change = files::apply_to_files(&root, diff, options)?;
    if change.files.is_empty() {
        return Ok(Pulled::Empty { gated: change.gated });
    }
    match place::apply(top, &change, journal, options)? {
        place::InPlace::Done(paths) => Ok(Pulled::Applied { paths, gated: change.gated }),
        place::InPlace::InTheWay(path) => Err(PullError::InTheWay(path)),
    }
}

/// Copies the diff to a scratch file, because it is read more than once.
fn stored(diff: &mut dyn Read, options: &PullOptions<'_>) -> Result<File, PullError> {
    let mut file = tempfile::tempfile_in(options.scratch).map_err(PullError::Scratch)?;
    io::copy(diff, &mut file).map_err(PullError::Scratch)?;
    Ok(file)
}

/// Applies the diff to an index of ours, and asks the gate about every file it changes.
fn apply_to_base(
    repository: &Repository,
    base: Oid,
    diff: &File,
    options: &PullOptions<'_>,
) -> Result<Change, PullError> {
    let mut file = diff.try_clone().map_err(PullError::Scratch)?;
    io::Seek::rewind(&mut file).map_err(PullError::Scratch)?;
    let is_empty = file.metadata().map_err(PullError::Scratch)?.len() == 0;
    let repo = ScratchRepo::create(options.scratch)
        .and_then(|repo| repo.with_alternate(&repository.objects()))
        .map_err(PullError::Scratch)?;
    let found = base::find(repository, &repo, base)?;
    let base = found.ok_or_else(|| PullError::UnknownBase(base.to_hex()))?;
    let hex = base.to_hex();
    repo.git("read-tree").args([&hex]).output()?;
    if !is_empty {
        repo.git("apply")
            .args(["--cached", "--binary", "--whitespace=nowarn", "-"])
            .stdin_file(file)
            .output()
            .map_err(PullError::Diff)?;
    }
    let (files, gated) = gate(&repo, &hex, options)?;
    let tree = written_tree(&repo)?;
    Ok(Change { repo, base, tree, files, gated })
}

/// Writes the index as a tree.
fn written_tree(repo: &ScratchRepo) -> Result<Oid, PullError> {
    let tree = repo.git("write-tree").output()?;
    let tree = std::str::from_utf8(&tree).ok().and_then(|text| Oid::from_hex(text.trim_end()));
    Ok(tree.ok_or(GitError::Answer { command: "write-tree" })?)
}

/// Takes out of the index what policy keeps out, and returns what is left.
fn gate(
    repo: &ScratchRepo,
    base: &str,
    options: &PullOptions<'_>,
) -> Result<(Vec<Changed>, Vec<Gated>), PullError> {
    let raw = |reverse: &[&str]| -> Result<_, PullError> {
        let answer = repo
            .git("diff-index")
            .args(["--cached", "--raw", "-z", "--no-renames", "--no-abbrev"])
            .args(reverse)
            .args([base])
            .output()?;
        Ok(parse_raw(&answer).ok_or(GitError::Answer { command: "diff-index" })?)
    };
    let news = raw(&[])?;
    // The same list the other way round says what the files were.
    let mut olds: std::collections::HashMap<_, _> = raw(&["-R"])?.into_iter().collect();
    let (mut files, mut gated, mut undo) = (Vec::new(), Vec::new(), Vec::new());
    for (path, new) in news {
        if path.git_part().is_some() {
            return Err(PullError::Path(path));
        }
        let old = olds.remove(&path).flatten();
        let judged = match &new {
            Some(new) => {
                let class = class_in(repo, &path, new)?;
                options.policy.judge(&path, class)
            }
            None => None,
        };
        let verdict = match judged {
            Some((class, verdict)) => {
                let is_released = verdict == Verdict::Hold && options.released.contains(&path);
                let verdict = if is_released { Verdict::Flag } else { verdict };
                gated.push(Gated { path: path.clone(), class, verdict });
                verdict
            }
            None => Verdict::Flag,
        };
        if verdict == Verdict::Flag {
            files.push(Changed { path, old, new });
        } else {
            undo.extend_from_slice(&index_line(&path, old));
        }
    }
    if !undo.is_empty() {
        repo.git("update-index").args(["-z", "--index-info"]).output_with(undo)?;
    }
    Ok((files, gated))
}

/// Returns why a file of the index is named: by its name, or as a link that leads out.
fn class_in(
    repo: &ScratchRepo,
    path: &TreePath,
    file: &BaseFile,
) -> Result<Option<GateClass>, PullError> {
    let class = classify(path);
    if class.is_some() || file.mode != FileMode::Symlink {
        return Ok(class);
    }
    let target = repo.git("cat-file").args(["blob", &file.oid.to_hex()]).output()?;
    Ok(link_class(path, &target))
}

/// Returns a line for `git update-index --index-info` that sets or removes a path.
fn index_line(path: &TreePath, file: Option<BaseFile>) -> Vec<u8> {
    let head = match file {
        Some(file) => format!("{} {}\t", file.mode.as_str(), file.oid.to_hex()),
        None => format!("0 {}\t", Oid::NULL.to_hex()),
    };
    [head.as_bytes(), path.as_bytes(), b"\0"].concat()
}

/// Returns whether no tracked file differs from HEAD, staged or not.
fn is_clean(repository: &Repository, options: &PullOptions<'_>) -> Result<bool, PullError> {
    let repo = crate::capture::borrow(repository, options.scratch).map_err(PullError::Scratch)?;
    let answer = repo
        .git("diff")
        .args(["--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=all"])
        .args(["HEAD", "--"])
        .output()?;
    Ok(answer.is_empty())
}

/// Returns whether a file can be written without git's help.
const fn is_plain(file: &BaseFile) -> bool {
    !matches!(file.mode, FileMode::Submodule)
}
