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
mod softened;
pub(crate) mod supervise;
mod tree;
mod wall;
mod warm;
mod worker;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags, open};
use warrant_egress::Options;
use warrant_jail::landlock_abi;
use warrant_protocol::{Isolation, Posture};

pub use launch::{Pool, WorkerProgram};
pub(crate) use request::{FilesRequest, Request, WorkerFault};

use crate::namespace::{Memory, NEWEST_LANDLOCK, Namespace};
use crate::{
    Backend, BoundaryError, Cancel, Invocation, Plan, Refusal, RunReport, Sink, WorkspaceAccess,
};
use fetcher::Fetcher;
use supervise::{Watch, supervise};
use warm::Warmth;

/// Becomes a worker if the program was started as one, and returns how that ended.
///
/// A program that uses the backends `hermetic` or `mock` calls this first in its `main`.
#[must_use]
pub fn worker_main() -> Option<ExitCode> {
    let is_worker = std::env::args_os().nth(1).is_some_and(|word| word == worker::WORD);
    is_worker.then(worker::main)
}

/// What of Landlock a jail uses here.
fn landlock() -> Option<u32> {
    landlock_abi().map(|abi| abi.min(NEWEST_LANDLOCK))
}

/// Interprets shell scripts in a worker process.
#[derive(Debug)]
pub struct Hermetic {
    pool: Pool,
    egress: Options,
    namespace: Arc<Namespace>,
    /// Workers that wait in jails of their own, if any are to.
    warmth: Option<Arc<Warmth>>,
    posture: OnceLock<Posture>,
    /// Where a trial is remembered, if it is.
    memory: Option<Memory>,
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
        let namespace = Arc::new(Namespace::new());
        Self { pool, egress, namespace, warmth: None, posture: OnceLock::new(), memory: None }
    }

    /// Returns a backend that keeps as many workers as `pool` may hold waiting in jails of their
    /// own: as strong as [`Hermetic::new`] and quicker. A worker serves one run; after each run
    /// its place is filled again in the background.
    #[must_use]
    pub fn warm(pool: Pool) -> Self {
        Self::new(pool).keeping_warm()
    }

    /// Returns the same backend, with workers that wait as those of [`Hermetic::warm`] do.
    #[must_use]
    pub fn keeping_warm(self) -> Self {
        let (namespace, program) = (Arc::clone(&self.namespace), self.pool.program().clone());
        let warmth = Warmth::new(namespace, program, self.pool.size());
        Self { warmth: Some(Arc::new(warmth)), ..self }
    }

    /// Remembers in a file, which only its owner may write, what a jailed worker was found to hold;
    /// for the next few minutes [`Backend::probe`] believes it under the very same circumstances.
    ///
    /// [`Backend::probe_afresh`] never does.
    #[must_use]
    pub fn remembering(self, path: PathBuf) -> Self {
        Self { memory: Some(Memory::new(path)), ..self }
    }

    fn recalled(&self) -> Option<Posture> {
        let result = self.memory.as_ref()?.recalled_result(landlock())?;
        serde_json::from_str(&result).ok()
    }

    /// Starts workers until as many wait as may; does nothing for a backend that keeps none.
    ///
    /// # Errors
    /// A [`BoundaryError`] when a worker or its jail cannot be started.
    pub fn refill(&self) -> Result<(), BoundaryError> {
        let Some(warmth) = &self.warmth else { return Ok(()) };
        if self.is_jailed() {
            return warmth.refill();
        }
        self.pool.refill().map_err(|cause| BoundaryError { step: "starting the worker", cause })
    }

    /// Returns how many workers wait.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.warmth.as_ref().map_or(0, |warmth| warmth.ready()) + self.pool.ready()
    }

    fn is_jailed(&self) -> bool {
        self.probe().enforces("processes.namespace")
    }

    fn run_jailed(
        &self,
        request: &Request,
        invocation: &Invocation,
        watch: Watch<'_>,
    ) -> Result<RunReport, BoundaryError> {
        match &self.warmth {
            Some(warmth) => warmth.run(request, invocation, watch),
            None => wall::run((&self.namespace, self.pool.program()), request, invocation, watch),
        }
    }

    fn run_sealed(
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
        let posture = posture::of_sealed_run(&worker, &invocation.limits);
        let ended = supervise(worker, request, (Some(root.as_fd()), &invocation.stdin), watch)
            .map_err(failed("watching the worker"))?;
        Ok(RunReport {
            outcome: ended.outcome,
            usage: ended.usage,
            stdout: ended.stdout,
            stderr: ended.stderr,
            posture,
            upper: None,
            operation: None,
        })
    }
}

impl Backend for Hermetic {
    fn isolation(&self) -> Isolation {
        Isolation::Hermetic
    }

    fn probe(&self) -> Posture {
        let probe = || self.recalled().unwrap_or_else(|| self.probe_afresh());
        self.posture.get_or_init(probe).clone()
    }

    fn probe_afresh(&self) -> Posture {
        let jailed = posture::jailed(|request, invocation, watch| {
            self.run_jailed(request, invocation, watch)
        });
        if let Some(memory) = &self.memory {
            match jailed.as_ref().ok().and_then(|posture| serde_json::to_string(posture).ok()) {
                Some(posture) => memory.keep_result(landlock(), &posture),
                None => memory.forget(),
            }
        }
        jailed.unwrap_or_else(|reason| posture::sealed(&self.pool, &reason))
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
            return self.run_sealed(&request, invocation, watch);
        }
        let report = self.run_jailed(&request, invocation, watch);
        if let (Err(_), Some(memory)) = (&report, &self.memory) {
            memory.forget();
        }
        if let Some(warmth) = &self.warmth {
            warmth.refill_later();
        }
        let report = report?;
        let posture = posture::of_jailed_run(report.posture, &invocation.limits);
        Ok(RunReport { posture, ..report })
    }
}
