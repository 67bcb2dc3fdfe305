//! The boundary of a living sandbox's commands: the real tier, with the sandbox's directories at
//! the paths the client knows, and a watch over how much they hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::json;
use warrant_protocol::{
    Component, Enforcement, Evidence, Isolation, LimitKind, Limits, Outcome, Posture,
};
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, EnvValue, EnvVar, Invocation, Neighborhood, Operation, Place,
    Plan, Refusal, RunReport, Sink, Stream, WorkspaceAccess,
};

use super::life::report;
use super::measure::Meter;
use super::{disk, shell};

/// How often the files of a running command are counted.
const COUNT_EVERY: Duration = Duration::from_millis(500);

/// The tier around one sandbox.
pub(super) struct Standing<'a> {
    pub(super) inner: &'a dyn Backend,
    /// The directory with `home` and `tmp`.
    pub(super) directory: &'a Path,
    /// Where home is inside.
    pub(super) home: &'a str,
    /// Variables whose values no plan and no contract tells.
    pub(super) private: &'a BTreeMap<String, String>,
    /// The sandbox's other commands.
    pub(super) neighbors: &'a Neighborhood,
    /// Where a command of a session leaves its state; seen by no other one.
    pub(super) desk: Option<&'a Path>,
    /// What the sandbox used.
    pub(super) meter: &'a Meter,
    /// What becomes of a command whose directory is not there.
    pub(super) lost: Lost,
}

/// What becomes of a command whose directory is not there.
#[derive(Debug)]
pub(super) enum Lost {
    /// It is refused.
    Refused,
    /// It fails as one whose shell could not go there; the path, once it was looked for in vain.
    Fails(OnceLock<String>),
}

impl Backend for Standing<'_> {
    fn isolation(&self) -> Isolation {
        self.inner.isolation()
    }

    /// The sandbox's root is its own; what it was not given does not exist inside.
    fn shows_host_paths(&self) -> bool {
        false
    }

    fn probe(&self) -> Posture {
        with_own_disk(self.inner.probe(), None)
    }

    /// Shows the sandbox's directories at their places. The contract says that writes land in a
    /// layer of their own; the layer is the sandbox, and is gone with it.
    fn prepare(&self, mut invocation: Invocation) -> Result<Plan, Refusal> {
        let home = self.directory.join("home");
        let tmp = self.directory.join("tmp");
        // The sandbox's directory stands for its root; who said nothing was given home before.
        let below = invocation.cwd.strip_prefix(self.directory).unwrap_or(Path::new(""));
        invocation.cwd = Path::new("/").join(below);
        invocation.env.retain(|variable| !self.private.contains_key(&variable.name));
        invocation.files.places = vec![
            Place { root: home.clone(), inside: PathBuf::from(self.home) },
            Place { root: tmp.clone(), inside: PathBuf::from("/tmp") },
        ];
        invocation.files.workspace = home;
        invocation.files.write_roots.push(tmp);
        if let Some(desk) = self.desk {
            let inside = PathBuf::from(shell::DESK);
            invocation.files.places.push(Place { root: desk.to_owned(), inside });
            invocation.files.write_roots.push(desk.to_owned());
        }
        invocation.files.access = WorkspaceAccess::Direct;
        invocation.neighbors = Some(self.neighbors.clone());
        let Lost::Fails(lost) = &self.lost else { return self.inner.prepare(invocation) };
        let refusal = match self.inner.prepare(invocation.clone()) {
            Ok(plan) => return Ok(plan),
            Err(refusal) => refusal,
        };
        let at_root = Invocation { cwd: PathBuf::from("/"), ..invocation.clone() };
        if self.inner.prepare(at_root).is_err() {
            return Err(refusal);
        }
        // Nothing but the directory is wrong.
        let _ = lost.set(invocation.cwd.display().to_string());
        let artifact = json!({ "provider": "living sandbox", "mounts": [], "noDirectory": true });
        Ok(Plan { isolation: self.isolation(), invocation, artifact })
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        if let Lost::Fails(lost) = &self.lost
            && let Some(cwd) = lost.get()
        {
            return Ok(self.went_nowhere(cwd, sink));
        }
        let mut plan = plan.clone();
        plan.invocation.env.extend(self.private.iter().map(|(name, value)| EnvVar {
            name: name.clone(),
            value: EnvValue::Plain(value.clone()),
        }));
        let limits = &plan.invocation.limits;
        let most = disk::Bounds { bytes: limits.disk_bytes, files: limits.inodes };
        let struck = OnceLock::new();
        let (done, is_done) = channel::<()>();
        let report = std::thread::scope(|scope| {
            let (struck, most, directory) = (&struck, &most, self.directory);
            scope.spawn(move || {
                while is_done.recv_timeout(COUNT_EVERY) == Err(RecvTimeoutError::Timeout) {
                    if let Some(limit) = disk::usage(directory).exceeded(most) {
                        // The first one counts.
                        let _ = struck.set(limit);
                        cancel.cancel();
                    }
                }
            });
            let report = self.inner.run(&plan, sink, cancel);
            drop(done);
            report
        });
        let mut report = report?;
        self.meter.spend(report.usage.cpu_us);
        report.posture = with_own_disk(report.posture, Some(&plan.invocation.limits));
        if let (Some(limit), Outcome::Cancelled) = (struck.get(), &report.outcome) {
            report.outcome = Outcome::Limited { limit: *limit };
        }
        Ok(report)
    }
}

impl Standing<'_> {
    /// Says what a shell says that cannot go where it is sent; nothing is started.
    fn went_nowhere(&self, cwd: &str, sink: &dyn Sink) -> RunReport {
        let line = format!("cd: {cwd}: No such file or directory\n");
        let said = (Stream::Stderr, line.as_bytes());
        let operation =
            Operation { name: "command.not-started", succeeded: false, guards: Vec::new() };
        let outcome = Outcome::Performed { succeeded: false };
        report((outcome, self.isolation(), operation), Duration::ZERO, sink, said)
    }
}

/// The sandbox's files lie on disk, not in the run's scratch, and are counted from outside; `limits`
/// are those of a run that was counted.
fn with_own_disk(mut posture: Posture, limits: Option<&Limits>) -> Posture {
    const DETAIL: &str = "counted every 500 ms; the whole tree is ended";
    for kind in [LimitKind::Disk, LimitKind::Inodes] {
        let name = format!("limits.{}", kind.as_str());
        let is_counted = match limits {
            Some(limits) => limits.of(kind).is_some(),
            None => posture.enforces(&name),
        };
        let (evidence, detail) = match is_counted {
            true => (Evidence::Measured, DETAIL.to_owned()),
            false => (Evidence::Reported, format!("{DETAIL}; no such limit in this run")),
        };
        let is_held = limits.is_some() || posture.enforces(&name);
        if is_held {
            let component = Component {
                enforcement: Enforcement::Observed,
                evidence,
                source: "sandbox directory".to_owned(),
                detail: Some(detail),
            };
            posture.components.insert(name, component);
        }
    }
    posture
}

/// What stands where work that starts no program has no boundary: it claims nothing.
pub(super) fn no_posture(isolation: Isolation) -> Posture {
    Posture {
        isolation,
        provider_version: format!("warrant {}", env!("CARGO_PKG_VERSION")),
        components: BTreeMap::new().into(),
    }
}
