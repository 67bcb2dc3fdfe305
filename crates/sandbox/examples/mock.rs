//! Runs one script in the mock tier: `mock <script>`.

use std::io::{self, Write};
use std::process::ExitCode;

use warrant_protocol::Limits;
use warrant_sandbox::hermetic::{Pool, WorkerProgram, worker_main};
use warrant_sandbox::mock::Mock;
use warrant_sandbox::{
    Backend, Cancel, Command, Files, Invocation, Network, NetworkDecision, Shell, Sink, Stdin,
    Stream, WorkspaceAccess,
};

struct Terminal;

impl Sink for Terminal {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Stdout => io::stdout().write_all(bytes),
            Stream::Stderr => io::stderr().write_all(bytes),
        }
    }

    fn network(&self, _decision: NetworkDecision) {}
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Some(code) = worker_main() {
        return Ok(code);
    }
    let script = std::env::args().nth(1).ok_or("usage: mock <script>")?;
    let backend = Mock::new(Pool::new(WorkerProgram::this(), 1));
    let plan = backend.prepare(Invocation {
        command: Command::Shell { shell: Shell::Bash, script },
        cwd: "/".into(),
        env: Vec::new(),
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: "/".into(),
            access: WorkspaceAccess::ReadOnly,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            places: Vec::new(),
            masks: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(60_000), ..Limits::danger_unlimited() },
        image: None,
        neighbors: None,
    })?;
    let report = backend.run(&plan, &Terminal, &Cancel::new()?)?;
    Ok(report.outcome.wire_exit_code().map_or(ExitCode::FAILURE, ExitCode::from))
}
