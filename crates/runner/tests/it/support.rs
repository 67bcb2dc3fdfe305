//! A home in a temporary directory, requests, a judge, and a backend that runs real processes
//! without holding anything back, which its posture says honestly unless a test wants otherwise.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tempfile::TempDir;
use warrant_plane::reception::APPROVAL_WAIT_MS;
use warrant_plane::{
    ApprovalRequirement, EmbeddedPlane, Home, Judgment, Reception, Submission, random,
};
use warrant_protocol::port::Lease;
use warrant_protocol::request::{ActorKind, ActorRef, SecretClaim};
use warrant_protocol::{
    Component, Decision, DecisionSummary, Digest, Enforcement, Event, Evidence, Isolation,
    LimitKind, Outcome, Posture, RunId, RunRequest, Timestamp, Usage,
};
use warrant_runner::{
    Ended, Observer, RunError, RunnerIdentity, Surroundings, VersionPins, governed_run,
};
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, Command, Invocation, Plan, Refusal, RunReport, Shell, Sink,
    Stdin, Stream, StreamDigest,
};

pub(crate) fn policy_hash() -> Digest {
    Digest::of(b"the policy of these tests")
}

pub(crate) fn now() -> Timestamp {
    random::now().unwrap()
}

pub(crate) fn alice() -> ActorRef {
    ActorRef { kind: ActorKind::Human, id: "alice".into() }
}

/// A request for a shell script in the mock tier.
pub(crate) fn request(script: &str) -> RunRequest {
    let value = json!({
        "requestedBy": {"kind": "human", "id": "somebody else"},
        "agentKind": "command",
        "prompt": script,
        "pool": "default",
        "secretNames": [],
        "workspace": {
            "version": "warrant.manifest.v1",
            "baseRef": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
            "bundleHash": Digest::of(b""),
            "untrackedFiles": [],
            "deniedPatterns": [],
            "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": []},
        "budget": {},
        "disclosure": "redacted",
        "isolation": "mock",
    });
    serde_json::from_value(value).unwrap()
}

pub(crate) fn judgment(decision: Decision) -> Judgment {
    let reasons = match decision {
        Decision::Deny => vec!["agent kind \"command\" is not allowed".to_owned()],
        Decision::Allow | Decision::Ask => Vec::new(),
    };
    Judgment {
        summary: DecisionSummary {
            decision,
            reasons,
            rules: vec!["test".into()],
            policy_hash: Some(policy_hash()),
            level: (decision == Decision::Ask).then_some(1),
        },
        policy_hash: policy_hash(),
        secrets: Vec::new(),
        requirements: requirements(decision),
        limits: None,
        masks: Vec::new(),
        required_posture: Vec::new(),
        evidence: Default::default(),
    }
}

fn requirements(decision: Decision) -> Vec<ApprovalRequirement> {
    let bob = ApprovalRequirement {
        name: "any-run".into(),
        level: 1,
        approvers: vec!["bob".into(), "carol".into()],
        quorum: 1,
        expires_min: None,
    };
    if decision == Decision::Ask { vec![bob] } else { Vec::new() }
}

pub(crate) fn allow(request: &RunRequest) -> Judgment {
    let mut judgment = judgment(Decision::Allow);
    judgment.secrets = request
        .secret_names
        .iter()
        .map(|name| SecretClaim { name: name.clone(), scope: "pool:default".into() })
        .collect();
    judgment
}

pub(crate) struct House {
    pub(crate) dir: TempDir,
    pub(crate) workspace: TempDir,
    pub(crate) plane: EmbeddedPlane,
    pub(crate) identity: RunnerIdentity,
    pub(crate) shown: Shown,
    pub(crate) cancel: Cancel,
}

impl House {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let house = Self::in_directory(dir.path());
        Self { dir, ..house }
    }

    /// A house in a directory that outlives it.
    pub(crate) fn in_directory(root: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open_at(root.join("home"), None).unwrap();
        let plane = EmbeddedPlane::open(home, policy_hash()).unwrap();
        let identity = RunnerIdentity {
            id: plane.home().runner_id().clone(),
            key: plane.home().runner_key().clone(),
            pool: plane.home().pool().clone(),
        };
        let (workspace, cancel) = (tempfile::tempdir().unwrap(), Cancel::new().unwrap());
        Self { dir, workspace, plane, identity, shown: Shown::default(), cancel }
    }

    pub(crate) fn submit(
        &self,
        request: RunRequest,
        judge: impl FnOnce(&RunRequest) -> Judgment,
    ) -> Reception {
        let submission = Submission {
            request,
            principal: alice(),
            idempotency_key: None,
            approval_wait_ms: APPROVAL_WAIT_MS,
        };
        self.plane.submit(submission, judge).unwrap()
    }

    pub(crate) fn lease(&self, request: RunRequest) -> Lease {
        match self.submit(request, allow) {
            Reception::Queued { run } => self.plane.lease(&run).unwrap(),
            other => panic!("not queued: {other:?}"),
        }
    }

    pub(crate) fn run_lease(&self, lease: Lease, backend: &dyn Backend) -> Result<Ended, RunError> {
        self.run_pinned(lease, backend, &[])
    }

    pub(crate) fn run_pinned(
        &self,
        lease: Lease,
        backend: &dyn Backend,
        pins: &[VersionPins],
    ) -> Result<Ended, RunError> {
        let environment = BTreeMap::new();
        let clock = now;
        let scratch = self.plane.home().sessions();
        let surroundings = Surroundings {
            plane: &self.plane,
            plane_key: self.plane.home().plane_key().public(),
            identity: &self.identity,
            backends: &[backend],
            pins,
            workspace: self.workspace.path(),
            scratch: &scratch,
            own: self.plane.home().root(),
            environment: &environment,
            stdin: &Stdin::Empty,
            tty: None,
            cancel: &self.cancel,
            observer: &self.shown,
            gate: &warrant_workspace::GatePolicy::advised(),
            clock: &clock,
        };
        governed_run(&surroundings, lease)
    }

    pub(crate) fn run(&self, request: RunRequest, backend: &dyn Backend) -> Ended {
        self.run_lease(self.lease(request), backend).unwrap()
    }

    pub(crate) fn events(&self, run: &RunId) -> Vec<String> {
        let rows = self.plane.store().events(run).unwrap();
        let kind = |body: &str| {
            let value: serde_json::Value = serde_json::from_str(body).unwrap();
            value["event"]["type"].as_str().unwrap().to_owned()
        };
        rows.iter().map(|row| kind(&row.body)).collect()
    }
}

