//! The backend `mock`: the interpreter over memory, touching nothing, always saying the same.
//!
//! It serves tests and first steps. With [`Faults`] it misbehaves on purpose, so that every check
//! of a backend can be shown to fail on something.

use std::io;
use std::sync::Mutex;

use serde_json::json;
use warrant_protocol::{
    Component, Digest, Enforcement, Evidence, Isolation, LimitKind, Limits, Outcome, Posture,
};

use crate::hermetic::lower::without_files;
use crate::hermetic::supervise::{Watch, supervise};
use crate::hermetic::{FilesRequest, Pool, Request, WorkerFault};
use crate::{
    Backend, BoundaryError, COMPONENTS, Cancel, Invocation, NetworkDecision, Plan, Refusal,
    RunReport, Sink, Stream,
};

/// Deliberate misbehavior; every switch is off in [`Faults::none`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// The program never ends by itself.
    pub hang: bool,
    /// The worker dies of a signal.
    pub crash: bool,
    /// The boundary cannot be built.
    pub broken_boundary: bool,
    /// Only this many bytes of output reach the sink, and the report does not say so.
    pub swallow_output_after: Option<u64>,
    /// The report's digest of stdout is not that of the bytes that passed.
    pub lying_digest: bool,
    /// The report claims the program exited with this code.
    pub lying_exit_code: Option<u8>,
    /// The posture says these components are not there.
    pub absent: Vec<String>,
    /// The posture says nobody knows about these components.
    pub unknown: Vec<String>,
    /// The wall-clock limit is not applied.
    pub ignore_wall_limit: bool,
    /// The output limit is not applied.
    pub ignore_output_limit: bool,
    /// Variables the program sees though nobody asked for them.
    pub leaked_env: Vec<(String, String)>,
    /// A destination that was reached without anyone's permission.
    pub leaked_connection: Option<NetworkDecision>,
}

impl Faults {
    /// Returns no misbehavior at all.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            hang: false,
            crash: false,
            broken_boundary: false,
            swallow_output_after: None,
            lying_digest: false,
            lying_exit_code: None,
            absent: Vec::new(),
            unknown: Vec::new(),
            ignore_wall_limit: false,
            ignore_output_limit: false,
            leaked_env: Vec::new(),
            leaked_connection: None,
        }
    }
}

/// What only a wall around the worker would hold.
const WALLS: [&str; 4] = ["processes.namespace", "syscalls", "privileges", "ipc"];

/// What is looked at from time to time.
const SAMPLED: [&str; 2] = ["limits.cpu", "limits.memory"];

/// Interprets scripts over an empty filesystem in memory.
#[derive(Debug)]
pub struct Mock {
    pool: Pool,
    faults: Faults,
}

impl Mock {
    /// Returns a well-behaved mock that takes its workers from `pool`.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self::with_faults(pool, Faults::none())
    }

    /// Returns a mock that misbehaves on purpose.
    #[must_use]
    pub fn with_faults(pool: Pool, faults: Faults) -> Self {
        Self { pool, faults }
    }

    fn request(&self, invocation: &Invocation) -> Result<Request, Refusal> {
        let mut request = without_files(invocation)?;
        // The interpreter takes this one variable from the system each time, whatever it is told.
        if request.script.contains("SRANDOM") {
            return Err(Refusal {
                code: "SANDBOX_DENIED",
                message: "the mock tier says the same every time; use RANDOM for SRANDOM".into(),
            });
        }
        request.files = FilesRequest::Memory;
        request.fixed = true;
        request.env.extend(self.faults.leaked_env.iter().cloned());
        request.fault = match (self.faults.hang, self.faults.crash) {
            (true, _) => Some(WorkerFault::Hang),
            (false, true) => Some(WorkerFault::Crash),
            (false, false) => None,
        };
        Ok(request)
    }

    /// Returns what holds where a worker runs; of a run, with its limits.
    fn posture(&self, runs: bool, limits: Option<&Limits>) -> Posture {
        let kinds = LimitKind::ALL.into_iter().map(|kind| {
            // Files in memory count as memory, and are not counted one by one.
            let is_of_files =
                matches!(kind, LimitKind::FileSize | LimitKind::Disk | LimitKind::Inodes);
            (format!("limits.{}", kind.as_str()), runs && !is_of_files)
        });
        // The interpreter holds what it has no word for; a wall around its worker is another thing.
        let held = COMPONENTS.map(|name| (name.to_owned(), runs && !WALLS.contains(&name)));
        let held = held.into_iter().chain(kinds);
        let component = |(name, holds): (String, bool)| {
            let enforcement = if self.faults.unknown.contains(&name) {
                Enforcement::Unknown
            } else if holds && SAMPLED.contains(&name.as_str()) {
                Enforcement::Observed
            } else if holds && !self.faults.absent.contains(&name) {
                Enforcement::Enforced
            } else {
                Enforcement::Absent
            };
            let is_set = |limits: &Limits| {
                let kind = LimitKind::ALL.into_iter().find(|kind| is_limit(&name, *kind));
                kind.is_none_or(|kind| limits.of(kind).is_some())
            };
            let (evidence, detail) = match (holds, limits.is_none_or(is_set)) {
                (false, _) => (Evidence::Measured, Some("nothing in the worker holds it")),
                (true, true) => (Evidence::Measured, None),
                (true, false) => (Evidence::Reported, Some("no such limit in this run")),
            };
            let (source, detail) = ("interpreter in memory".into(), detail.map(str::to_owned));
            (name, Component { enforcement, evidence, source, detail })
        };
        Posture {
            isolation: Isolation::Mock,
            provider_version: format!("warrant {}", env!("CARGO_PKG_VERSION")),
            components: held.map(component).collect(),
        }
    }
}

