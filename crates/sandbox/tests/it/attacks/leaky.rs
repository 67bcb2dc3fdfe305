//! A backend that holds nothing: what the suite must fail on.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use warrant_protocol::{Digest, Isolation, Outcome, Posture, Usage};
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, Command, Invocation, Plan, Refusal, RunReport, Sink, Stream,
    StreamDigest,
};

/// Runs the program as the host's own child, with everything the host has.
pub(crate) struct Leaky;

impl Backend for Leaky {
    fn isolation(&self) -> Isolation {
        Isolation::Process
    }

    fn probe(&self) -> Posture {
        Posture {
            isolation: Isolation::Process,
            provider_version: "leaky".into(),
            components: BTreeMap::new().into(),
        }
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        let artifact = serde_json::Value::Null;
        Ok(Plan { isolation: Isolation::Process, invocation, artifact })
    }

    fn run(&self, plan: &Plan, sink: &dyn Sink, _: &Cancel) -> Result<RunReport, BoundaryError> {
        let Command::Shell { script, .. } = &plan.invocation.command else {
            panic!("the suite runs scripts")
        };
        let mut command = Process::new("sh");
        command.args(["-c", script]).current_dir(&plan.invocation.cwd).process_group(0);
        for variable in &plan.invocation.env {
            command.env(&variable.name, variable.value.reveal());
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            bytes
        });
        // It has a wall clock only so that the suite itself ends; one far beyond the limit, and
        // longer for attacks that end by themselves, however busy the machine is.
        let limits = &plan.invocation.limits;
        let is_endless = limits.cpu_ms.or(limits.processes).is_some()
            || limits.wall_ms.is_some_and(|ms| ms < 1000);
        let patience = Duration::from_secs(if is_endless { 3 } else { 30 });
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > patience {
                let group = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let bytes = reader.join().unwrap();
        sink.output(Stream::Stdout, &bytes).unwrap();
        let digest = |bytes: &[u8]| StreamDigest {
            digest: Digest::of(bytes),
            bytes: bytes.len() as u64,
            truncated: false,
        };
        let outcome = match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::Exited { code: code as u8 },
            (None, signal) => Outcome::Signaled { signal: signal.unwrap_or(9) as u8 },
        };
        Ok(RunReport {
            outcome,
            usage: Usage::default(),
            stdout: digest(&bytes),
            stderr: digest(b""),
            posture: self.probe(),
            upper: None,
            operation: None,
        })
    }
}
