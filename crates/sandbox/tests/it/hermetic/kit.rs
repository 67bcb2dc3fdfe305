//! Runs scripts in the hermetic tier and keeps what they said.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use warrant_protocol::{Limits, Outcome};
use warrant_sandbox::hermetic::{Hermetic, Pool, WorkerProgram};
use warrant_sandbox::{
    Backend, Cancel, Command, EnvValue, EnvVar, Files, Invocation, Network, NetworkDecision,
    RunReport, Shell, Sink, Stdin, Stream, WorkspaceAccess,
};

/// Returns a pool of real workers.
pub(crate) fn pool() -> Pool {
    Pool::new(WorkerProgram::at(env!("CARGO_BIN_EXE_warrant-sandbox-worker")), 0)
}

/// Returns the backend all tests share, so that it is probed once; tests below a module `warm`
/// share one whose workers wait in their jails.
pub(crate) fn backend() -> &'static Hermetic {
    static COLD: OnceLock<Hermetic> = OnceLock::new();
    static WARM: OnceLock<Hermetic> = OnceLock::new();
    if is_warm() {
        WARM.get_or_init(|| Hermetic::warm(waiting(2)))
    } else {
        COLD.get_or_init(|| Hermetic::new(pool()))
    }
}

/// Returns a pool in which so many workers may wait.
pub(crate) fn waiting(size: usize) -> Pool {
    Pool::new(WorkerProgram::at(env!("CARGO_BIN_EXE_warrant-sandbox-worker")), size)
}

/// Whether the test that asks is one of those that are made once more with warm workers.
pub(crate) fn is_warm() -> bool {
    std::thread::current().name().is_some_and(|name| name.contains("::warm::"))
}

/// Keeps everything a run says.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    stdout: Mutex<Vec<u8>>,
    stderr: Mutex<Vec<u8>>,
    network: Mutex<Vec<NetworkDecision>>,
}

impl Sink for Heard {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let buffer = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        buffer.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn network(&self, decision: NetworkDecision) {
        self.network.lock().unwrap().push(decision);
    }
}

impl Heard {
    pub(crate) fn stdout(&self) -> Vec<u8> {
        self.stdout.lock().unwrap().clone()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }

    pub(crate) fn network(&self) -> Vec<NetworkDecision> {
        self.network.lock().unwrap().clone()
    }
}

/// A workspace beside a directory nobody may touch.
pub(crate) struct Bench {
    pub(crate) temp: TempDir,
    pub(crate) invocation: Invocation,
}

/// What came of a script.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) report: RunReport,
    pub(crate) took: Duration,
    pub(crate) network: Vec<NetworkDecision>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let temp = TempDir::new().unwrap();
        let workspace = temp.path().canonicalize().unwrap().join("workspace");
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(temp.path().join("outside")).unwrap();
        fs::write(temp.path().join("outside/secret"), "SECRET-OUTSIDE\n").unwrap();
        let invocation = Invocation {
            command: Command::Shell { shell: Shell::Bash, script: String::new() },
            cwd: workspace.clone(),
            env: Vec::new(),
            stdin: Stdin::Empty,
            tty: None,
            files: Files {
                workspace,
                access: WorkspaceAccess::Direct,
                read_roots: Vec::new(),
                write_roots: Vec::new(),
                places: Vec::new(),
                masks: Vec::new(),
            },
            network: Network::Allow(Vec::new()),
            limits: Limits { wall_ms: Some(20_000), ..Limits::danger_unlimited() },
            image: None,
            neighbors: None,
        };
        Self { temp, invocation }
    }

    pub(crate) fn workspace(&self) -> &Path {
        &self.invocation.files.workspace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.workspace().join(name)
    }

    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join("outside").join(name)
    }

    pub(crate) fn put(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn env(&mut self, name: &str, value: &str) {
        let value = EnvValue::Plain(value.into());
        self.invocation.env.push(EnvVar { name: name.into(), value });
    }

    /// Nothing outside was changed.
    #[track_caller]
    pub(crate) fn check_outside_is_untouched(&self) {
        assert_eq!(fs::read_to_string(self.outside("secret")).unwrap(), "SECRET-OUTSIDE\n");
        assert_eq!(fs::read_dir(self.outside("")).unwrap().count(), 1);
    }

    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Ran {
        let command = Command::Shell { shell: Shell::Bash, script: script.into() };
        run(backend(), Invocation { command, ..self.invocation.clone() })
    }

    /// Runs a script that must say exactly this and succeed.
    #[track_caller]
    pub(crate) fn check(&self, script: &str, stdout: &str) {
        let ran = self.run(script);
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), (stdout, ""), "{script}");
        assert_eq!(ran.report.outcome, Outcome::Exited { code: 0 }, "{script}");
    }
}

/// Runs an invocation in a backend to its end.
#[track_caller]
pub(crate) fn run(backend: &dyn Backend, invocation: Invocation) -> Ran {
    let plan = backend.prepare(invocation).unwrap();
    let heard = Heard::default();
    let started = Instant::now();
    let report = backend.run(&plan, &heard, &Cancel::new().unwrap()).unwrap();
    Ran {
        took: started.elapsed(),
        stdout: String::from_utf8_lossy(&heard.stdout()).into_owned(),
        stderr: heard.stderr(),
        network: heard.network(),
        report,
    }
}
