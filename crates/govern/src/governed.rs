//! A governed sandbox as a handle for programs that embed Warrant: made when it is first used,
//! judged at every call, with the receipts collected.
//!
//! Start at [`GovernedSandbox`]. It fails closed: when governance cannot answer, nothing runs.

mod clock;
mod open;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Decision, Digest, InvalidName, Isolation, Outcome, RelPath, RunId};
use warrant_sandbox::Cancel;

use self::clock::Lamport;
use crate::desk::{Desk, Permit, principal};
use crate::file_errands::{read_as_text_errand, read_errand, text_to_bytes, write_errand};
use crate::output::Capture;
use crate::workbench::{
    Away, Errand, Step, Work, Workbench, WorkbenchError, WorkbenchOptions, Writes,
};

/// Who asked for what ran although governance could not answer.
pub const FAIL_OPEN_PRINCIPAL: &str = "warrant-fail-open";

/// How many bytes of each stream a call gives back.
const OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// What happens when governance itself fails: no home, no store, a broken policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenGovernanceFails {
    /// Nothing runs.
    Refuse,
    /// It runs in the sandbox all the same, without contract and receipt, and is told as
    /// [`Standing::Pending`]. A denial is an answer, and stays one, also where it cannot be
    /// recorded; what makes no sense, and what may have run already, does not run. At a remote
    /// provider nothing runs even then: the workspace would leave this machine without anyone's
    /// permission.
    DangerRunAnyway,
}

/// Is told of every receipt.
pub type OnReceipt = Box<dyn Fn(&CallReceipt) + Send + Sync>;

/// Is told of every denial.
pub type OnDeny = Box<dyn Fn(&CallReceipt) + Send + Sync>;

/// How a governed sandbox is made.
pub struct GovernedOptions {
    /// The home directory; by the environment when absent.
    pub home: Option<PathBuf>,
    /// The tier, local or of a remote provider; the strongest that holds here when absent.
    pub provider: Option<String>,
    /// What only a remote provider needs.
    pub away: Away,
    /// Where it works; a directory of its own, removed at the end, when absent.
    pub workspace: Option<PathBuf>,
    /// Who asks; whoever is at the keyboard when absent.
    pub principal: Option<ActorRef>,
    /// How long a call may take.
    pub timeout_ms: Option<u64>,
    /// What happens when governance itself fails.
    pub when_governance_fails: WhenGovernanceFails,
    /// Is told of every receipt.
    pub on_receipt: Option<OnReceipt>,
    /// Is told of every denial.
    pub on_deny: Option<OnDeny>,
}

impl GovernedOptions {
    /// Returns options that use this machine's home and refuse when governance fails.
    #[must_use]
    pub const fn of_this_machine() -> Self {
        Self {
            home: None,
            provider: None,
            away: Away::plain(),
            workspace: None,
            principal: None,
            timeout_ms: None,
            when_governance_fails: WhenGovernanceFails::Refuse,
            on_receipt: None,
            on_deny: None,
        }
    }
}

/// Whether a call was permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A contract permitted it.
    Approved,
    /// Policy or people did not permit it; nothing ran.
    Denied,
    /// Governance could not answer; nobody permitted it.
    Pending,
}

/// What is left of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallReceipt {
    /// Whether it was permitted.
    pub standing: Standing,
    /// Who asked.
    pub principal: String,
    /// The run, with its own signed receipt; absent when governance failed.
    pub run: Option<RunId>,
    /// The digest of the request: the same for the same call.
    pub request_hash: Option<Digest>,
    /// The digest of the signed receipt.
    pub receipt_hash: Option<Digest>,
    /// The place of this call among all calls of this home; strictly increasing.
    pub lamport: u64,
    /// Why, when it was not permitted.
    pub reasons: Vec<String>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// What it said on standard output.
    pub stdout: Vec<u8>,
    /// What it said on standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took.
    pub wall_ms: Option<u64>,
    /// What is left of the call.
    pub receipt: CallReceipt,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Governed<T> {
    /// It happened.
    Done(T),
    /// It was denied; nothing ran.
    Denied(CallReceipt),
}

