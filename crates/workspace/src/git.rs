//! The only place that starts git: always in a repository directory whose config we wrote.
//!
//! SECURITY: nothing a workspace says about how git behaves is ever read. The git directory is a
//! scratch one of ours; a workspace lends it at most its object store and a copy of its index.
//! So hooks, filters, fsmonitor, textconv, external diffs, merge drivers, aliases, pagers,
//! credential helpers and lazy fetches of a workspace have no place to be named in.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use crate::blob::scratch_directory;
use crate::object::LooseObjects;
use crate::progress::Stop;

/// Why a git command failed.
#[derive(Debug, Error)]
pub enum GitError {
    /// It could not be started or spoken to.
    #[error("git {command} could not run")]
    Io {
        /// The subcommand.
        command: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It said no.
    #[error("git {command} failed: {message}")]
    Failed {
        /// The subcommand.
        command: &'static str,
        /// The first line git wrote to stderr.
        message: String,
    },
    /// It answered with something else than expected.
    #[error("git {command} gave an answer that was not understood")]
    Answer {
        /// The subcommand.
        command: &'static str,
    },
}

/// Switches given to every call; the config file of the scratch repository says the same.
const SWITCHES: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.pager=cat",
    "core.autocrlf=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.quotePath=true",
    "diff.ignoreSubmodules=all",
    "submodule.recurse=false",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgSign=false",
    "log.showSignature=false",
    "credential.helper=",
];

/// Attributes that undo every other attributes file: they have the highest rank git knows.
const ATTRIBUTES: &str = "* !text !eol !crlf !filter !ident !diff !merge !whitespace \
                          !working-tree-encoding !export-subst !export-ignore !conflict-marker-size\n";

/// A repository directory of ours in a scratch directory, gone when dropped.
#[derive(Debug)]
pub(crate) struct ScratchRepo {
    directory: tempfile::TempDir,
    objects: PathBuf,
    work_tree: Option<PathBuf>,
}

impl ScratchRepo {
    /// Makes an empty repository below `parent`.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        let directory = scratch_directory(parent)?;
        let objects = directory.path().join("objects");
        fs::create_dir_all(directory.path().join("objects/info"))?;
        write_git_directory(directory.path(), "ref: refs/heads/none\n")?;
        fs::write(directory.path().join("info/attributes"), ATTRIBUTES)?;
        Ok(Self { directory, objects, work_tree: None })
    }

    /// Uses the objects of another repository, without writing to it.
    pub(crate) fn borrowing_objects(mut self, objects: &Path) -> Self {
        self.objects = objects.to_path_buf();
        self
    }

    /// Reads the objects of another repository besides its own; new ones are its own.
    pub(crate) fn with_alternate(self, objects: &Path) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt as _;
        let line = [objects.as_os_str().as_bytes(), b"\n"].concat();
        fs::write(self.directory.path().join("objects/info/alternates"), line)?;
        Ok(self)
    }

    /// Reads files of this work tree.
    pub(crate) fn with_work_tree(mut self, work_tree: &Path) -> Self {
        self.work_tree = Some(work_tree.to_path_buf());
        self
    }

    /// Returns where the repository lies.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a writer of loose objects into its own store.
    pub(crate) fn loose(&self) -> LooseObjects<'_> {
        LooseObjects { objects: &self.objects }
    }

    /// Starts a call.
    pub(crate) fn git(&self, command: &'static str) -> GitCall {
        let mut call = GitCall::new(command, self.directory.path(), self.work_tree.as_deref());
        call.command.env("GIT_OBJECT_DIRECTORY", &self.objects);
        call
    }
}

/// Writes what git needs to take a directory for a repository, and nothing it could execute. What
/// it makes itself when it is needed is left to it.
pub(crate) fn write_git_directory(path: &Path, head: &str) -> io::Result<()> {
    for part in ["objects/pack", "refs", "info"] {
        fs::create_dir_all(path.join(part))?;
    }
    fs::write(path.join("HEAD"), head)?;
    fs::write(
        path.join("config"),
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n",
    )
}

/// One call of git.
#[derive(Debug)]
pub(crate) struct GitCall {
    name: &'static str,
    command: Command,
}

impl GitCall {
    /// Prepares a call that reads a repository which is not ours.
    ///
    /// Only for questions that execute nothing whatever the config says (`rev-parse`, `update-ref`
    /// with hooks switched off).
    pub(crate) fn in_foreign(name: &'static str, git_directory: &Path) -> Self {
        Self::new(name, git_directory, None)
    }

