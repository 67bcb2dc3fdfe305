//! The bench a check works at: a workspace, a place outside it, and runs that cannot hang us.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use warrant_protocol::{Limits, Outcome};
use warrant_sandbox::{
    Backend, Cancel, Command, EnvValue, EnvVar, Files, Invocation, Network, Plan, Refusal,
    RunReport, Shell, Stdin, WorkspaceAccess,
};

use crate::sinks::{Manner, Recorder};
use crate::subject::{Subject, WorkspaceKind};

/// What stands in the file outside the workspace; seeing it inside is an escape.
pub(crate) const CANARY: &str = "CANARY-7f3a91c2";

/// The time a run gets where the check is not about time.
const WALL_MS: u64 = 10_000;

/// How long after its deadline a run may take to be over.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// How long after its deadline a run is given up.
const PATIENCE: Duration = Duration::from_secs(8);

/// What a check found.
pub type Finding = Result<Passed, Broken>;

/// How a check passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passed {
    /// What was tried held.
    Held,
    /// What was tried held, and this is worth knowing.
    HeldAs(String),
    /// There is nothing to try, for this reason.
    Moot(String),
}

/// What did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self(format!("the check itself failed: {error}"))
    }
}

/// Goes on when something holds, and tells what does not.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken(what())) }
}

/// What came of an invocation.
pub(crate) enum Attempt {
    /// The backend would not run it.
    Refused(Refusal),
    /// The boundary could not be built or held.
    Failed(String),
    /// It ran.
    Ran(Box<Ran>),
}

/// A run that came to an end.
pub(crate) struct Ran {
    /// What was applied.
    pub(crate) plan: Plan,
    /// What the backend says.
    pub(crate) report: RunReport,
    /// What the sink was given.
    pub(crate) stdout: Vec<u8>,
    /// What the sink was given.
    pub(crate) stderr: Vec<u8>,
    /// How many bytes the sink was given.
    pub(crate) total: u64,
    /// The largest piece the sink was given.
    pub(crate) largest: usize,
    /// Hosts that were refused.
    pub(crate) refused: Vec<String>,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Ran {
    /// Returns what the program said on standard output, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Goes on when the program ended this way.
    pub(crate) fn expect(&self, outcome: &Outcome) -> Result<(), Broken> {
        ensure(self.report.outcome == *outcome, || {
            let said = excerpt(&self.stderr);
            format!("ended as {:?}, not {outcome:?}; stderr {said}", self.report.outcome)
        })
    }
}

/// The bench of one check.
pub struct Lab<'a> {
    /// What is examined.
    pub(crate) subject: &'a Subject,
    root: PathBuf,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(subject: &'a Subject, id: &str) -> Result<Self, Broken> {
        let scratch = fs::canonicalize(&subject.scratch)?;
        let root = fresh_directory(&scratch, id)?;
        let lab = Self { subject, root };
        for directory in [lab.root.clone(), lab.workspace(), lab.outside()] {
            fs::create_dir_all(&directory)?;
            fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
        }
        fs::write(lab.canary(), format!("{CANARY}\n"))?;
        Ok(lab)
    }

    /// Removes what the check left behind, as far as that can be done.
    pub(crate) fn tidy(&self) {
        // What cannot be removed lies in the caller's scratch directory.
        let _ = fs::remove_dir_all(&self.root);
    }

    /// Returns the workspace, which the program may be given.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    /// Returns the directory beside it, which it may not.
    pub(crate) fn outside(&self) -> PathBuf {
        self.root.join("outside")
    }

    /// Returns the file outside the workspace that holds [`CANARY`]; anyone may read it.
    pub(crate) fn canary(&self) -> PathBuf {
        self.outside().join("canary")
    }

