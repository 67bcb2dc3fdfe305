//! The backend `hermetic`: a shell with nothing to escape with.
//!
//! Scripts are interpreted; there is no program to start, no socket to open, and `/` is the
//! workspace. The interpreter can crash, hang and eat memory, so it never runs here: it runs in
//! a worker process that is watched, limited and killed. Start at [`Hermetic`].

mod commands;
mod fetcher;
mod frame;
mod guard;
mod launch;
pub(crate) mod lower;
mod meter;
mod names;
mod output;
mod posture;
mod request;
mod rooms;
pub(crate) mod supervise;
mod tree;
mod wall;
mod worker;

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, open};
use warrant_egress::Options;
use warrant_protocol::{Isolation, Posture};

pub use launch::{Pool, WorkerProgram};
pub(crate) use request::{FilesRequest, Request, WorkerFault};

use crate::namespace::Namespace;
use crate::{
    Backend, BoundaryError, Cancel, Invocation, Plan, Refusal, RunReport, Sink, WorkspaceAccess,
};
use fetcher::Fetcher;
use supervise::{Watch, supervise};

/// Becomes a worker if the program was started as one, and returns how that ended.
///
/// A program that uses the backends `hermetic` or `mock` calls this first in its `main`.
#[must_use]
pub fn worker_main() -> Option<ExitCode> {
    let is_worker = std::env::args_os().nth(1).is_some_and(|word| word == worker::WORD);
    is_worker.then(worker::main)
}

/// Interprets shell scripts in a worker process.
#[derive(Debug)]
pub struct Hermetic {
    pool: Pool,
    egress: Options,
    namespace: Namespace,
    keeping: Keeping,
    posture: OnceLock<Posture>,
}

/// How workers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeping {
    /// In a jail of their own, where the machine has one.
    Jailed,
    /// Warm in the pool, sealed by their own filter only.
    Warm,
}

impl Hermetic {
    /// Returns a backend that puts each worker into a jail of its own.
    ///
    /// Where no jail can be built, workers come from `pool`, and the posture says so.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self::with_egress(pool, Options::bounded())
    }

    /// Returns a backend with other bounds or name servers for what scripts fetch.
    #[must_use]
    pub fn with_egress(pool: Pool, egress: Options) -> Self {
        let namespace = Namespace::new();
        Self { pool, egress, namespace, keeping: Keeping::Jailed, posture: OnceLock::new() }
    }

    /// Returns a backend that takes warm workers from `pool`: quicker, and with one wall less,
    /// as its posture says.
    #[must_use]
    pub fn warm(pool: Pool) -> Self {
        Self { keeping: Keeping::Warm, ..Self::new(pool) }
    }

    /// Returns the pool, so that its owner can refill it between runs.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn is_jailed(&self) -> bool {
        self.probe().enforces("processes.namespace")
    }

    fn run_warm(
        &self,
        request: &Request,
        invocation: &Invocation,
        watch: Watch<'_>,
    ) -> Result<RunReport, BoundaryError> {
        let failed = |step| move |cause| BoundaryError { step, cause };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(&invocation.files.workspace, flags, Mode::empty())
            .map_err(|errno| failed("opening the workspace")(errno.into()))?;
        let worker = self.pool.take().map_err(failed("starting the worker"))?;
        let ended = supervise(worker, request, (Some(root.as_fd()), &invocation.stdin), watch)
            .map_err(failed("watching the worker"))?;
        Ok(RunReport {
            outcome: ended.outcome,
            usage: ended.usage,
            stdout: ended.stdout,
            stderr: ended.stderr,
            posture: self.probe(),
            upper: None,
        })
    }
}

impl Backend for Hermetic {
    fn isolation(&self) -> Isolation {
        Isolation::Hermetic
    }

    fn probe(&self) -> Posture {
        let probe = || match self.keeping {
            Keeping::Jailed => posture::jailed(&self.namespace, self.pool.program())
                .unwrap_or_else(|reason| posture::sealed(&self.pool, &reason)),
            Keeping::Warm => posture::sealed(&self.pool, "kept warm without a jail"),
        };
        self.posture.get_or_init(probe).clone()
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        invocation.refuse_secret_files("hermetic")?;
        let lowered = lower::lower(&invocation)?;
        if invocation.files.access == WorkspaceAccess::Overlay && !self.is_jailed() {
            return Err(Refusal {
                code: "SANDBOX_PROVIDER_UNAVAILABLE",
                message: "an overlay needs a jail around the worker, and none can be built here"
                    .into(),
            });
        }
        let artifact = lower::artifact(&lowered, &invocation);
        Ok(Plan { isolation: Isolation::Hermetic, invocation, artifact })
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        let failed = |step| move |cause| BoundaryError { step, cause };
        let refused = |refusal| failed("lowering the plan")(io::Error::other(refusal));
        let invocation = &plan.invocation;
        let request = lower::lower(invocation).map_err(refused)?;
        let rules = lower::rules(&invocation.network).map_err(refused)?;
        let fetcher = rules.map(|rules| Fetcher::start(rules, self.egress.clone())).transpose();
        let fetcher = fetcher.map_err(failed("opening the network"))?;
        let watch = Watch { limits: &invocation.limits, sink, cancel, fetcher };
        if !self.is_jailed() {
            return self.run_warm(&request, invocation, watch);
        }
        let keeper = (&self.namespace, self.pool.program());
        let report = wall::run(keeper, &request, invocation, watch)?;
        Ok(RunReport { posture: self.probe(), ..report })
    }
}
