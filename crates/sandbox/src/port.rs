//! The port every backend implements: probe, prepare, run.
//!
//! Only failure to build or hold the boundary is an error.
//! Timeouts, limits, signals and exit codes are outcomes.

use std::io;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use thiserror::Error;
use warrant_protocol::observation::OperationGuard;
use warrant_protocol::{Digest, Isolation, LimitKind, Outcome, Posture, Usage};

use crate::{Cancel, Invocation, WriteTarget};

/// A way of isolating a program.
pub trait Backend: Send + Sync {
    /// Returns the tier this backend makes.
    fn isolation(&self) -> Isolation;

    /// Whether the paths a program sees are those of this machine, so that a path it names can be
    /// compared with what it was given before it runs.
    fn shows_host_paths(&self) -> bool {
        matches!(self.isolation(), Isolation::Namespace | Isolation::Process)
    }

    /// Returns whether [`Backend::run`] starts a program. Where it does not, Warrant itself does
    /// what was asked for: there is no boundary to try, and the report says what was done.
    fn starts_program(&self) -> bool {
        true
    }

    /// Returns what is enforced here and now, found by trying; a backend may remember a trial for
    /// a short while, as long as a run whose own boundary falls short never starts its program.
    fn probe(&self) -> Posture;

    /// Returns what is enforced here and now, tried at this very moment: before anything is
    /// handed over that must not leave, such as a secret.
    fn probe_afresh(&self) -> Posture {
        self.probe()
    }

    /// Returns what of a probed posture holds for a run that writes to `target`: a trial writes to
    /// a layer of its own, which is bounded where a directory of the host is not.
    fn narrowed(&self, posture: Posture, target: WriteTarget) -> Posture {
        let _ = target;
        posture
    }

    /// Returns the plan that [`Backend::run`] will apply, without running anything.
    ///
    /// # Errors
    /// A [`Refusal`] when this backend cannot give what the invocation asks for.
    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal>;

    /// Builds what can be built before the program and its secrets are here, writes into the plan
    /// what was built, and returns what it holds. [`Backend::run`] uses it; until then
    /// [`Backend::release`] gives it up.
    ///
    /// Most boundaries are built within the run: for them this is the probe.
    ///
    /// # Errors
    /// A [`Refusal`] when it could not be built; then nothing is left of it.
    fn ready(&self, plan: &mut Plan, cancel: &Cancel) -> Result<Posture, Refusal> {
        let _ = (plan, cancel);
        Ok(self.probe())
    }

    /// Gives up what [`Backend::ready`] built for a plan that will not run. Harmless otherwise.
    fn release(&self, plan: &Plan) {
        let _ = plan;
    }

    /// Returns, once, what of the boundary could not be taken down after the run or release of a
    /// plan: what it is, until when it lives, and how to end it.
    ///
    /// Most boundaries leave nothing.
    fn left_behind(&self, plan: &Plan) -> Option<String> {
        let _ = plan;
        None
    }

    /// Builds the boundary, runs the program to its end and the end of its whole tree.
    ///
    /// # Errors
    /// A [`BoundaryError`] when the boundary could not be built or held; then nothing of the
    /// program is left alive.
    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError>;

    /// As [`Backend::run`], but `gate` is asked before the program starts, once, and may be asked
    /// while the boundary is being built. When it says no, nothing was started and nothing of the
    /// boundary is left.
    ///
    /// # Errors
    /// A [`BoundaryError`] as for a run, or when the gate stayed shut.
    fn run_gated(
        &self,
        plan: &Plan,
        gate: Gate<'_>,
        (sink, cancel): (&dyn Sink, &Cancel),
    ) -> Result<RunReport, BoundaryError> {
        if !gate() {
            return Err(BoundaryError::shut());
        }
        self.run(plan, sink, cancel)
    }
}

/// Says whether a program may start.
pub type Gate<'a> = &'a mut dyn FnMut() -> bool;

/// The names of components that all backends share, without the limits.
pub const COMPONENTS: [&str; 11] = [
    "files.read",
    "files.write",
    "files.masks",
    "network",
    "network.names",
    "processes.namespace",
    "processes.kill",
    "syscalls",
    "privileges",
    "ipc",
    "environment",
];

