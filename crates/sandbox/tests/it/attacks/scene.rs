//! Where an attack takes place, and who plays the attacker.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;
use warrant_protocol::{Isolation, Limits, Outcome};
use warrant_sandbox::{Backend, Invocation, Namespace, RunReport, WorkspaceAccess};

use crate::bench::{Memory, run, shell};
use crate::network::internet::{SHARED, internet, options};

/// What became of an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The boundary held.
    Held,
    /// It did not, and this is how one sees it.
    Broken(String),
}

impl Verdict {
    /// Returns that the boundary held unless `broken`.
    pub(crate) fn broken_if(broken: bool, how: impl Into<String>) -> Self {
        if broken { Self::Broken(how.into()) } else { Self::Held }
    }
}

/// A workspace, a place outside it, and the tier under attack.
pub(crate) struct Scene<'a> {
    pub(crate) backend: &'a dyn Backend,
    directory: TempDir,
}

/// What the attacker did and said.
pub(crate) struct Played {
    pub(crate) report: RunReport,
    pub(crate) memory: Memory,
}

impl Played {
    pub(crate) fn said(&self, text: &str) -> bool {
        self.memory.stdout().contains(text)
    }

    /// Broken when the attacker itself says `BROKEN`.
    pub(crate) fn by_own_word(&self) -> Verdict {
        let stdout = self.memory.stdout();
        Verdict::broken_if(stdout.contains("BROKEN"), stdout)
    }
}

impl<'a> Scene<'a> {
    pub(crate) fn new(backend: &'a dyn Backend) -> Self {
        let directory = tempfile::Builder::new().prefix("scene").tempdir().unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/secret"), "host secret").unwrap();
        Self { backend, directory }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    /// Returns an invocation of a shell script; `OUTSIDE` is in its environment.
    pub(crate) fn script(&self, script: &str) -> Invocation {
        let mut invocation = shell(&self.workspace(), script);
        invocation.limits = Limits { wall_ms: Some(60_000), ..Limits::danger_unlimited() };
        let value = self.outside().to_str().unwrap().to_owned();
        invocation.env.push(warrant_sandbox::EnvVar {
            name: "OUTSIDE".into(),
            value: warrant_sandbox::EnvValue::Plain(value),
        });
        invocation
    }

    /// Lets the attacker play, in an overlay where the tier has one.
    pub(crate) fn play(&self, script: &str) -> Played {
        self.play_invocation(self.script(script))
    }

    /// Lets a Perl program play.
    pub(crate) fn perl(&self, program: &str) -> Played {
        fs::write(self.workspace().join("attack.pl"), program).unwrap();
        self.play("perl attack.pl")
    }

    pub(crate) fn play_invocation(&self, mut invocation: Invocation) -> Played {
        if self.backend.isolation() == Isolation::Process {
            invocation.files.access = WorkspaceAccess::Direct;
        }
        let (report, memory) = run(self.backend, invocation);
        Played { report: report.unwrap(), memory }
    }
}

/// Lets the attack play against the namespace tier, as whoever we are, and as root also as an
/// ordinary user.
#[track_caller]
pub(crate) fn hold(path: &str, attack: fn(&Scene) -> Verdict) {
    let (_, name) = path.split_once("::").unwrap();
    hold_here(name, attack);
    if rustix::process::geteuid().is_root() {
        check_ordinary(name, ordinary_user(name).output());
    }
}

/// As [`hold`], on an internet of our own, which the ordinary user shares.
#[track_caller]
pub(crate) fn hold_on_internet(path: &str, attack: fn(&Scene) -> Verdict) {
    let (_, name) = path.split_once("::").unwrap();
    hold_here(name, attack);
    if rustix::process::geteuid().is_root() {
        let mut command = ordinary_user(name);
        command.env(SHARED, "1");
        check_ordinary(name, internet().on_host(|| command.output()));
    }
}

#[track_caller]
fn hold_here(name: &str, attack: fn(&Scene) -> Verdict) {
    let backend = Namespace::with_egress(options());
    let verdict = attack(&Scene::new(&backend));
    assert_eq!(verdict, Verdict::Held, "{name}");
}

/// An id nobody has.
const ORDINARY: u32 = 23_456;

fn ordinary_user(name: &str) -> Command {
    let mut command = Command::new(copied_binary());
    command.args(["--exact", "--nocapture", name]).uid(ORDINARY).gid(ORDINARY);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir("/");
    command
}

#[track_caller]
fn check_ordinary(name: &str, output: io::Result<Output>) {
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let more = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} as an ordinary user: {told} {more}");
    assert!(told.contains("1 passed"), "{name} did not run as an ordinary user: {told}");
}

/// Returns a copy of this binary where an ordinary user can execute it.
fn copied_binary() -> &'static Path {
    static COPY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = COPY.get_or_init(|| {
        let directory = tempfile::Builder::new().prefix("suite").tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = directory.path().join("it");
        // By another process: a writable descriptor of ours could be inherited by a concurrent
        // fork, and a file that is open for writing cannot be executed.
        let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&path).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        (directory, path)
    });
    path
}

/// Returns whether a run ended by itself with success.
pub(crate) fn succeeded(played: &Played) -> bool {
    played.report.outcome == Outcome::Exited { code: 0 }
}

/// Returns a number no other attack of this machine has right now.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (std::process::id() % 100_000) * 1000 + NEXT.fetch_add(1, Ordering::Relaxed)
}