    /// Puts a file into the workspace.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, Broken> {
        let path = self.workspace().join(name);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        fs::write(&path, content)?;
        Ok(path)
    }

    /// Returns a fresh handle.
    pub(crate) fn open(&self) -> Result<Arc<dyn Backend>, Broken> {
        (self.subject.open)().map_err(|error| Broken(format!("no handle could be opened: {error}")))
    }

    /// Returns an invocation of a script that may write to the workspace and reach nothing.
    pub(crate) fn script(&self, script: &str) -> Invocation {
        self.invocation(Command::Shell { shell: Shell::Sh, script: script.to_owned() })
    }

    /// Returns an invocation of a command that may write to the workspace and reach nothing.
    pub(crate) fn invocation(&self, command: Command) -> Invocation {
        let path = EnvValue::Plain("/usr/local/bin:/usr/bin:/bin".to_owned());
        Invocation {
            command,
            cwd: self.workspace(),
            env: vec![EnvVar { name: "PATH".to_owned(), value: path }],
            stdin: Stdin::Empty,
            tty: None,
            files: Files {
                workspace: self.workspace(),
                access: WorkspaceAccess::Direct,
                read_roots: Vec::new(),
                write_roots: Vec::new(),
                places: Vec::new(),
                masks: Vec::new(),
            },
            network: Network::Allow(Vec::new()),
            limits: Limits { wall_ms: Some(WALL_MS), ..Limits::danger_unlimited() },
            image: None,
            neighbors: None,
        }
    }

    /// Runs a script that must be run.
    pub(crate) fn run(&self, script: &str) -> Result<Ran, Broken> {
        self.run_invocation(self.script(script))
    }

    /// Runs an invocation that must be run.
    pub(crate) fn run_invocation(&self, invocation: Invocation) -> Result<Ran, Broken> {
        match self.attempt(invocation, Manner::Keep)? {
            Attempt::Ran(ran) => Ok(*ran),
            Attempt::Refused(refusal) => Err(Broken(format!("refused: {refusal}"))),
            Attempt::Failed(what) => Err(Broken(what)),
        }
    }

    /// Tries an invocation on a fresh handle.
    pub(crate) fn attempt(
        &self,
        invocation: Invocation,
        manner: Manner,
    ) -> Result<Attempt, Broken> {
        self.attempt_on(self.open()?, invocation, manner)
    }

    /// Tries an invocation on this handle.
    pub(crate) fn attempt_on(
        &self,
        backend: Arc<dyn Backend>,
        invocation: Invocation,
        manner: Manner,
    ) -> Result<Attempt, Broken> {
        match backend.prepare(invocation) {
            Ok(plan) => self.attempt_plan(backend, plan, manner),
            Err(refusal) => Ok(Attempt::Refused(refusal)),
        }
    }

    /// Tries a plan on this handle. A run that does not return is given up and told.
    pub(crate) fn attempt_plan(
        &self,
        backend: Arc<dyn Backend>,
        mut plan: Plan,
        manner: Manner,
    ) -> Result<Attempt, Broken> {
        let cancel = Cancel::new()?;
        // What somebody else's machine takes to be there is not the program's time.
        if self.subject.capabilities.is_remote
            && let Err(refusal) = backend.ready(&mut plan, &cancel)
        {
            return Ok(Attempt::Refused(refusal));
        }
        let recorder = Arc::new(Recorder::new(manner, cancel.clone()));
        let (told, tells) = mpsc::channel();
        let wall = Duration::from_millis(plan.invocation.limits.wall_ms.unwrap_or(WALL_MS));
        let started = Instant::now();
        let (sink, stop, applied) = (Arc::clone(&recorder), cancel.clone(), plan.clone());
        std::thread::spawn(move || {
            let ended = backend.run(&applied, &*sink, &stop);
            // The check may have given up already.
            let _ = told.send((ended, started.elapsed()));
        });
        let (ended, took) = match tells.recv_timeout(wall + PATIENCE) {
            Ok(ended) => ended,
            Err(RecvTimeoutError::Timeout) => {
                cancel.cancel();
                let then = match tells.recv_timeout(PATIENCE) {
                    Ok(_) => "ended only when it was cancelled",
                    Err(_) => "did not even end when it was cancelled",
                };
                let late = (wall + PATIENCE).as_secs();
                return Err(Broken(format!("still running after {late} s, and {then}")));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Broken("the backend panicked".to_owned()));
            }
        };
        Ok(match ended {
            Ok(report) => {
                let heard = recorder.take();
                Attempt::Ran(Box::new(Ran {
                    plan,
                    report,
                    stdout: heard.stdout,
                    stderr: heard.stderr,
                    total: heard.total,
                    largest: heard.largest,
                    refused: heard.refused,
                    took,
                }))
            }
            Err(error) => Attempt::Failed(format!("{error}: {}", error.cause)),
        })
    }

    /// Returns why this access to the workspace is refused, if it is.
    pub(crate) fn refusal_of(&self, access: WorkspaceAccess) -> Result<Option<Refusal>, Broken> {
        let mut invocation = self.script(":");
        invocation.files.access = access;
        Ok(self.open()?.prepare(invocation).err())
    }

    /// Returns whether what a program writes to the workspace is seen on the host at once.
    pub(crate) fn is_shared(&self) -> bool {
        self.subject.capabilities.workspace == WorkspaceKind::Host
            && !self.subject.capabilities.is_remote
    }

    /// Returns what arrives of text that a program prints.
    pub(crate) fn arriving(&self, printed: &[u8]) -> Vec<u8> {
        self.subject.capabilities.output.of_text(printed)
    }

    /// Returns whether the subject starts programs.
    pub(crate) fn starts_programs(&self) -> bool {
        self.subject.capabilities.starts_programs
    }
}

/// Returns the beginning of what a program said, on one line.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let start = bytes.get(..160).unwrap_or(bytes);
    let dots = if start.len() < bytes.len() { "…" } else { "" };
    format!("{:?}{dots}", String::from_utf8_lossy(start))
}

/// Makes a directory nobody had before.
fn fresh_directory(scratch: &Path, id: &str) -> io::Result<PathBuf> {
    let name = id.replace('.', "-");
    for attempt in 0..u32::MAX {
        let path = scratch.join(format!("{name}-{attempt}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
