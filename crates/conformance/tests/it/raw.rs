//! A backend with no boundary at all that claims every wall there is.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::json;
use warrant_conformance::preflight::vocabulary;
use warrant_protocol::{
    Component, Digest, Enforcement, Evidence, Isolation, LimitKind, Outcome, Posture, Usage,
};
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, Command, Invocation, Plan, Refusal, RunReport, Shell, Sink,
    Stdin, Stream, StreamDigest,
};

/// Starts programs as they are; ends only the one it started.
pub(crate) struct Raw {
    pub(crate) groups: Groups,
    pub(crate) claims: Claims,
}

/// What it says that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claims {
    /// Everything; it does hold the deadline, the output and the environment.
    All,
    /// This one component, which it does not hold.
    Only(String),
}

impl Claims {
    /// Whether it leaves a component alone that it could hold.
    fn neglects(&self, component: &str) -> bool {
        matches!(self, Self::Only(name) if name == component)
    }
}

/// The process groups in which something outlived its run. Clones are the same groups.
#[derive(Clone, Default)]
pub(crate) struct Groups(Arc<Mutex<Vec<Pid>>>);

impl Groups {
    /// Remembers a group as long as something lives in it: its number is no other's until then.
    fn add(&self, group: Pid) {
        if test_kill_process_group(group).is_ok() {
            self.0.lock().unwrap().push(group);
        }
    }

    /// Returns how many processes live in them; what has died and waits to be noticed does not.
    pub(crate) fn living(&self) -> usize {
        let groups = self.0.lock().unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let is_ours = |process: &std::fs::DirEntry| {
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            // The name in parentheses may hold anything; state and group follow it.
            let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            let (state, group) = (fields.next(), fields.nth(1).and_then(|text| text.parse().ok()));
            let group: Option<i32> = group;
            let is_member = groups.iter().any(|known| Some(known.as_raw_nonzero().get()) == group);
            is_member && state != Some("Z")
        };
        processes.filter(is_ours).count()
    }

    /// Ends everything in them.
    pub(crate) fn end(&self) {
        for group in self.0.lock().unwrap().iter() {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
}

impl Backend for Raw {
    fn isolation(&self) -> Isolation {
        Isolation::Namespace
    }

    fn probe(&self) -> Posture {
        let held = |name: String| {
            let is_claimed = match &self.claims {
                Claims::All => true,
                Claims::Only(claimed) => *claimed == name,
            };
            let fact = Component {
                enforcement: match is_claimed {
                    true => Enforcement::Enforced,
                    false => Enforcement::Absent,
                },
                evidence: Evidence::Measured,
                source: "trust me".into(),
                detail: None,
            };
            (name, fact)
        };
        Posture {
            isolation: Isolation::Namespace,
            provider_version: "raw 1".into(),
            components: vocabulary().map(held).collect(),
        }
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        let names: Vec<_> = invocation.env.iter().map(|variable| &variable.name).collect();
        let artifact = json!({"environment": names});
        Ok(Plan { isolation: Isolation::Namespace, invocation, artifact })
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        run(&plan.invocation, (sink, cancel), self.probe(), self)
            .map_err(|cause| BoundaryError { step: "running", cause })
    }
}

fn run(
    invocation: &Invocation,
    (sink, cancel): (&dyn Sink, &Cancel),
    posture: Posture,
    Raw { groups, claims }: &Raw,
) -> io::Result<RunReport> {
    let started = Instant::now();
    let mut child = spawn(invocation, claims)?;
    let group = Pid::from_child(&child);
    feed(&mut child, &invocation.stdin);
    let (said, hears) = channel();
    listen(child.stdout.take().unwrap(), Stream::Stdout, said.clone());
    listen(child.stderr.take().unwrap(), Stream::Stderr, said);
    // Even whoever neglects it must end some time, for the checks to end.
    let late = if claims.neglects("limits.wall") { Duration::from_secs(6) } else { Duration::ZERO };
    let wall = Duration::from_millis(invocation.limits.wall_ms.unwrap_or(60_000));
    let deadline = started + wall + late;
    let mut kept = (Vec::new(), Vec::new());
    let bound = invocation.limits.output_bytes.filter(|_| !claims.neglects("limits.output"));
    let mut left = bound.unwrap_or(u64::MAX);
    let mut ended = None;
    let outcome = loop {
        match hears.recv_timeout(Duration::from_millis(10)) {
            Ok((stream, bytes)) => {
                let room = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                left -= room as u64;
                let kept = if stream == Stream::Stdout { &mut kept.0 } else { &mut kept.1 };
                kept.extend_from_slice(&bytes[..room]);
                if sink.output(stream, &bytes[..room]).is_err() {
                    break Outcome::Cancelled;
                }
                if room < bytes.len() {
                    break Outcome::Limited { limit: LimitKind::Output };
                }
            }
            Err(RecvTimeoutError::Disconnected) => break outcome(child.wait()?),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    // Someone else may hold the pipes open for ever.
                    let since: &mut Instant = ended.get_or_insert_with(Instant::now);
                    if since.elapsed() > Duration::from_millis(100) {
                        break outcome(status);
                    }
                }
            }
        }
        if cancel.is_cancelled() {
            break Outcome::Cancelled;
        }
        if Instant::now() > deadline {
            break Outcome::Limited { limit: LimitKind::Wall };
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    groups.add(group);
    let is_cut = outcome == Outcome::Limited { limit: LimitKind::Output };
    let told = |bytes: &[u8]| StreamDigest {
        digest: Digest::of(bytes),
        bytes: bytes.len() as u64,
        truncated: is_cut,
    };
    let wall_us = u64::try_from(started.elapsed().as_micros()).ok();
    let usage = Usage { wall_us, ..Usage::default() };
    let (stdout, stderr) = (told(&kept.0), told(&kept.1));
    Ok(RunReport { outcome, usage, stdout, stderr, posture, upper: None, operation: None })
}

fn spawn(invocation: &Invocation, claims: &Claims) -> io::Result<Child> {
    let mut process = match &invocation.command {
        Command::Argv { program, args } => {
            let mut process = Process::new(program);
            process.args(args);
            process
        }
        Command::Shell { shell, script } => {
            let mut process = Process::new(if *shell == Shell::Sh { "sh" } else { "bash" });
            process.arg("-c").arg(script);
            process
        }
    };
    let env = invocation.env.iter().map(|variable| (&variable.name, variable.value.reveal()));
    if !claims.neglects("environment") {
        process.env_clear();
    }
    process.envs(env).current_dir(&invocation.cwd).process_group(0);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

fn feed(child: &mut Child, stdin: &Stdin) {
    let mut pipe = child.stdin.take().unwrap();
    match stdin {
        Stdin::Empty => {}
        Stdin::Bytes(bytes) => {
            let bytes = bytes.clone();
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        Stdin::Descriptor(descriptor) => {
            let mut from = std::fs::File::from(descriptor.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut from, &mut pipe));
        }
    }
}

fn listen(mut pipe: impl Read + Send + 'static, stream: Stream, said: Sender<(Stream, Vec<u8>)>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            if said.send((stream, buffer[..count].to_vec())).is_err() {
                break;
            }
        }
    });
}

fn outcome(status: std::process::ExitStatus) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => Outcome::Exited { code: u8::try_from(code).unwrap() },
        (None, signal) => Outcome::Signaled { signal: u8::try_from(signal.unwrap()).unwrap() },
    }
}