/// What a program gets, beside its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Variables of its environment.
    pub env: BTreeMap<String, String>,
    /// Where to start, below the workspace.
    pub cwd: Option<RelPath>,
    /// How long it may take; the handle's own time when absent.
    pub timeout_ms: Option<u64>,
    /// What it reads.
    pub stdin: Vec<u8>,
}

/// Why a call could not be made.
#[derive(Debug, Error)]
pub enum GovernedError {
    /// Governance failed; nothing ran.
    #[error("governance failed, so nothing ran")]
    Governance(#[source] Box<WorkbenchError>),
    /// The sandbox was destroyed.
    #[error("the sandbox was destroyed")]
    Destroyed,
    /// The path leaves the workspace.
    #[error(transparent)]
    Path(#[from] InvalidName),
    /// The program that reads or writes the file failed.
    #[error("{path} cannot be used: {problem}")]
    File {
        /// Which file.
        path: RelPath,
        /// What the program said.
        problem: String,
    },
    /// The system refused.
    #[error("the system refused")]
    System(#[from] io::Error),
    /// It could not run without governance either.
    #[error("the sandbox failed")]
    Sandbox(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A sandbox whose every call is judged, bounded and recorded. Threads may share it.
pub struct GovernedSandbox {
    options: GovernedOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    place: Option<Place>,
    bench: Option<Arc<Workbench>>,
    receipts: Vec<CallReceipt>,
    lamport: Lamport,
    is_destroyed: bool,
}

/// Where the sandbox works.
enum Place {
    Given(PathBuf),
    Own(tempfile::TempDir),
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Own(directory) => directory.path(),
        }
    }
}

impl GovernedSandbox {
    /// Returns a handle; nothing is made before its first use.
    #[must_use]
    pub fn new(options: GovernedOptions) -> Self {
        Self { options, state: Mutex::default() }
    }

    /// Runs a program, if it may run.
    ///
    /// # Errors
    /// [`GovernedError`] when governance failed and the handle refuses then, as it does unless
    /// told otherwise.
    pub fn exec(
        &self,
        argv: &[&str],
        options: &ExecOptions,
    ) -> Result<Governed<Execution>, GovernedError> {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let mut errand = Errand::new(Work::Argv(argv), Writes::Kept);
        errand.env.clone_from(&options.env);
        errand.cwd.clone_from(&options.cwd);
        errand.timeout_ms = options.timeout_ms.or(self.options.timeout_ms);
        errand.stdin.clone_from(&options.stdin);
        self.call(&errand)
    }

    /// Writes a file below the workspace, with its missing directories.
    ///
    /// # Errors
    /// [`GovernedError`] when it could not be written.
    pub fn write_file(
        &self,
        path: &str,
        content: &[u8],
    ) -> Result<Governed<CallReceipt>, GovernedError> {
        let path: RelPath = path.parse()?;
        let workspace = self.workspace()?;
        let written = self.call(&write_errand(&workspace, &path, content.to_vec()))?;
        Ok(match succeeded(path, written)? {
            Governed::Done(execution) => Governed::Done(execution.receipt),
            Governed::Denied(receipt) => Governed::Denied(receipt),
        })
    }

    /// Reads a file below the workspace, up to sixteen mebibytes of it, at a remote provider
    /// twelve.
    ///
    /// # Errors
    /// [`GovernedError`] when it could not be read.
    pub fn read_file(&self, path: &str) -> Result<Governed<Vec<u8>>, GovernedError> {
        let path: RelPath = path.parse()?;
        if !self.is_away() {
            let read = self.call(&read_errand(&path, 0, OUTPUT_BYTES as u64))?;
            return Ok(match succeeded(path, read)? {
                Governed::Done(execution) => Governed::Done(execution.stdout),
                Governed::Denied(receipt) => Governed::Denied(receipt),
            });
        }
        // Some providers carry text only; this many bytes are as much text as a call gives back.
        let read = self.call(&read_as_text_errand(&path, OUTPUT_BYTES as u64 / 4 * 3))?;
        Ok(match succeeded(path.clone(), read)? {
            Governed::Done(execution) => {
                let problem = "what came back is no base64".to_owned();
                let bytes = text_to_bytes(&execution.stdout);
                Governed::Done(bytes.ok_or(GovernedError::File { path, problem })?)
            }
            Governed::Denied(receipt) => Governed::Denied(receipt),
        })
    }

    /// Removes the sandbox and its own directory. Doing it twice is the same as once.
    ///
    /// # Errors
    /// The system's error when the directory cannot be removed.
    pub fn destroy(&self) -> io::Result<()> {
        let mut state = self.state();
        state.is_destroyed = true;
        state.bench = None;
        match state.place.take() {
            Some(Place::Own(directory)) => directory.close(),
            Some(Place::Given(_)) | None => Ok(()),
        }
    }

    /// Returns what is left of the calls so far, oldest first.
    #[must_use]
    pub fn receipts(&self) -> Vec<CallReceipt> {
        self.state().receipts.clone()
    }

    /// Forgets the collected receipts; the store keeps its own.
    pub fn clear_receipts(&self) {
        self.state().receipts.clear();
    }

    /// Returns where the sandbox works, and makes it if this is its first use.
    ///
    /// # Errors
    /// [`GovernedError::Destroyed`] after the end.
    pub fn workspace(&self) -> Result<PathBuf, GovernedError> {
        let mut state = self.state();
        if state.is_destroyed {
            return Err(GovernedError::Destroyed);
        }
        if let Some(place) = &state.place {
            return Ok(place.path().to_owned());
        }
        let place = match &self.options.workspace {
            Some(given) => Place::Given(fs::canonicalize(given)?),
            None => Place::Own(tempfile::Builder::new().prefix("warrant-box-").tempdir()?),
        };
        let path = place.path().to_owned();
        state.place = Some(place);
        Ok(path)
    }

    fn call(&self, errand: &Errand) -> Result<Governed<Execution>, GovernedError> {
        let workspace = self.workspace()?;
        let capture = Capture::beginning(OUTPUT_BYTES);
        let cancel = Cancel::new()?;
        let taken = self.bench(&workspace).and_then(|bench| {
            let desk = bench.desk()?;
            let request_hash = request_hash(&bench, &desk, errand)?;
            let step = bench.take(errand, &cancel, &capture)?;
            Ok((desk, request_hash, step))
        });
        let (desk, request_hash, step) = match taken {
            Ok(taken) => taken,
            Err(error) => return self.without_governance(errand, (&workspace, &capture), error),
        };
        let lamport = self.tick(Some(&desk))?;
        let mut receipt = CallReceipt {
            standing: Standing::Approved,
            principal: self.principal().label(),
            run: None,
            request_hash: Some(request_hash),
            receipt_hash: None,
            lamport,
            reasons: Vec::new(),
        };
        let ended = match step {
            Step::Ended { ended, .. } => ended,
            Step::NotRun(permit) => {
                receipt.standing = Standing::Denied;
                note_refusal(&mut receipt, *permit);
                self.collect(&receipt);
                return Ok(Governed::Denied(receipt));
            }
        };
        receipt.run = Some(ended.run.clone());
        receipt.receipt_hash = Some(ended.receipt.hash());
        self.collect(&receipt);
        let (stdout, stderr) = capture.excerpts();
        Ok(Governed::Done(Execution {
            stdout: stdout.head,
            stderr: stderr.head,
            outcome: ended.outcome,
            wall_ms: ended.usage.wall_us.map(|us| us.div_ceil(1000)),
            receipt,
        }))
    }

    /// Governance failed. Unless the danger was chosen, nothing runs.
    fn without_governance(
        &self,
        errand: &Errand,
        (workspace, capture): (&Path, &Capture),
        error: WorkbenchError,
    ) -> Result<Governed<Execution>, GovernedError> {
        let may_run = self.options.when_governance_fails == WhenGovernanceFails::DangerRunAnyway
            && open::could_not_answer(&error)
            // What nobody permitted leaves this machine under no name.
            && !self.is_away()
            && !self.is_refused(errand, workspace);
        if !may_run {
            return Err(GovernedError::Governance(Box::new(error)));
        }
        let provider = self.options.provider.as_deref();
        let report = open::run_ungoverned(errand, workspace, (provider, capture))?;
        let receipt = CallReceipt {
            standing: Standing::Pending,
            principal: FAIL_OPEN_PRINCIPAL.to_owned(),
            run: None,
            request_hash: None,
            receipt_hash: None,
            lamport: self.tick(None)?,
            reasons: vec![format!("governance failed: {error}")],
        };
        self.collect(&receipt);
        let (stdout, stderr) = capture.excerpts();
        Ok(Governed::Done(Execution {
            stdout: stdout.head,
            stderr: stderr.head,
            outcome: report.outcome,
            wall_ms: report.usage.wall_us.map(|us| us.div_ceil(1000)),
            receipt,
        }))
    }

    /// Whether policy can be asked and does not permit it, although that cannot be recorded.
    fn is_refused(&self, errand: &Errand, workspace: &Path) -> bool {
        let judged = self.bench(workspace).and_then(|bench| {
            let desk = bench.desk()?;
            Ok(desk.judge(&bench.ask(&desk, errand)?)?)
        });
        judged.is_ok_and(|judgment| judgment.summary.decision != Decision::Allow)
    }

    fn bench(&self, workspace: &Path) -> Result<Arc<Workbench>, WorkbenchError> {
        if let Some(bench) = &self.state().bench {
            return Ok(Arc::clone(bench));
        }
        let bench = Arc::new(Workbench::open(WorkbenchOptions {
            home: self.options.home.clone(),
            workspace: workspace.to_owned(),
            provider: self.options.provider.clone(),
            away: self.options.away.clone(),
            principal: self.principal(),
        })?);
        self.state().bench = Some(Arc::clone(&bench));
        Ok(bench)
    }

    /// Whether the sandbox is on somebody else's machine.
    fn is_away(&self) -> bool {
        let provider = self.options.provider.as_deref();
        let isolation = provider.and_then(|name| name.parse::<Isolation>().ok());
        isolation.is_some_and(Isolation::is_remote)
    }

    fn principal(&self) -> ActorRef {
        self.options.principal.clone().unwrap_or_else(principal)
    }

    fn tick(&self, desk: Option<&Desk>) -> io::Result<u64> {
        let file = desk.map(|desk| desk.plane().home().data().join("lamport"));
        self.state().lamport.tick(file.as_deref())
    }

    fn collect(&self, receipt: &CallReceipt) {
        self.state().receipts.push(receipt.clone());
        if let Some(tell) = &self.options.on_receipt {
            tell(receipt);
        }
        if receipt.standing == Standing::Denied
            && let Some(tell) = &self.options.on_deny
        {
            tell(receipt);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn request_hash(bench: &Workbench, desk: &Desk, errand: &Errand) -> Result<Digest, WorkbenchError> {
    let ask = bench.ask(desk, errand)?;
    Ok(ask.request.hash().map_err(crate::DeskError::from)?)
}

fn note_refusal(receipt: &mut CallReceipt, permit: Permit) {
    match permit {
        Permit::Denied { run, judgment, receipt: signed } => {
            receipt.run = Some(run);
            receipt.receipt_hash = Some(signed.hash());
            receipt.reasons = judgment.summary.reasons;
        }
        Permit::Waiting { run, judgment, .. } => {
            receipt.reasons = vec![format!("{run} needs approval")];
            receipt.reasons.extend(judgment.summary.reasons);
            receipt.run = Some(run);
        }
        Permit::Granted(run) => receipt.run = Some(run),
    }
}

/// A file program that failed is an error of the file.
fn succeeded(
    path: RelPath,
    called: Governed<Execution>,
) -> Result<Governed<Execution>, GovernedError> {
    match called {
        Governed::Done(execution) if !execution.outcome.is_success() => {
            let problem = String::from_utf8_lossy(&execution.stderr).trim().to_owned();
            Err(GovernedError::File { path, problem })
        }
        other => Ok(other),
    }
}
