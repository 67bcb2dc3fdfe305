//! One governed run: steps five to ten of the walk, one function whose lines are the rooms.
//!
//! Start at [`governed_run`]. Any error of any room becomes a sealed receipt in one place,
//! `seal`; only a fenced lease writes nothing more.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use thiserror::Error;
use warrant_protocol::chain::InvalidEvent;
use warrant_protocol::event::{ArtifactKind, FailureClass, NetworkVerdict};
use warrant_protocol::execution::{PreparedCommand, PreparedExecution};
use warrant_protocol::fold::FoldError;
use warrant_protocol::port::{Lease, Plane, PlaneError, SecretValue};
use warrant_protocol::signed::InvalidSigned;
use warrant_protocol::{
    Event, Isolation, LimitKind, Outcome, PoolName, Posture, PublicKey, Receipt, RunId, RunnerId,
    SigningKey, Timestamp, Usage,
};
use warrant_sandbox::{Backend, Cancel, Gate, Operation, Plan, RunReport, Stdin, Stream, TtySize};
use warrant_workspace::{GatePolicy, Progress, Step, TreePath};

use crate::capture::JudgedPath;
use crate::door::verify_contract;
use crate::fit;
use crate::gaps::close_gaps;
use crate::guard::{self, Demands, VersionPins};
use crate::halt::Halt;
use crate::journal::Journal;
use crate::missing_program;
use crate::own::keep_out;
use crate::pack::{self, CollectDeadline, Packed, Packing};
use crate::redact::Redactor;
use crate::seal::{Walked, seal};
use crate::sink::{RunSink, Taken};
use crate::site::{Site, Visit};

/// Who this runner is.
#[derive(Debug, Clone)]
pub struct RunnerIdentity {
    /// Its id.
    pub id: RunnerId,
    /// Its key.
    pub key: SigningKey,
    /// Its pool.
    pub pool: PoolName,
}

/// Everything of this machine that one run uses. Nothing in it decides policy.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The plane.
    pub plane: &'a dyn Plane,
    /// The plane's key, pinned at enrollment.
    pub plane_key: &'a PublicKey,
    /// Who runs.
    pub identity: &'a RunnerIdentity,
    /// The backends this machine has, at most one for each tier.
    pub backends: &'a [&'a dyn Backend],
    /// Versions of providers that are known to be good; a tier without an entry is not pinned.
    pub pins: &'a [VersionPins],
    /// The workspace as it lies on this machine.
    pub workspace: &'a Path,
    /// A directory of ours for scratch files, which no session ever sees.
    pub scratch: &'a Path,
    /// Our own directory, with keys and policy, which no session ever sees or changes.
    pub own: &'a Path,
    /// The environment that `env.inherit` of a contract may take from.
    pub environment: &'a BTreeMap<String, String>,
    /// What the program reads.
    pub stdin: &'a Stdin,
    /// The size of its terminal, if it gets one.
    pub tty: Option<TtySize>,
    /// Tells the run to stop.
    pub cancel: &'a Cancel,
    /// Sees what happens while it happens.
    pub observer: &'a dyn Observer,
    /// What the export gate says of files that execute later.
    pub gate: &'a GatePolicy,
    /// The clock.
    pub clock: &'a (dyn Fn() -> Timestamp + Sync),
}

/// Sees what happens while it happens. What it sees is redacted.
pub trait Observer: Send + Sync {
    /// Takes output of the program.
    ///
    /// # Errors
    /// An error means nobody reads any more; the run is cancelled.
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()>;

    /// Hears how far building or collecting the workspace is; nothing means that it is done.
    fn progress(&self, _step: Option<Step>) {}
}

impl Surroundings<'_> {
    /// Does work on the workspace whose progress the observer hears.
    pub(crate) fn told<T>(&self, work: impl FnOnce(Progress<'_>) -> T) -> T {
        let done = work(&|step| self.observer.progress(Some(step)));
        self.observer.progress(None);
        done
    }
}

/// How a run ended; its receipt is signed, countersigned and stored.
#[derive(Debug)]
pub struct Ended {
    /// The run.
    pub run: RunId,
    /// When it was begun here; what it saw of the workspace is as of then.
    pub began: Timestamp,
    /// How the program ended, or why it never started.
    pub outcome: Outcome,
    /// Why it did not end well, for people; empty when it did.
    pub message: String,
    /// What it used.
    pub usage: Usage,
    /// The receipt.
    pub receipt: Receipt,
    /// The overlay's upper directory, when the workspace was an overlay.
    pub upper: Option<OwnedFd>,
    /// Why no diff was kept of what it changed, when that is so.
    pub unpacked: Option<String>,
    /// What the export gate decided about what it changed, in every mode.
    pub judged: Vec<JudgedPath>,
    /// What of the boundary could not be taken down; the receipt says it, too.
    pub left_behind: Option<String>,
    /// Takes the secrets it had out of what is told of it.
    pub(crate) redactor: Redactor,
}