    fn new(name: &'static str, git_directory: &Path, work_tree: Option<&Path>) -> Self {
        let mut command = Command::new("git");
        command.env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
        for (key, value) in [
            ("HOME", "/nonexistent"),
            ("LC_ALL", "C"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ALLOW_PROTOCOL", "none"),
            ("GIT_PAGER", "cat"),
            ("GIT_EDITOR", "false"),
            ("GIT_ASKPASS", "false"),
            ("GIT_LITERAL_PATHSPECS", "0"),
        ] {
            command.env(key, value);
        }
        command.env("GIT_DIR", git_directory).stdin(Stdio::null());
        if let Some(work_tree) = work_tree {
            command.env("GIT_WORK_TREE", work_tree).current_dir(work_tree);
        } else {
            command.current_dir(git_directory);
        }
        command.arg("--no-pager");
        for switch in SWITCHES {
            command.args(["-c", switch]);
        }
        command.arg(name);
        Self { name, command }
    }

    /// Adds arguments.
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets a variable of the environment.
    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    /// Takes stdin from a file.
    pub(crate) fn stdin_file(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    /// Runs to the end with stdout going to a file, or until `stop`, which is an error.
    pub(crate) fn run_into(mut self, file: File, stop: Stop<'_>) -> Result<(), GitError> {
        self.command.stdout(file).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        match end_of(&child, stop) {
            Ok(true) => self.wait(child).map(drop),
            ended => {
                // It is ours and may be gone by now; either way nothing of it is used.
                let _ = child.kill();
                let _ = child.wait();
                Err(self.broken(ended.err().unwrap_or_else(|| io::ErrorKind::TimedOut.into())))
            }
        }
    }

    /// Runs to the end and returns stdout.
    pub(crate) fn output(mut self) -> Result<Vec<u8>, GitError> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn()?;
        self.wait(child)
    }

    /// Runs to the end and returns stdout and whether the answer was yes; 1 is git's no.
    pub(crate) fn question(mut self) -> Result<(bool, Vec<u8>), GitError> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn()?;
        let output = child.wait_with_output().map_err(|source| self.broken(source))?;
        match output.status.code() {
            Some(0) => Ok((true, output.stdout)),
            Some(1) => Ok((false, output.stdout)),
            _ => Err(self.failed(&output.stderr)),
        }
    }

    /// Runs to the end, writing `input` to stdin, and returns stdout.
    pub(crate) fn output_with(mut self, input: Vec<u8>) -> Result<Vec<u8>, GitError> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let stdin = child.stdin.take();
        let writer = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
        let output = self.wait(child);
        // A writer that failed belongs to a git that failed, and that is told already.
        let _ = writer.join();
        output
    }

    /// Runs with stdout read by `reader` while git writes it.
    pub(crate) fn stream<T>(
        mut self,
        input: Vec<u8>,
        reader: impl FnOnce(&mut dyn Read) -> io::Result<T>,
    ) -> Result<T, GitError> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let stdin = child.stdin.take();
        let writer = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
        let result = match child.stdout.take() {
            Some(mut stdout) => reader(&mut stdout),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let waited = self.wait(child);
        let _ = writer.join();
        let value = result.map_err(|source| self.broken(source));
        waited.and(value)
    }

    fn spawn(&mut self) -> Result<Child, GitError> {
        self.command.spawn().map_err(|source| GitError::Io { command: self.name, source })
    }

    fn wait(&self, child: Child) -> Result<Vec<u8>, GitError> {
        let output = child.wait_with_output().map_err(|source| self.broken(source))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(self.failed(&output.stderr))
    }

    fn failed(&self, stderr: &[u8]) -> GitError {
        let text = String::from_utf8_lossy(stderr);
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        GitError::Failed { command: self.name, message: line.to_owned() }
    }

    const fn broken(&self, source: io::Error) -> GitError {
        GitError::Io { command: self.name, source }
    }
}

/// Waits until a child has ended or written to stderr, and returns true; false when it was to
/// stop first.
fn end_of(child: &Child, stop: Stop<'_>) -> io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    loop {
        if stop() {
            return Ok(false);
        }
        let mut wanted = vec![PollFd::new(&process, PollFlags::IN)];
        // A full pipe of messages would keep it from ending.
        wanted.extend(child.stderr.as_ref().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
        match poll(&mut wanted, Some(&pause)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}
