//! Backends that are a good one with one thing bent.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::json;
use warrant_protocol::{Digest, Isolation, Limits, Outcome, Posture};
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, EnvValue, EnvVar, Invocation, NetworkDecision, Plan, Refusal,
    RunReport, Sink, Stream, StreamDigest, WorkspaceAccess,
};

/// What is bent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bend {
    /// The host's environment is passed on.
    LeaksEnvironment,
    /// Every exit is told as 0.
    LiesAboutExit,
    /// What is said on stderr comes on stdout.
    MergesStreams,
    /// Only the first 4096 bytes pass, and nobody says so.
    TruncatesSilently,
    /// Every digest is the same.
    ConstantDigests,
    /// The posture leaves out what would look bad.
    DropsComponents,
    /// The program is run twice, and told once.
    RunsTwice,
    /// Every plan looks the same.
    ConstantPlan,
    /// The plan tells the values of secrets.
    TellsSecrets,
    /// No deadline is applied.
    IgnoresDeadline,
    /// No limit but the deadline is applied, and all are claimed.
    IgnoresLimits,
    /// What lies beside the workspace can be read, and files.read is claimed.
    ShowsHostFiles,
    /// Writes to an overlay land in the workspace.
    WritesThroughOverlay,
    /// Writes to a read-only workspace land in it.
    IgnoresReadOnly,
    /// Masks are not applied, and files.masks is claimed.
    IgnoresMasks,
    /// Everything a program says is piled up for a slow reader.
    PilesUp,
    /// A program killed by a signal is told as a success.
    HidesSignals,
}

/// A good backend, bent.
pub(crate) struct Bent {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) bend: Bend,
}

impl Backend for Bent {
    fn isolation(&self) -> Isolation {
        self.inner.isolation()
    }

    fn probe(&self) -> Posture {
        let mut posture = self.inner.probe();
        if self.bend == Bend::DropsComponents {
            posture.components.remove("ipc");
            posture.components.remove("limits.memory");
        }
        posture
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        let mut plan = self.inner.prepare(invocation)?;
        match self.bend {
            Bend::ConstantPlan => plan.artifact = json!({"sandbox": "as always"}),
            Bend::TellsSecrets => {
                let values: Vec<_> =
                    plan.invocation.env.iter().map(|variable| variable.value.reveal()).collect();
                plan.artifact["environment"] = json!(values);
            }
            _ => {}
        }
        Ok(plan)
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        let mut plan = plan.clone();
        bend_invocation(self.bend, &mut plan.invocation);
        if self.bend == Bend::PilesUp {
            return std::thread::scope(|scope| {
                let (pile, taken) = channel();
                scope.spawn(move || pass_on(&taken, sink));
                let pile = Pile(Mutex::new(pile));
                let report = self.inner.run(&plan, &pile, cancel);
                drop(pile);
                report
            });
        }
        if self.bend == Bend::RunsTwice {
            self.inner.run(&plan, &Nobody, cancel)?;
        }
        let bent = BentSink { sink, bend: self.bend, passed: Mutex::default() };
        let mut report = self.inner.run(&plan, &bent, cancel)?;
        self.bend_report(&mut report, &bent);
        Ok(report)
    }
}

impl Bent {
    fn bend_report(&self, report: &mut RunReport, sink: &BentSink<'_>) {
        report.posture = self.probe();
        match (self.bend, &report.outcome) {
            (Bend::LiesAboutExit, Outcome::Exited { .. })
            | (Bend::HidesSignals, Outcome::Signaled { .. }) => {
                report.outcome = Outcome::Exited { code: 0 };
            }
            (Bend::ConstantDigests, _) => {
                report.stdout.digest = Digest::of(b"");
                report.stderr.digest = Digest::of(b"");
            }
            (Bend::MergesStreams | Bend::TruncatesSilently, _) => {
                let passed = sink.passed.lock().unwrap();
                let told = |bytes: &[u8]| StreamDigest {
                    digest: Digest::of(bytes),
                    bytes: bytes.len() as u64,
                    truncated: false,
                };
                (report.stdout, report.stderr) = (told(&passed.0), told(&passed.1));
            }
            _ => {}
        }
    }
}

fn bend_invocation(bend: Bend, invocation: &mut Invocation) {
    let files = &mut invocation.files;
    match bend {
        Bend::LeaksEnvironment => {
            let host = std::env::vars().filter(|(name, _)| name != "PATH");
            invocation
                .env
                .extend(host.map(|(name, value)| EnvVar { name, value: EnvValue::Plain(value) }));
        }
        Bend::IgnoresDeadline => invocation.limits.wall_ms = None,
        Bend::IgnoresLimits => {
            let wall_ms = invocation.limits.wall_ms;
            invocation.limits = Limits { wall_ms, ..Limits::danger_unlimited() };
        }
        Bend::ShowsHostFiles => {
            files.read_roots.push(files.workspace.parent().unwrap().join("outside"));
        }
        Bend::WritesThroughOverlay if files.access == WorkspaceAccess::Overlay => {
            files.access = WorkspaceAccess::Direct;
        }
        Bend::IgnoresReadOnly if files.access == WorkspaceAccess::ReadOnly => {
            files.access = WorkspaceAccess::Direct;
        }
        Bend::IgnoresMasks => files.masks.clear(),
        _ => {}
    }
}

/// A sink that bends what passes through it, and knows what passed.
struct BentSink<'a> {
    sink: &'a dyn Sink,
    bend: Bend,
    passed: Mutex<(Vec<u8>, Vec<u8>)>,
}

impl Sink for BentSink<'_> {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let mut passed = self.passed.lock().unwrap();
        let stream = if self.bend == Bend::MergesStreams { Stream::Stdout } else { stream };
        let kept = match stream {
            Stream::Stdout => &mut passed.0,
            Stream::Stderr => &mut passed.1,
        };
        let room = match self.bend {
            Bend::TruncatesSilently => 4096_usize.saturating_sub(kept.len()).min(bytes.len()),
            _ => bytes.len(),
        };
        if matches!(self.bend, Bend::MergesStreams | Bend::TruncatesSilently) {
            kept.extend_from_slice(&bytes[..room]);
        }
        drop(passed);
        if room == 0 { Ok(()) } else { self.sink.output(stream, &bytes[..room]) }
    }

    fn network(&self, decision: NetworkDecision) {
        self.sink.network(decision);
    }
}

/// A sink that takes everything at once.
struct Pile(Mutex<Sender<(Stream, Vec<u8>)>>);

impl Sink for Pile {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let sent = self.0.lock().unwrap().send((stream, bytes.to_vec()));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn network(&self, _decision: NetworkDecision) {}
}

fn pass_on(pile: &Receiver<(Stream, Vec<u8>)>, sink: &dyn Sink) {
    let started = std::time::Instant::now();
    for (stream, bytes) in pile {
        let is_late = started.elapsed() > std::time::Duration::from_secs(2);
        if is_late || sink.output(stream, &bytes).is_err() {
            break;
        }
    }
}

/// A sink nobody listens to.
struct Nobody;

impl Sink for Nobody {
    fn output(&self, _stream: Stream, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn network(&self, _decision: NetworkDecision) {}
}