/// Whether a component is this limit.
fn is_limit(name: &str, kind: LimitKind) -> bool {
    name.strip_prefix("limits.") == Some(kind.as_str())
}

impl Backend for Mock {
    fn isolation(&self) -> Isolation {
        Isolation::Mock
    }

    fn probe(&self) -> Posture {
        // The interpreter holds all this by what it lacks, provided that its worker starts.
        let runs = self.pool.take().is_ok();
        self.posture(runs, None)
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        invocation.refuse_secret_files("mock")?;
        let request = self.request(&invocation)?;
        let names: Vec<&str> = request.env.iter().map(|(name, _)| name.as_str()).collect();
        let artifact = json!({
            "interpreter": "bashkit",
            "shell": request.arg0,
            "environment": names,
            "workspace": "in memory",
            "network": [],
            "clock": "fixed",
        });
        Ok(Plan { isolation: Isolation::Mock, invocation, artifact })
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        if self.faults.broken_boundary {
            let cause = io::Error::other("asked to break");
            return Err(BoundaryError { step: "building the mock", cause });
        }
        let failed = |cause| BoundaryError { step: "running the mock", cause };
        let request =
            self.request(&plan.invocation).map_err(|refusal| failed(io::Error::other(refusal)))?;
        let mut limits = plan.invocation.limits.clone();
        if self.faults.ignore_wall_limit {
            limits.wall_ms = None;
        }
        if self.faults.ignore_output_limit {
            limits.output_bytes = None;
        }
        let sink = FaultySink {
            inner: sink,
            left: Mutex::new(self.faults.swallow_output_after.unwrap_or(u64::MAX)),
        };
        let watch = Watch { limits: &limits, sink: &sink, cancel, fetcher: None };
        let worker = self.pool.take().map_err(failed)?;
        let ended =
            supervise(worker, &request, (None, &plan.invocation.stdin), watch).map_err(failed)?;
        if let Some(decision) = &self.faults.leaked_connection {
            sink.network(decision.clone());
        }
        let mut report = RunReport {
            outcome: ended.outcome,
            usage: ended.usage,
            stdout: ended.stdout,
            stderr: ended.stderr,
            posture: self.posture(true, Some(&plan.invocation.limits)),
            upper: None,
            operation: None,
        };
        if self.faults.lying_digest {
            report.stdout.digest = Digest::of(b"something else");
        }
        if let Some(code) = self.faults.lying_exit_code {
            report.outcome = Outcome::Exited { code };
        }
        Ok(report)
    }
}

/// A sink that may lose bytes on purpose.
struct FaultySink<'a> {
    inner: &'a dyn Sink,
    left: Mutex<u64>,
}

impl Sink for FaultySink<'_> {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let mut left = self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let room = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
        *left -= room as u64;
        match bytes.get(..room) {
            Some(kept) if !kept.is_empty() => self.inner.output(stream, kept),
            _ => Ok(()),
        }
    }

    fn network(&self, decision: NetworkDecision) {
        self.inner.network(decision);
    }
}
