//! Runs a program in the sandbox although governance failed. Reached only when the danger was
//! chosen by name; what runs here has no contract, no secrets and no network.

use std::path::Path;

use warrant_plane::SubmitError;
use warrant_protocol::Limits;
use warrant_protocol::port::PlaneError;
use warrant_runner::run::RunError;
use warrant_sandbox::{
    Cancel, Command, EnvValue, EnvVar, Files, Invocation, Network, NetworkDecision, RunReport,
    Shell, Sink, Stdin, Stream, WorkspaceAccess,
};

use super::GovernedError;
use crate::backends;
use crate::desk::DeskError;
use crate::output::Capture;
use crate::script_shell;
use crate::workbench::{Errand, Work, WorkbenchError, Writes};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long it may take when nobody says.
const WALL_MS: u64 = 600_000;

/// Files that hold secrets by their name, as the shipped policies mask them.
const MASKS: [&str; 9] =
    [".env", ".env.*", "*.pem", "*.key", "id_rsa", "id_ed25519", ".netrc", ".npmrc", ".pypirc"];

/// Returns whether governance itself failed, before anything could run. A call that makes no
/// sense, that waits for people, or whose program may have run already is none of that.
pub(super) const fn could_not_answer(error: &WorkbenchError) -> bool {
    let WorkbenchError::Desk(error) = error else { return false };
    match error {
        DeskError::Home(_)
        | DeskError::Plane(_)
        | DeskError::Store(_)
        | DeskError::Files(_)
        | DeskError::Keyring(_)
        | DeskError::System(_)
        | DeskError::Lease(PlaneError::Failed(_))
        | DeskError::Run(RunError::NotStarted(PlaneError::Failed(_)))
        | DeskError::Submit(
            SubmitError::Plane(_)
            | SubmitError::Store(_)
            | SubmitError::Notary(_)
            | SubmitError::System(_),
        ) => true,
        DeskError::Submit(SubmitError::Request(_) | SubmitError::OtherPolicy { .. })
        | DeskError::Approvals(_)
        | DeskError::Lease(_)
        | DeskError::Run(_)
        | DeskError::Request(_)
        | DeskError::SecretInRequest { .. }
        | DeskError::Moved(_)
        | DeskError::NoRun(_) => false,
    }
}

pub(super) fn run_ungoverned(
    errand: &Errand,
    workspace: &Path,
    (provider, capture): (Option<&str>, &Capture),
) -> Result<RunReport, GovernedError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| GovernedError::Sandbox(error);
    let all = backends::local();
    let backend = backends::choose(&all, provider).map_err(|error| failed(error.into()))?;
    let plan = backend
        .prepare(invocation(errand, workspace)?)
        .map_err(|error| failed(format!("{error:?}").into()))?;
    let cancel = Cancel::new()?;
    backend.run(&plan, &Unrecorded(capture), &cancel).map_err(|error| failed(error.into()))
}

struct Unrecorded<'a>(&'a Capture);

impl Sink for Unrecorded<'_> {
    fn output(&self, stream: Stream, bytes: &[u8]) -> std::io::Result<()> {
        warrant_runner::run::Observer::output(self.0, stream, bytes)
    }

    fn network(&self, _decision: NetworkDecision) {}
}

fn invocation(errand: &Errand, workspace: &Path) -> Result<Invocation, GovernedError> {
    let nothing = || GovernedError::Governance(Box::new(WorkbenchError::NoProgram));
    let command = match &errand.work {
        Work::Argv(argv) => {
            let (program, args) = argv.split_first().ok_or_else(nothing)?;
            Command::Argv { program: program.clone(), args: args.to_vec() }
        }
        Work::Script(script) => {
            let shell = match script_shell() {
                warrant_protocol::execution::ShellName::Sh => Shell::Sh,
                warrant_protocol::execution::ShellName::Bash => Shell::Bash,
            };
            Command::Shell { shell, script: script.clone() }
        }
    };
    let plain = |(name, value): (&String, &String)| EnvVar {
        name: name.clone(),
        value: EnvValue::Plain(value.clone()),
    };
    let path = EnvVar { name: "PATH".to_owned(), value: EnvValue::Plain(PATH.to_owned()) };
    let limits = Limits {
        wall_ms: Some(errand.timeout_ms.unwrap_or(WALL_MS)),
        memory_bytes: Some(2 << 30),
        processes: Some(512),
        output_bytes: Some(16 << 20),
        ..Limits::danger_unlimited()
    };
    Ok(Invocation {
        image: None,
        neighbors: None,
        command,
        cwd: match &errand.cwd {
            Some(cwd) => workspace.join(cwd.as_str()),
            None => workspace.to_owned(),
        },
        env: std::iter::once(path).chain(errand.env.iter().map(plain)).collect(),
        stdin: match errand.stdin.as_slice() {
            [] => Stdin::Empty,
            bytes => Stdin::Bytes(bytes.to_vec()),
        },
        tty: None,
        files: Files {
            workspace: workspace.to_owned(),
            // Nothing that nobody permitted changes the workspace.
            access: match errand.writes {
                Writes::Refused => WorkspaceAccess::ReadOnly,
                Writes::AsDiff | Writes::Kept => WorkspaceAccess::Overlay,
            },
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            masks: MASKS.map(str::to_owned).to_vec(),
            places: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits,
    })
}
