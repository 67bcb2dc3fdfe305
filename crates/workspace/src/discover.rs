//! Finds the repository a directory belongs to, by looking and without starting anything.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::GitError;
use crate::git::GitCall;
use crate::object::Oid;

/// Why a directory cannot be used as a repository.
#[derive(Debug, Error)]
pub enum DiscoverError {
    /// There is no `.git` here or above.
    #[error("{0} is in no git repository; name the files that may travel with an allow list")]
    NotGit(PathBuf),
    /// It is a repository without files.
    #[error("{0} is a bare repository, which has no files to capture")]
    Bare(PathBuf),
    /// Its objects have SHA-256 names.
    #[error("{0} uses sha256 object names, which the wire does not know")]
    ObjectFormat(PathBuf),
    /// Its `.git` leads to a repository that does not know of this directory.
    #[error("{0}/.git leads to another repository, which does not name this directory")]
    Foreign(PathBuf),
    /// There is no commit yet.
    #[error("{0} has no commit yet; make one, or capture the folder with an allow list")]
    Unborn(PathBuf),
    /// Something could not be read.
    #[error("{path} could not be read")]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Git said something else.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// Returns the top of the repository that `path` is in, or the directory itself outside of one.
///
/// Only names are looked at; whether the repository is one we can use is not asked.
///
/// # Errors
/// The system's error when there is no such directory.
pub fn workspace_top(path: &Path) -> io::Result<PathBuf> {
    let start = fs::canonicalize(path)?;
    let top = start.ancestors().find(|above| fs::symlink_metadata(above.join(".git")).is_ok());
    Ok(top.map_or_else(|| start.clone(), Path::to_path_buf))
}

/// A repository with files.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    /// The top of its files.
    pub(crate) top: PathBuf,
    /// Its own git directory; of a linked worktree, that of the worktree.
    pub(crate) git_directory: PathBuf,
    /// The git directory that has the objects.
    pub(crate) common_directory: PathBuf,
    /// The commit HEAD is at.
    pub(crate) head: Oid,
    /// The tree of that commit.
    pub(crate) tree: Oid,
    /// Whether it lacks history itself.
    pub(crate) is_shallow: bool,
}

impl Repository {
    /// Finds the repository that `path` is in.
    ///
    /// SECURITY: the top is where `.git` was found; `core.worktree` of the config is not believed,
    /// because it may point anywhere.
    pub(crate) fn discover(path: &Path) -> Result<Self, DiscoverError> {
        let read = |path: &Path| {
            let path = path.to_path_buf();
            move |source| DiscoverError::Io { path, source }
        };
        let start = fs::canonicalize(path).map_err(read(path))?;
        let top = start.ancestors().find(|above| fs::symlink_metadata(above.join(".git")).is_ok());
        let Some(top) = top else {
            let is_bare = start.join("HEAD").is_file() && start.join("objects").is_dir();
            return Err(if is_bare {
                DiscoverError::Bare(start)
            } else {
                DiscoverError::NotGit(start)
            });
        };
        let (git_directory, common_directory) = git_directories(top)
            .map_err(read(&top.join(".git")))?
            .ok_or_else(|| DiscoverError::Foreign(top.to_path_buf()))?;
        let Head { commit, tree, is_shallow } = head(top, &git_directory)?;
        let top = top.to_path_buf();
        Ok(Self { top, git_directory, common_directory, head: commit, tree, is_shallow })
    }

    /// Returns where its objects are.
    pub(crate) fn objects(&self) -> PathBuf {
        self.common_directory.join("objects")
    }
}