/// The names of components that a boundary on somebody else's machine has besides.
pub const REMOTE_COMPONENTS: [&str; 4] =
    ["provider_version", "image_digest", "egress_policy", "mounts"];

/// Returns the names of all components that all backends share, the limits among them.
pub fn components() -> impl Iterator<Item = String> {
    let limits = LimitKind::ALL.into_iter().map(|kind| format!("limits.{}", kind.as_str()));
    COMPONENTS.into_iter().map(str::to_owned).chain(limits)
}

/// An invocation lowered to what one backend will apply.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The tier the plan was made for.
    pub isolation: Isolation,
    /// The invocation it came from.
    pub invocation: Invocation,
    /// Exactly what will be applied (mounts, masks, rules, environment names, limits), to be
    /// read by people and tests. Contains no secret value.
    pub artifact: serde_json::Value,
}

/// Why a backend will not run an invocation; nothing has happened yet.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{code}: {message}")]
pub struct Refusal {
    /// A word for programs: `SANDBOX_PROVIDER_UNAVAILABLE`, `SANDBOX_DENIED`, `SANDBOX_PREPARE_FAILED`.
    pub code: &'static str,
    /// A sentence for people that says what to do; safe to show to the agent.
    pub message: String,
}

/// The boundary could not be built or did not hold.
#[derive(Debug, Error)]
#[error("the boundary failed at {step}")]
pub struct BoundaryError {
    /// Which step of building or holding it.
    pub step: &'static str,
    /// What the system said.
    #[source]
    pub cause: io::Error,
}

impl BoundaryError {
    /// The gate did not open; the boundary was given up before the program.
    pub(crate) fn shut() -> Self {
        Self { step: "waiting for the start", cause: io::ErrorKind::PermissionDenied.into() }
    }
}

/// Takes what a running program says and does, as it happens.
///
/// A slow sink slows the program down; it never makes the backend buffer.
pub trait Sink: Send + Sync {
    /// Takes bytes of one stream, in order and byte-exact.
    ///
    /// # Errors
    /// An error means nobody reads any more; the run is cancelled.
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()>;

    /// Takes one decision of the egress proxy.
    fn network(&self, decision: NetworkDecision);
}

/// The two output streams. With a terminal everything is stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One destination, decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkDecision {
    /// The canonical host that was judged.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether it was let through.
    pub allowed: bool,
    /// Why, in a few words: `listed`, `not-listed`, `private-address`, `sni-mismatch`.
    pub why: String,
    /// How many times this same decision was taken since it was last reported.
    pub count: u64,
    /// Bytes towards the destination.
    pub bytes_out: u64,
    /// Bytes from the destination.
    pub bytes_in: u64,
    /// When it was taken.
    pub at: SystemTime,
    /// The provider and model of a call that was seen inside; such a report counts nothing.
    pub model: Option<(String, String)>,
}

/// How a run went.
#[derive(Debug)]
pub struct RunReport {
    /// How the program ended.
    pub outcome: Outcome,
    /// What it used.
    pub usage: Usage,
    /// What of stdout passed.
    pub stdout: StreamDigest,
    /// What of stderr passed.
    pub stderr: StreamDigest,
    /// What was enforced while it ran.
    pub posture: Posture,
    /// The overlay's upper directory (kernel overlayfs format: 0:0 character devices are
    /// deletions, `user.overlay.opaque` or `trusted.overlay.opaque` hides what was below).
    /// Present when the workspace was an overlay; dropping it drops the changes.
    pub upper: Option<OwnedFd>,
    /// What Warrant did itself, when no program was started; then the posture says nothing.
    pub operation: Option<Operation>,
}

/// What Warrant did itself, without starting a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What: `file.read`, `sandbox.life`, ….
    pub name: &'static str,
    /// Whether it was done.
    pub succeeded: bool,
    /// What really held meanwhile.
    pub guards: Vec<OperationGuard>,
}

/// The digest of the bytes of one stream that passed the output limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamDigest {
    /// SHA-256 of the bytes handed to the sink.
    pub digest: Digest,
    /// How many bytes those were.
    pub bytes: u64,
    /// Whether more came than was kept.
    pub truncated: bool,
}
