//! The workbench: one workspace in which an agent works step by step, each step a governed run.
//!
//! Every [`Errand`] is judged, contracted, run and sealed for itself; what a program wrote is in
//! the workspace afterwards, so that the next step sees it, and can be undone. A policy that
//! changed since the last step is the one the next step is judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use warrant_protocol::execution::{EnvSpec, ExecutionSpec, ShellName};
use warrant_protocol::request::{ActorKind, ActorRef, EgressRule, WorkspaceMode};
use warrant_protocol::{Digest, Evidence, Isolation, Outcome, RelPath, RunId, SecretName};
use warrant_runner::run::{Ended, Observer};
use warrant_sandbox::{Backend, Cancel, Stdin};

use crate::backends::{self, NoBackend};
use crate::desk::{Desk, DeskError, Hands, Permit, principal, variables};
use crate::keep::{self, KeepError, Kept, Mode, Place};
use crate::providers::{self, NoProvider};
use crate::{Ask, find_program, plain_request};

/// Where and as whom a workbench works.
#[derive(Debug, Clone)]
pub struct WorkbenchOptions {
    /// The home directory; by the environment when absent.
    pub home: Option<PathBuf>,
    /// The workspace.
    pub workspace: PathBuf,
    /// The tier, local or of a remote provider; the strongest that holds here when absent.
    pub provider: Option<String>,
    /// What only a tier on somebody else's machine needs.
    pub away: Away,
    /// Who asks, as authenticated.
    pub principal: ActorRef,
}

/// What only a tier on somebody else's machine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Away {
    /// The image; the provider's own when absent.
    pub image: Option<String>,
    /// By component, how little is accepted as evidence for it. Policy says how far this goes.
    pub accept_evidence: BTreeMap<String, Evidence>,
    /// Where address and key of the provider are read from, by the variables it documents; this
    /// process's own environment when absent.
    pub environment: Option<BTreeMap<String, String>>,
}

impl Away {
    /// Returns the provider's own image, nothing accepted, and this process's environment.
    #[must_use]
    pub const fn plain() -> Self {
        Self { image: None, accept_evidence: BTreeMap::new(), environment: None }
    }
}

/// One workspace and the governed path to it. Threads may share it.
pub struct Workbench {
    home: Option<PathBuf>,
    workspace: PathBuf,
    principal: ActorRef,
    backend: Arc<dyn Backend>,
    away: Away,
    environment: BTreeMap<String, String>,
    current: Mutex<Arc<Desk>>,
    /// Held while a step may change the workspace, so that no two such steps overlap.
    writing: Mutex<()>,
}

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A program and its arguments.
    Argv(Vec<String>),
    /// A script for `bash`, or for `sh` where there is no `bash`.
    Script(String),
}

/// What becomes of a step's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// The workspace cannot be written.
    Refused,
    /// They stay in the run's diff.
    AsDiff,
    /// They are in the workspace afterwards, however the program exits; a program that was
    /// stopped leaves nothing.
    Kept,
}

/// One step.
#[derive(Debug, Clone)]
pub struct Errand {
    /// What to start.
    pub work: Work,
    /// Where, below the workspace.
    pub cwd: Option<RelPath>,
    /// How long it may take.
    pub timeout_ms: Option<u64>,
    /// What it may reach.
    pub hosts: Vec<EgressRule>,
    /// The secrets to release to it.
    pub secrets: Vec<SecretName>,
    /// Variables of its environment.
    pub env: BTreeMap<String, String>,
    /// What it reads. Its digest is part of the request.
    pub stdin: Vec<u8>,
    /// What becomes of its writes.
    pub writes: Writes,
}

/// What became of a step.
#[derive(Debug)]
pub enum Step {
    /// It has a receipt of its own, and this became of its writes.
    Ended {
        /// How it ended.
        ended: Box<Ended>,
        /// What became of its writes.
        kept: Kept,
    },
    /// It did not run.
    NotRun(Box<Permit>),
}

