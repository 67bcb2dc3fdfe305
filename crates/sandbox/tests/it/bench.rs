//! A place to start programs in: a workspace, an invocation to change, a sink that remembers.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use tempfile::TempDir;
use warrant_protocol::Limits;
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, Command, EnvValue, EnvVar, Files, Invocation, Network,
    NetworkDecision, RunReport, Shell, Sink, Stdin, Stream, WorkspaceAccess,
};

/// Remembers what a run said.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    stdout: Mutex<Vec<u8>>,
    stderr: Mutex<Vec<u8>>,
    pub(crate) decisions: Mutex<Vec<NetworkDecision>>,
}

impl Sink for Memory {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let target = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        target.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn network(&self, decision: NetworkDecision) {
        self.decisions.lock().unwrap().push(decision);
    }
}

impl Memory {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().unwrap()).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }
}

/// Returns a fresh workspace.
pub(crate) fn workspace() -> TempDir {
    tempfile::Builder::new().prefix("ws").tempdir().unwrap()
}

/// Returns an invocation of a shell script in an overlay of `workspace`, with nothing granted.
pub(crate) fn shell(workspace: &Path, script: &str) -> Invocation {
    Invocation {
        command: Command::Shell { shell: Shell::Sh, script: script.to_owned() },
        cwd: workspace.to_owned(),
        env: vec![EnvVar { name: "LANG".into(), value: EnvValue::Plain("C".into()) }],
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: workspace.to_owned(),
            access: WorkspaceAccess::Overlay,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            places: Vec::new(),
            masks: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(90_000), ..Limits::danger_unlimited() },
        image: None,
        neighbors: None,
    }
}

/// Runs to the end.
pub(crate) fn run(
    backend: &dyn Backend,
    invocation: Invocation,
) -> (Result<RunReport, BoundaryError>, Memory) {
    let memory = Memory::default();
    let plan = backend.prepare(invocation).unwrap();
    let report = backend.run(&plan, &memory, &Cancel::new().unwrap());
    (report, memory)
}
