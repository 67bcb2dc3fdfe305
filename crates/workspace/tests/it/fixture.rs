//! A repository, blobs and a checkout in temporary directories, and plain git to compare with.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use warrant_workspace::{
    BlobDirectory, CaptureError, CaptureOptions, Captured, Checkout, CollectOptions, Collected,
    DEFAULT_DENY, GitDirectory, History, MaterializeError, MaterializeOptions, TreeLimits, capture,
    collect, materialize, never_stop, quiet,
};

pub struct Fixture {
    pub temp: tempfile::TempDir,
    pub blobs: BlobDirectory,
}

/// What a tree is made of, for comparing trees byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Directory,
    File { executable: bool, content: Vec<u8> },
    Link(Vec<u8>),
}

impl Fixture {
    pub fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let blobs = BlobDirectory::open(temp.path().join("blobs")).unwrap();
        for name in ["repo", "scratch"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        Self { temp, blobs }
    }

    /// With a repository that has one commit of the reference's vector.
    pub fn with_repo() -> Self {
        let fixture = Self::new();
        fixture.git(&["init", "-q", "-b", "main"]);
        fixture.write("README.md", "# fixture\n");
        fixture.write("src.txt", "original\n");
        fixture.write("tracked.pem", "TRACKED-KEY\n");
        fixture.commit();
        fixture
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn repo(&self) -> PathBuf {
        self.path("repo")
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.repo().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn git(&self, args: &[&str]) -> Vec<u8> {
        git_in(&self.repo(), args)
    }

    pub fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", "init"]);
    }

    pub fn capture(&self, allow: &[&str], history: History) -> Result<Captured, CaptureError> {
        let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
        let deny: Vec<String> = DEFAULT_DENY.iter().map(ToString::to_string).collect();
        let options = CaptureOptions {
            scratch: &self.path("scratch"),
            allow_untracked: &allow,
            deny_patterns: &deny,
            history,
            progress: &quiet,
        };
        capture(&self.repo(), &self.blobs, &options)
    }

    pub fn materialize(
        &self,
        manifest: &warrant_protocol::WorkspaceManifest,
        name: &str,
    ) -> Result<Checkout, MaterializeError> {
        let target = self.path(name);
        fs::create_dir(&target).unwrap();
        let options = MaterializeOptions {
            scratch: &self.path("scratch"),
            limits: TreeLimits::generous(),
            git_directory: GitDirectory::Write,
            progress: &quiet,
        };
        materialize(manifest, &self.blobs, &target, &options)
    }

    pub fn collect(&self, checkout: &Checkout) -> Collected {
        collect(checkout, &self.collect_options()).unwrap()
    }

    pub fn collect_options(&self) -> CollectOptions<'static> {
        let scratch = Box::leak(Box::new(self.path("scratch")));
        CollectOptions {
            scratch,
            limits: TreeLimits::generous(),
            progress: &quiet,
            stop: &never_stop,
            watch: &|_| {},
        }
    }

    /// Applies a diff with stock git to a fresh clone of the base and returns the tree.
    pub fn applied(&self, base: &str, diff: &[u8], name: &str) -> BTreeMap<Vec<u8>, Entry> {
        let clone = self.path(name);
        let source = self.repo();
        git_in(
            self.temp.path(),
            &["clone", "-q", source.to_str().unwrap(), clone.to_str().unwrap()],
        );
        git_in(&clone, &["checkout", "-q", "--detach", base]);
        if !diff.is_empty() {
            let patch = self.path(&format!("{name}.patch"));
            fs::write(&patch, diff).unwrap();
            let patch = patch.to_str().unwrap();
            git_in(&clone, &["apply", "--binary", "--whitespace=nowarn", patch]);
        }
        tree(&clone)
    }
}

/// Runs stock git, with fixed author and time.
pub fn git_in(directory: &Path, args: &[&str]) -> Vec<u8> {
    let output = git_command(directory, args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {args:?}: {stderr}");
    output.stdout
}

pub fn git_command(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).args(args).stdin(Stdio::null());
    for (key, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_AUTHOR_NAME", "v"),
        ("GIT_AUTHOR_EMAIL", "v@v"),
        ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
        ("GIT_COMMITTER_NAME", "v"),
        ("GIT_COMMITTER_EMAIL", "v@v"),
        ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
    ] {
        command.env(key, value);
    }
    command
}

/// Reads a whole tree except the top `.git`, without following links.
pub fn tree(path: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let mut entries = BTreeMap::new();
    read_tree(path, &mut Vec::new(), &mut entries);
    entries
}

/// As [`tree`], without directories, which git does not keep.
pub fn files(path: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let mut entries = tree(path);
    entries.retain(|_, entry| *entry != Entry::Directory);
    entries
}

fn read_tree(path: &Path, prefix: &mut Vec<u8>, entries: &mut BTreeMap<Vec<u8>, Entry>) {
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if prefix.is_empty() && name == ".git" {
            continue;
        }
        let length = prefix.len();
        prefix.extend_from_slice(name.as_bytes());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            entries.insert(prefix.clone(), Entry::Directory);
            prefix.push(b'/');
            read_tree(&entry.path(), prefix, entries);
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap();
            entries.insert(prefix.clone(), Entry::Link(target.as_os_str().as_bytes().to_vec()));
        } else {
            let executable = entry.metadata().unwrap().permissions().mode() & 0o100 != 0;
            let content = fs::read(entry.path()).unwrap();
            entries.insert(prefix.clone(), Entry::File { executable, content });
        }
        prefix.truncate(length);
    }
}

/// Returns a path of any bytes below a directory.
pub fn below(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}