/// Keeps what was shown live.
#[derive(Default)]
pub(crate) struct Shown {
    pub(crate) bytes: Mutex<Vec<u8>>,
}

impl Observer for Shown {
    fn output(&self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        self.bytes.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }
}

/// Runs the program as a plain child process.
pub(crate) struct TestBackend {
    pub(crate) posture: Posture,
    pub(crate) refusal: Option<&'static str>,
    pub(crate) broken: bool,
    pub(crate) runs: AtomicUsize,
    pub(crate) posture_while_running: Option<Posture>,
    pub(crate) network: Vec<warrant_sandbox::NetworkDecision>,
    pub(crate) upper: Option<PathBuf>,
}

impl TestBackend {
    pub(crate) fn new() -> Self {
        let held = |name: &str| {
            let component = Component {
                enforcement: Enforcement::Enforced,
                evidence: Evidence::Measured,
                source: "test".into(),
                detail: None,
            };
            (name.to_owned(), component)
        };
        let components = ["environment", "limits.wall", "limits.output"].map(held);
        Self {
            posture: Posture {
                isolation: Isolation::Mock,
                provider_version: "test 1".into(),
                components: BTreeMap::from(components).into(),
            },
            refusal: None,
            broken: false,
            runs: AtomicUsize::new(0),
            posture_while_running: None,
            network: Vec::new(),
            upper: None,
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Backend for TestBackend {
    fn isolation(&self) -> Isolation {
        Isolation::Mock
    }

    fn probe(&self) -> Posture {
        self.posture.clone()
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        if let Some(code) = self.refusal {
            return Err(Refusal { code, message: "not here".into() });
        }
        let names: Vec<_> = invocation.env.iter().map(|var| var.name.clone()).collect();
        let artifact = json!({"mounts": [], "environment": names});
        Ok(Plan { isolation: Isolation::Mock, invocation, artifact })
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        if self.broken {
            let cause = io::Error::other("no namespaces");
            return Err(BoundaryError { step: "clone", cause });
        }
        for decision in &self.network {
            sink.network(decision.clone());
        }
        let mut process = process_of(&plan.invocation.command);
        let env = plan.invocation.env.iter().map(|var| (&var.name, var.value.reveal()));
        process.env_clear().envs(env).current_dir(&plan.invocation.cwd);
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process.spawn().map_err(|cause| BoundaryError { step: "spawn", cause })?;
        let mut outcome = None;
        let mut stdout = child.stdout.take().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let mut buffer = [0; 7];
        loop {
            let read = stdout.read(&mut buffer).unwrap();
            if read == 0 {
                break;
            }
            if sink.output(Stream::Stdout, &buffer[..read]).is_err() || cancel.is_cancelled() {
                child.kill().unwrap();
                outcome = Some(Outcome::Cancelled);
                break;
            }
        }
        let mut rest = Vec::new();
        stderr.read_to_end(&mut rest).unwrap();
        sink.output(Stream::Stderr, &rest).ok();
        let status = child.wait().unwrap();
        let digest = StreamDigest { digest: Digest::of(b""), bytes: 0, truncated: false };
        let posture = self.posture_while_running.as_ref().unwrap_or(&self.posture).clone();
        Ok(RunReport {
            outcome: outcome.unwrap_or_else(|| ended(status)),
            usage: Usage::default(),
            stdout: digest,
            stderr: digest,
            posture,
            upper: self.upper.as_ref().map(|path| std::fs::File::open(path).unwrap().into()),
            operation: None,
        })
    }
}

fn process_of(command: &Command) -> Process {
    match command {
        Command::Argv { program, args } => {
            let mut process = Process::new(program);
            process.args(args);
            process
        }
        Command::Shell { shell, script } => {
            let mut process = Process::new(match shell {
                Shell::Sh => "sh",
                Shell::Bash => "bash",
            });
            process.arg("-c").arg(script);
            process
        }
    }
}

fn ended(status: std::process::ExitStatus) -> Outcome {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(124), _) => Outcome::Limited { limit: LimitKind::Wall },
        (Some(code), _) => Outcome::Exited { code: u8::try_from(code).unwrap() },
        (None, Some(signal)) => Outcome::Signaled { signal: u8::try_from(signal).unwrap() },
        (None, None) => panic!("neither code nor signal"),
    }
}

/// Whether a run's chain has an event that `wanted` accepts.
pub(crate) fn has_event(house: &House, run: &RunId, wanted: impl Fn(&Event) -> bool) -> bool {
    let rows = house.plane.store().events(run).unwrap();
    rows.iter().any(|row| {
        let event: warrant_protocol::ChainedEvent = serde_json::from_str(&row.body).unwrap();
        wanted(event.event())
    })
}