/// Why a step could not be taken; nothing ran that has no record.
#[derive(Debug, Error)]
pub enum WorkbenchError {
    /// The desk failed.
    #[error(transparent)]
    Desk(#[from] DeskError),
    /// No tier to run in.
    #[error(transparent)]
    Backend(#[from] NoBackend),
    /// The remote provider cannot be used.
    #[error(transparent)]
    Provider(#[from] NoProvider),
    /// The program ran, but its writes could not be kept.
    #[error("{run} ran, but its writes could not be kept")]
    Keep {
        /// Which run.
        run: RunId,
        /// Why.
        #[source]
        cause: KeepError,
    },
    /// There is no such workspace.
    #[error("no workspace at {path}")]
    NoWorkspace {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The whole machine is no workspace.
    #[error("/ is no workspace; change into a project or name one")]
    WholeMachine,
    /// The path of the workspace is no text, so nobody could say what was approved.
    #[error("the path of the workspace is no text: {0}")]
    NoText(PathBuf),
    /// There is nothing to start.
    #[error("no program to run")]
    NoProgram,
}

impl Errand {
    /// Returns a step with nothing but a program: no network, no secrets, nothing to read.
    #[must_use]
    pub const fn new(work: Work, writes: Writes) -> Self {
        Self {
            work,
            cwd: None,
            timeout_ms: None,
            hosts: Vec::new(),
            secrets: Vec::new(),
            env: BTreeMap::new(),
            stdin: Vec::new(),
            writes,
        }
    }
}

/// Returns the principal of a program that asks on behalf of whoever is at the keyboard.
///
/// It is not that person: what it asks for, they can approve.
#[must_use]
pub fn agent_principal(door: &str) -> ActorRef {
    ActorRef { kind: ActorKind::Service, id: format!("{door}/{}", principal().id) }
}

impl Workbench {
    /// Opens a workbench.
    ///
    /// # Errors
    /// [`WorkbenchError`] when home, policy, workspace or tier cannot be used.
    pub fn open(options: WorkbenchOptions) -> Result<Self, WorkbenchError> {
        let missing =
            |cause| WorkbenchError::NoWorkspace { path: options.workspace.clone(), cause };
        let workspace = fs::canonicalize(&options.workspace).map_err(missing)?;
        if workspace.parent().is_none() {
            return Err(WorkbenchError::WholeMachine);
        }
        if workspace.to_str().is_none() {
            return Err(WorkbenchError::NoText(workspace));
        }
        let current = Arc::new(Desk::open(options.home.as_deref())?);
        let backend = backend(&options, &current)?;
        Ok(Self {
            home: options.home,
            workspace,
            principal: options.principal,
            backend,
            away: options.away,
            environment: variables(),
            current: Mutex::new(current),
            writing: Mutex::new(()),
        })
    }

    /// Returns the workspace.
    #[must_use]
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Returns who asks here.
    #[must_use]
    pub const fn principal(&self) -> &ActorRef {
        &self.principal
    }

    /// Returns the tier that steps run in.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// Returns the desk with the policy that is in force now.
    ///
    /// # Errors
    /// [`DeskError`] when the home cannot be opened again; then nothing may run.
    pub fn desk(&self) -> Result<Arc<Desk>, DeskError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // SECURITY: a policy put in force while we are alive counts from the next step on.
        if current.is_outdated() {
            *current = Arc::new(Desk::open(self.home.as_deref())?);
        }
        Ok(Arc::clone(&current))
    }

    /// Holds off every step that may change the workspace, for as long as the guard lives.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a step as it is asked for. The same step gives the same request, to the hash.
    ///
    /// # Errors
    /// [`WorkbenchError::NoProgram`] when there is nothing to start.
    pub fn ask(&self, desk: &Desk, errand: &Errand) -> Result<Ask, WorkbenchError> {
        let env = EnvSpec {
            inherit: None,
            secrets: None,
            vars: Some(errand.env.clone()),
            egress_proxy: None,
        };
        let (execution, program) = execution(errand, env)?;
        let who = (&self.principal, desk.plane().home().pool());
        let isolation = self.backend.isolation();
        let mut request = plain_request(who, &self.workspace, execution, isolation);
        if !errand.stdin.is_empty() {
            // SECURITY: what the program reads is judged and approved with it.
            let digest = Digest::of(&errand.stdin);
            request.prompt = format!("reading {digest}: {}", request.prompt);
        }
        let (hosts, egress) = EgressRule::part(errand.hosts.clone());
        request.network.allow_hosts = hosts;
        request.egress = egress;
        request.secret_names.clone_from(&errand.secrets);
        request.mode = Some(match errand.writes {
            // A copy on another machine is always written; nothing of it is kept here.
            Writes::Refused if isolation.is_remote() => WorkspaceMode::Overlay,
            Writes::Refused => WorkspaceMode::ReadOnly,
            Writes::AsDiff | Writes::Kept => WorkspaceMode::Overlay,
        });
        request.image.clone_from(&self.away.image);
        let accepted = &self.away.accept_evidence;
        request.accept_evidence = (!accepted.is_empty()).then(|| accepted.clone());
        let ask = Ask {
            request,
            principal: self.principal.clone(),
            workspace: self.workspace.clone(),
            program: find_program(&program),
            image: self.away.image.clone(),
            settled_env: BTreeSet::new(),
        };
        Ok(desk.with_gaps(desk.with_git(ask)?.ask)?)
    }

    /// Takes one step to its receipt.
    ///
    /// # Errors
    /// [`WorkbenchError`] when nothing could be recorded; then nothing ran unrecorded.
    pub fn take(
        &self,
        errand: &Errand,
        cancel: &Cancel,
        observer: &dyn Observer,
    ) -> Result<Step, WorkbenchError> {
        let desk = self.desk()?;
        let ask = self.ask(&desk, errand)?;
        let _writing = (errand.writes == Writes::Kept).then(|| self.hold());
        let place = Place::find(&self.workspace).map_err(DeskError::System)?;
        let run = match desk.permit(&ask)? {
            Permit::Granted(run) => run,
            other => return Ok(Step::NotRun(Box::new(other))),
        };
        let stdin = match errand.stdin.as_slice() {
            [] => Stdin::Empty,
            bytes => Stdin::Bytes(bytes.to_vec()),
        };
        let hands = Hands {
            backend: self.backend.as_ref(),
            stdin: &stdin,
            tty: None,
            cancel,
            observer,
            environment: &self.environment,
        };
        let ended = desk.perform(&run, &ask, &hands)?;
        let kept = self.keep(&desk, errand, (&place, &ended))?;
        Ok(Step::Ended { ended: Box::new(ended), kept })
    }

    fn keep(
        &self,
        desk: &Desk,
        errand: &Errand,
        (place, ended): (&Place, &Ended),
    ) -> Result<Kept, WorkbenchError> {
        let mode = match errand.writes {
            Writes::Refused | Writes::AsDiff => Mode::Isolated,
            Writes::Kept => {
                let keeps_failure = matches!(ended.outcome, Outcome::Exited { .. });
                Mode::Rollback { keeps_failure }
            }
        };
        keep::after(desk, place, mode, ended)
            .map_err(|cause| WorkbenchError::Keep { run: ended.run.clone(), cause })
    }
}

fn execution(errand: &Errand, env: EnvSpec) -> Result<(ExecutionSpec, String), WorkbenchError> {
    let (cwd, timeout_ms) = (errand.cwd.clone(), errand.timeout_ms);
    match &errand.work {
        Work::Argv(argv) => {
            let (command, args) = argv.split_first().ok_or(WorkbenchError::NoProgram)?;
            let (command, args) = (command.clone(), args.to_vec());
            let program = command.clone();
            let env = Some(env);
            Ok((ExecutionSpec::Argv { command, args, cwd, timeout_ms, env, log: None }, program))
        }
        Work::Script(script) => {
            let shell = script_shell();
            let execution = ExecutionSpec::Shell {
                script: script.clone(),
                shell: Some(shell),
                cwd,
                timeout_ms,
                env: Some(env),
                log: None,
            };
            Ok((execution, shell.as_str().to_owned()))
        }
    }
}

/// Returns the shell that scripts of agents are written for, where it exists.
#[must_use]
pub fn script_shell() -> ShellName {
    if find_program("bash").is_some() { ShellName::Bash } else { ShellName::Sh }
}

/// Returns the tier a person named, here or at a provider, or the strongest that holds here.
fn backend(options: &WorkbenchOptions, desk: &Desk) -> Result<Arc<dyn Backend>, WorkbenchError> {
    let name = options.provider.as_deref();
    let isolation = name.and_then(|name| name.parse::<Isolation>().ok());
    if let Some(isolation) = isolation.filter(|isolation| providers::REMOTE.contains(isolation)) {
        let environment = options.away.environment.clone();
        let environment = environment.unwrap_or_else(variables);
        return Ok(providers::open_with(isolation, desk.plane().home(), environment)?);
    }
    let all = backends::local();
    Ok(Arc::clone(backends::choose(&all, name)?))
}