impl Ended {
    /// Returns the hosts it was kept from, as its receipt tells them: programs seldom say why they
    /// did not get through.
    #[must_use]
    pub fn blocked_hosts(&self) -> Vec<&str> {
        let accessed = self.receipt.body().network_accessed.iter();
        let blocked = accessed.filter(|access| access.decision == NetworkVerdict::Blocked);
        blocked.map(|access| access.host.as_str()).collect()
    }

    /// Returns whether it was given secrets.
    #[must_use]
    pub const fn had_secrets(&self) -> bool {
        !self.redactor.is_empty()
    }

    /// Returns a path that it changed, for people: without the secrets it had.
    #[must_use]
    pub fn name_of(&self, path: &TreePath) -> String {
        self.redactor.redact_text(&path.to_string())
    }
}

/// Why a run has no receipt of this runner. The plane seals it when the lease is over.
#[derive(Debug, Error)]
pub enum RunError {
    /// Another lease holds the run, or it ended already.
    #[error("the lease of {0} is over")]
    Fenced(RunId),
    /// Nothing was started, and the run was given back to the plane or is left to it.
    #[error("{run} was given back before it started: {reason}")]
    GivenBack {
        /// Which run.
        run: RunId,
        /// Why.
        reason: &'static str,
    },
    /// The plane did not take the receipt.
    #[error("the receipt was not taken")]
    Plane(#[source] PlaneError),
    /// The plane recorded neither start nor receipt.
    #[error("the start cannot be recorded, so nothing ran")]
    NotStarted(#[source] PlaneError),
    /// The end could not be recorded.
    #[error("the end cannot be recorded")]
    Event(#[from] InvalidEvent),
    /// The chain folds to no receipt.
    #[error("the receipt cannot be folded")]
    Fold(#[from] FoldError),
    /// The receipt could not be signed.
    #[error("the receipt cannot be signed")]
    Sign(#[from] InvalidSigned),
}

/// Runs one leased contract to its receipt.
///
/// # Errors
/// [`RunError`] when no receipt could be left; everything else is an [`Ended`].
pub fn governed_run(surroundings: &Surroundings<'_>, lease: Lease) -> Result<Ended, RunError> {
    run_at(surroundings, None, lease)
}

/// Runs one leased contract whose workspace is not on this machine: it is built from the
/// contract's blobs in a directory of this run alone, and what changed comes back as a diff
/// against the contract's commit.
///
/// # Errors
/// [`RunError`] when no receipt could be left; everything else is an [`Ended`].
pub fn visiting_run(
    surroundings: &Surroundings<'_>,
    visit: &Visit<'_>,
    lease: Lease,
) -> Result<Ended, RunError> {
    run_at(surroundings, Some(visit), lease)
}

fn run_at(
    surroundings: &Surroundings<'_>,
    visit: Option<&Visit<'_>>,
    lease: Lease,
) -> Result<Ended, RunError> {
    let mut journal = Journal::new(lease.chain.clone(), surroundings.clock);
    let mut redactor = Redactor::none();
    let left = Cell::new(None);
    let walked = walk(surroundings, (visit, &lease), &mut journal, (&mut redactor, &left));
    seal(surroundings, (visit, &lease), journal, (walked, redactor, left.take()))
}

/// The rooms, in their order. Whoever returns early leaves the later rooms unentered.
fn walk(
    surroundings: &Surroundings<'_>,
    (visit, lease): (Option<&Visit<'_>>, &Lease),
    journal: &mut Journal<'_>,
    (redactor, left): (&mut Redactor, &Cell<Option<String>>),
) -> Result<Walked, Halt> {
    let contract = lease.contract.body();
    verify_contract(lease, surroundings.identity, surroundings.plane_key, journal.now())?;
    let execution = fit::prepare_execution(contract, surroundings.environment, visit)?;
    let limits = fit::limits_of(contract, &execution, visit);
    let demands = Demands::of(contract, &limits);
    let wall_ms = limits.wall_ms;
    let backend = guard::choose_backend(surroundings.backends, contract.isolation_or_default())?;
    let check = |journal: &mut Journal<'_>, posture| {
        guard::check_posture(journal, posture, &demands, surroundings.pins)
    };
    // A boundary on somebody else's machine can only be looked at once it was asked for.
    let is_remote = backend.isolation().is_remote();
    let trial = guard::Trial::of(contract);
    let is_own_work = !backend.starts_program();
    let probed = match is_remote || is_own_work {
        true => None,
        false => {
            let target = fit::write_target(contract, visit);
            Some(check(journal, backend.narrowed(trial.posture(backend), target))?)
        }
    };
    let site = Site::open(surroundings, (visit, lease), journal)?;
    let place = fit::Place {
        workspace: site.path(),
        ownership: site.ownership(),
        read: visit.and_then(|visit| visit.agent_program(contract)),
        stdin: surroundings.stdin,
        tty: surroundings.tty,
    };
    let invocation = fit::invocation(contract, &execution, place, limits);
    let invocation = match backend.shows_host_paths() {
        true => close_gaps(journal, contract, invocation)?,
        // No path of the program is one of ours; what it was not given does not exist inside.
        false => invocation,
    };
    let invocation = keep_out(invocation, surroundings.own, (place.ownership, place.read))?;
    let mut fitted = fit::Fitted::new(backend, invocation, left)?;
    let posture = match probed {
        // A gap that was granted can let it write where the trial did not.
        Some(posture) => Some(guard::check_narrowed(
            journal,
            backend.narrowed(posture, fitted.plan.invocation.files.write_target()),
            &demands,
        )?),
        // Where no program starts there is no boundary to bind.
        None if is_own_work => None,
        None => Some(check(journal, fitted.ready(surroundings.cancel)?)?),
    };
    let room = Room { surroundings, lease, backend };
    let (report, taken) = if contract.secrets.is_empty() {
        room.work_after_start((&fitted, posture.as_ref()), journal)?
    } else {
        fitted.bind(journal, posture.as_ref())?;
        let secrets = start(surroundings, lease, journal)?;
        *redactor = Redactor::new(&secrets).map_err(|error| Halt::internal(error.to_string()))?;
        fit::fill_secrets(&mut fitted.plan, &secrets);
        room.work((&fitted.plan, redactor), &mut || true)?
    };
    if report.outcome == Outcome::PostureRefused {
        return Err(refused_at_last(journal, &demands, &report)?);
    }
    record_work(journal, (&execution, &demands), &report, &taken)?;
    if let Some(folded) = &taken.folded {
        pack::keep_blocked(surroundings, lease, journal, folded)?;
    }
    let used_ms = report.usage.wall_us.unwrap_or_default() / 1000;
    let deadline = CollectDeadline::new(surroundings.cancel, wall_ms, used_ms);
    let packing = Packing { surroundings, lease, redactor, stop: &|| deadline.is_over() };
    let packed = match &report.operation {
        Some(_) => Packed::nothing(),
        None => site.pack(journal, &packing, &report)?,
    };
    let Packed { failure: not_packed, judged } = packed;
    if let Some(log) = taken.log {
        pack::record_artifact(journal, ArtifactKind::Log, log.digest, "session-log")?;
    }
    check_held(journal, &demands, &report)?;
    let unpacked = not_packed.as_ref().map(|(_, message)| message.clone());
    let failure = match (told_failure((&execution, backend.isolation()), &report), not_packed) {
        (Some((class, ended)), Some((_, lost))) => Some((class, format!("{ended}; {lost}"))),
        (ended, lost) => ended.or(lost),
    };
    let RunReport { outcome, usage, upper, .. } = report;
    Ok(Walked { outcome, usage, upper, failure, unpacked, judged })
}

/// Has the plane record the start; only then are secrets here.
fn start(
    surroundings: &Surroundings<'_>,
    lease: &Lease,
    journal: &mut Journal<'_>,
) -> Result<Vec<SecretValue>, Halt> {
    if surroundings.cancel.is_cancelled() {
        return Err(Halt::new(Outcome::Cancelled, FailureClass::SessionFailed, "cancelled"));
    }
    let started = surroundings.plane.start(&lease.key, journal.untold())?;
    journal.take_over(started.events)?;
    Ok(started.secrets)
}

/// Where the program runs.
struct Room<'a> {
    surroundings: &'a Surroundings<'a>,
    lease: &'a Lease,
    backend: &'a dyn Backend,
}

impl Room<'_> {
    /// Runs a program that needs no secret: its boundary is built while what will be applied is
    /// bound and the plane records the start, and it starts when all is done.
    fn work_after_start(
        &self,
        (fitted, posture): (&fit::Fitted<'_>, Option<&Posture>),
        journal: &mut Journal<'_>,
    ) -> Result<(RunReport, Taken), Halt> {
        let mut halted = None;
        let mut gate = || {
            let begun = fitted
                .bind(journal, posture)
                .and_then(|()| start(self.surroundings, self.lease, journal));
            halted = begun.err();
            halted.is_none()
        };
        let worked = self.work((&fitted.plan, &Redactor::none()), &mut gate);
        match halted {
            Some(halt) => Err(halt),
            None => worked,
        }
    }

    /// Runs the program.
    fn work(
        &self,
        (plan, redactor): (&Plan, &Redactor),
        gate: Gate<'_>,
    ) -> Result<(RunReport, Taken), Halt> {
        let Surroundings { plane, observer, cancel, .. } = *self.surroundings;
        let log = plane.new_blob(&self.lease.key)?;
        let sink = RunSink::new(observer, redactor.clone(), log);
        let report = self.backend.run_gated(plan, gate, (&sink, cancel))?;
        let taken = sink
            .finish(&report)
            .map_err(|error| Halt::internal(format!("the output could not be kept: {error}")))?;
        Ok((report, taken))
    }
}

/// Records what the program did and said.
fn record_work(
    journal: &mut Journal<'_>,
    (execution, demands): (&PreparedExecution, &Demands),
    report: &RunReport,
    taken: &Taken,
) -> Result<(), Halt> {
    for event in &taken.network {
        journal.record(event)?;
    }
    match &report.operation {
        Some(Operation { name, succeeded, guards }) => {
            journal.record(&Event::OperationPerformed {
                operation: (*name).to_owned(),
                request_hash: execution.hash(),
                succeeded: *succeeded,
                guards: guards.clone(),
            })?;
        }
        None => {
            let exit_code = report.outcome.wire_exit_code().map_or(1, i64::from);
            journal.record(&Event::CommandExecuted { argv_hash: execution.hash(), exit_code })?;
            journal.record(&Event::PostureObserved {
                posture: report.posture.clone(),
                limits_enforced: demands.limits_held(&report.posture),
                limits_observed: demands.limits_sampled(&report.posture),
            })?;
        }
    }
    journal.record(&Event::OutputRecorded { stdout: taken.stdout, stderr: taken.stderr })?;
    Ok(())
}

/// The boundary changed between the guard and the start, so the program was not started.
fn refused_at_last(
    journal: &mut Journal<'_>,
    demands: &Demands,
    report: &RunReport,
) -> Result<Halt, Halt> {
    let mut lacking = demands.lacking(&report.posture);
    if lacking.is_empty() {
        lacking.push("unchanged_since_preflight".to_owned());
    }
    let message = format!("the boundary changed before the start: {}", lacking.join(", "));
    journal.record(&Event::PostureRefused { lacking })?;
    Ok(Halt::new(Outcome::PostureRefused, FailureClass::AttestationFailed, message))
}

/// What was enforced while the program ran is what counts; a boundary that gave way is a failure.
fn check_held(
    journal: &mut Journal<'_>,
    demands: &Demands,
    report: &RunReport,
) -> Result<(), Halt> {
    let lacking = match report.outcome {
        Outcome::Cancelled | Outcome::Limited { .. } => {
            demands.lacking_when_stopped(&report.posture)
        }
        _ => demands.lacking(&report.posture),
    };
    if lacking.is_empty() || report.operation.is_some() {
        return Ok(());
    }
    let message = format!("the boundary did not hold {}", lacking.join(", "));
    journal.record(&Event::PostureRefused { lacking })?;
    Err(Halt::internal(message))
}

/// Returns why a run is no success; of a program that said nothing and has a code that shells use
/// for it, that it may not have started at all.
fn told_failure(
    (execution, isolation): (&PreparedExecution, Isolation),
    report: &RunReport,
) -> Option<(FailureClass, String)> {
    let (class, mut message) = failure_of(&report.outcome)?;
    let is_silent = report.stdout.bytes == 0 && report.stderr.bytes == 0;
    if let (Outcome::Exited { code: 126 | 127 }, PreparedCommand::Argv { cmd, .. }, true) =
        (&report.outcome, &execution.command, is_silent)
    {
        message = missing_program::explain(cmd, isolation);
    }
    Some((class, message))
}

/// Returns why an outcome is not a success, in a word and for people.
fn failure_of(outcome: &Outcome) -> Option<(FailureClass, String)> {
    let session = |message: String| Some((FailureClass::SessionFailed, message));
    match outcome {
        Outcome::Exited { code: 0 } | Outcome::Performed { succeeded: true } => None,
        Outcome::Performed { succeeded: false } => session("it was not done".to_owned()),
        Outcome::Exited { code } => session(format!("the program exited with code {code}")),
        Outcome::Signaled { signal } => session(format!("signal {signal} ended the program")),
        Outcome::Limited { limit: LimitKind::Wall } => {
            Some((FailureClass::BudgetExceeded, "the program ran out of time".to_owned()))
        }
        Outcome::Limited { limit } => Some((
            FailureClass::BudgetExceeded,
            format!("the program hit its limit of {}", limit.as_str()),
        )),
        Outcome::Cancelled => session("cancelled".to_owned()),
        Outcome::Unobserved => session("the end of the program was not observed".to_owned()),
        Outcome::Denied
        | Outcome::ApprovalExpired
        | Outcome::PostureRefused
        | Outcome::GapDenied
        | Outcome::Lost
        | Outcome::Failed => session("the program did not run to its end".to_owned()),
    }
}
