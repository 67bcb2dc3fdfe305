//! What the hermetic tier enforces here and now, found by running a worker.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use warrant_protocol::{
    Component, Enforcement, Evidence, Isolation, LimitKind, Limits, Outcome, Posture, error_chain,
};

use super::launch::{Pool, Worker};
use super::lower;
use super::request::{Request, WorkerFault};
use super::supervise::Watch;
use crate::{
    BoundaryError, Cancel, Command, Files, Invocation, Network, NetworkDecision, RunReport, Shell,
    Sink, Stdin, Stream, WorkspaceAccess,
};

/// What the interpreter and the supervisor hold by themselves once a worker runs.
const HELD: [(&str, &str); 7] = [
    ("environment", "built from empty"),
    ("files.masks", "names and inodes, at every access"),
    ("files.read", "descriptors beneath the workspace"),
    ("files.write", "descriptors beneath the workspace"),
    ("network", "the interpreter has no sockets; fetches are decided outside"),
    ("network.names", "looked up outside, and only what is allowed"),
    ("processes.kill", "one process, killed by its descriptor or id"),
];

/// Limits that are looked at from outside, by the jail or the supervisor.
const WATCHED: [&str; 3] = ["limits.wall", "limits.cpu", "limits.memory"];

/// A directory every machine has, to look at and not to touch.
const PROBED: &str = "/usr/lib";

/// Returns the posture with a jail around the worker, or why there is none; `run` is how the
/// backend runs its workers in jails.
pub(super) fn jailed<Run>(run: Run) -> Result<Posture, String>
where
    Run: FnOnce(&Request, &Invocation, Watch<'_>) -> Result<RunReport, BoundaryError>,
{
    let invocation = probe_invocation();
    let request = lower::lower(&invocation).map_err(|error| error_chain(&error))?;
    let cancel = Cancel::new().map_err(|error| error_chain(&error))?;
    let limits = &invocation.limits;
    let request = Request { fault: Some(WorkerFault::TryWalls), ..request };
    let holes = Holes::default();
    let watch = Watch { limits, sink: &holes, cancel: &cancel, fetcher: None };
    let report = run(&request, &invocation, watch).map_err(|error| error_chain(&error))?;
    if report.outcome != (Outcome::Exited { code: 0 }) {
        return Err(format!("a probe ended with {:?}", report.outcome));
    }
    let holes = holes.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !holes.is_empty() {
        return Err(format!("the wall does not hold: {}", String::from_utf8_lossy(&holes)));
    }
    Ok(of_jailed_run(report.posture, limits))
}

/// Returns what was in force in a run, from what the jail around its worker saw: the interpreter
/// that answered decides about every access of the script.
pub(super) fn of_jailed_run(jail: Posture, limits: &Limits) -> Posture {
    let mut posture = Posture { isolation: Isolation::Hermetic, ..jail };
    let is_reached = posture
        .components
        .get("processes.namespace")
        .is_some_and(|found| found.evidence == Evidence::Measured);
    let worker = InWorker {
        enforcement: Enforcement::Enforced,
        known: if is_reached { Known::InRun(limits) } else { Known::NotReached },
    };
    posture.components.extend(worker.held());
    let is_workers = |(name, _): &(String, Component)| !WATCHED.contains(&name.as_str());
    posture.components.extend(worker.limited().filter(is_workers));
    posture
}

/// Returns what is in force around a worker that only its own filter holds.
pub(super) fn of_sealed_run(worker: &Worker, limits: &Limits) -> Posture {
    let sealed = if is_sealed(worker) { Enforcement::Enforced } else { Enforcement::Absent };
    let inside = InWorker { enforcement: Enforcement::Enforced, known: Known::InRun(limits) };
    with_filter(&inside, sealed, "no jail could be built around the worker")
}

/// Returns the posture of workers that only their own filter holds.
pub(super) fn sealed(pool: &Pool, reason: &str) -> Posture {
    let started = pool.take();
    let runs = if started.is_ok() { Enforcement::Enforced } else { Enforcement::Absent };
    let sealed = started.as_ref().is_ok_and(is_sealed);
    let sealed = if sealed { Enforcement::Enforced } else { Enforcement::Absent };
    with_filter(&InWorker { enforcement: runs, known: Known::InTrial }, sealed, reason)
}

fn with_filter(inside: &InWorker<'_>, sealed: Enforcement, reason: &str) -> Posture {
    let mut components: BTreeMap<String, Component> = inside.held().collect();
    components.extend(inside.limited());
    for name in ["syscalls", "privileges"] {
        components.insert(name.into(), component(sealed, "no exec, process or socket"));
    }
    for name in ["processes.namespace", "ipc"] {
        components.insert(name.into(), component(Enforcement::Absent, reason));
    }
    Posture {
        isolation: Isolation::Hermetic,
        provider_version: format!("warrant {}", env!("CARGO_PKG_VERSION")),
        components: components.into(),
    }
}

/// What the interpreter and the supervisor hold by themselves.
struct InWorker<'a> {
    enforcement: Enforcement,
    known: Known<'a>,
}