/// Reads which commit a work tree is at, without starting git; whatever does not look like a
/// commit is none.
#[must_use]
pub fn head_commit(top: &Path) -> Option<String> {
    const MOST_BYTES: u64 = 64 << 20;
    let (git_directory, common_directory) = git_directories(top).ok()??;
    let read = |path: PathBuf| {
        let mut text = String::new();
        let file = fs::File::open(path).ok()?;
        file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let head = read(git_directory.join("HEAD"))?;
    let oid = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_owned(),
        Some(name) if name.starts_with("refs/") && !name.split('/').any(|part| part == "..") => {
            match read(common_directory.join(name)) {
                Some(loose) => loose.trim().to_owned(),
                None => packed_ref(&read(common_directory.join("packed-refs"))?, name)?,
            }
        }
        Some(_) => return None,
    };
    let is_oid = [40, 64].contains(&oid.len()) && oid.bytes().all(|b| b.is_ascii_hexdigit());
    is_oid.then_some(oid)
}

/// Finds a reference in the text of `packed-refs`.
fn packed_ref(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().filter(|line| !line.starts_with(['#', '^']));
    let found = lines.filter_map(|line| line.split_once(' ')).find(|(_, packed)| *packed == name);
    found.map(|(oid, _)| oid.to_owned())
}

/// Returns the git directory and the one with the objects; `None` if they are somebody else's.
///
/// SECURITY: a folder from elsewhere may bring a `.git` that leads to a private repository of the
/// person, whose history would then travel. So a `.git` file is believed only if what it leads to
/// leads back (a linked worktree), or lies among the submodules of a repository further up.
fn git_directories(top: &Path) -> io::Result<Option<(PathBuf, PathBuf)>> {
    let path = top.join(".git");
    let kind = fs::symlink_metadata(&path)?.file_type();
    if kind.is_dir() {
        let is_whole = fs::symlink_metadata(path.join("commondir")).is_err();
        return Ok(Some((path.clone(), path)).filter(|_| is_whole));
    }
    if !kind.is_file() {
        return Ok(None);
    }
    let text = fs::read(&path)?;
    let line = text.strip_prefix(b"gitdir: ").ok_or(io::ErrorKind::InvalidData)?;
    let directory = fs::canonicalize(top.join(path_of_line(line)))?;
    let above = top.ancestors().skip(1).map(|above| above.join(".git/modules"));
    if above.into_iter().any(|modules| directory.starts_with(modules)) {
        return Ok(Some((directory.clone(), directory)));
    }
    let Ok(back) = fs::read(directory.join("gitdir")) else { return Ok(None) };
    if fs::canonicalize(directory.join(path_of_line(&back))).ok() != Some(path) {
        return Ok(None);
    }
    let common = fs::read(directory.join("commondir"))?;
    let common = fs::canonicalize(directory.join(path_of_line(&common)))?;
    // A worktree's own directory lies in `worktrees` of the one it shares objects with.
    let is_shared = directory.parent() == Some(common.join("worktrees").as_path());
    Ok(Some((directory, common)).filter(|_| is_shared))
}

fn path_of_line(text: &[u8]) -> &Path {
    let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    Path::new(std::ffi::OsStr::from_bytes(text.get(..end).unwrap_or_default()))
}

struct Head {
    commit: Oid,
    tree: Oid,
    is_shallow: bool,
}

fn head(top: &Path, git_directory: &Path) -> Result<Head, DiscoverError> {
    let answer = GitCall::in_foreign("rev-parse", git_directory)
        .args(["--show-object-format", "--is-shallow-repository", "HEAD^{commit}", "HEAD^{tree}"])
        .output();
    let answer = match answer {
        Err(GitError::Failed { message, .. }) if message.contains("HEAD^{commit}") => {
            return Err(DiscoverError::Unborn(top.to_path_buf()));
        }
        answer => answer?,
    };
    let text = String::from_utf8_lossy(&answer);
    let mut lines = text.lines();
    if lines.next() != Some("sha1") {
        return Err(DiscoverError::ObjectFormat(top.to_path_buf()));
    }
    let is_shallow = lines.next() == Some("true");
    let mut name = || {
        let name = lines.next().and_then(Oid::from_hex);
        name.ok_or(GitError::Answer { command: "rev-parse" })
    };
    Ok(Head { commit: name()?, tree: name()?, is_shallow })
}