/// How that is known.
enum Known<'a> {
    /// A worker was tried.
    InTrial,
    /// The worker of a run was reached; these were its limits.
    InRun(&'a Limits),
    /// The worker of a run was not reached, so nobody looked.
    NotReached,
}

impl InWorker<'_> {
    fn held(&self) -> impl Iterator<Item = (String, Component)> {
        HELD.into_iter().map(|(name, detail)| {
            let found = component(self.enforcement, detail);
            let found = match self.known {
                Known::NotReached => only_reported(found, "the worker was not reached"),
                Known::InTrial | Known::InRun(_) => found,
            };
            (name.to_owned(), found)
        })
    }

    fn limited(&self) -> impl Iterator<Item = (String, Component)> {
        LimitKind::ALL.into_iter().map(|kind| {
            let found = match (kind, self.enforcement) {
                (LimitKind::Cpu | LimitKind::Memory, Enforcement::Enforced) => {
                    component(Enforcement::Observed, "sampled every 20 ms; the worker is ended")
                }
                (LimitKind::Processes, enforcement) => {
                    component(enforcement, "no process can be started")
                }
                (_, enforcement) => component(enforcement, "counted in the worker"),
            };
            let found = match self.known {
                Known::NotReached => only_reported(found, "the worker was not reached"),
                Known::InRun(limits) if limits.of(kind).is_none() => {
                    only_reported(found, "no such limit in this run")
                }
                Known::InTrial | Known::InRun(_) => found,
            };
            (format!("limits.{}", kind.as_str()), found)
        })
    }
}

/// What nobody looked at in this run.
fn only_reported(found: Component, why: &str) -> Component {
    let detail = found.detail.map_or_else(|| why.to_owned(), |detail| format!("{detail}; {why}"));
    Component { evidence: Evidence::Reported, detail: Some(detail), ..found }
}

fn component(enforcement: Enforcement, detail: &str) -> Component {
    Component {
        enforcement,
        evidence: Evidence::Measured,
        source: "worker".into(),
        detail: Some(detail.to_owned()),
    }
}

fn is_sealed(worker: &Worker) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid()));
    status.is_ok_and(|status| status.lines().any(|line| line == "Seccomp:\t2"))
}

fn probe_invocation() -> Invocation {
    Invocation {
        command: Command::Shell { shell: Shell::Sh, script: "[ -d / ]".into() },
        cwd: PROBED.into(),
        env: Vec::new(),
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: Path::new(PROBED).to_owned(),
            access: WorkspaceAccess::ReadOnly,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            places: Vec::new(),
            masks: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(10_000), ..Limits::danger_unlimited() },
        image: None,
        neighbors: None,
    }
}

/// Takes what a probing worker names.
#[derive(Default)]
struct Holes(Mutex<Vec<u8>>);

impl Sink for Holes {
    fn output(&self, _stream: Stream, bytes: &[u8]) -> std::io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(())
    }

    fn network(&self, _decision: NetworkDecision) {}
}
