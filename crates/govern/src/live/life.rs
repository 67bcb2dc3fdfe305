//! The life of a sandbox as one long run: it starts when the sandbox may be, and its receipt is
//! written when nothing of the sandbox is left.

use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest as _, Sha256};
use warrant_protocol::observation::OperationGuard;
use warrant_protocol::{Digest, Isolation, LimitKind, Outcome, Posture, Usage};
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, Invocation, Operation, Plan, Refusal, RunReport, Sink, Stream,
    StreamDigest,
};

use super::backend::no_posture;
use super::disk;

/// Why a sandbox ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Its owner, or the end of the workshop.
    Destroyed,
    /// Its time is over.
    Expired,
}

/// The end of a life, waited for by the run and said by anyone, once.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<Option<Reason>>,
    changed: Condvar,
}

impl Bell {
    /// Ends the life; the first reason counts.
    pub(super) fn ring(&self, reason: Reason) {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.changed.notify_all();
    }

    pub(super) fn is_rung(&self) -> bool {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn wait(&self) -> Reason {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *rung {
                Some(reason) => return reason,
                None => rung = self.changed.wait(rung).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// What the run of a life does: wait for the end, then leave nothing.
pub(super) struct LifeWork<'a> {
    pub(super) isolation: Isolation,
    pub(super) directory: &'a Path,
    pub(super) bell: &'a Bell,
    /// Told once when the life has begun.
    pub(super) begun: SyncSender<()>,
    /// Ends every command and waits for it; returns how many commands and file calls there were.
    pub(super) clear: &'a (dyn Fn() -> (u64, u64) + Sync),
}

impl Backend for LifeWork<'_> {
    fn isolation(&self) -> Isolation {
        self.isolation
    }

    fn shows_host_paths(&self) -> bool {
        false
    }

    fn starts_program(&self) -> bool {
        false
    }

    fn probe(&self) -> Posture {
        no_posture(self.isolation)
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        let artifact = json!({ "provider": "living sandbox", "mounts": [] });
        Ok(Plan { isolation: self.isolation, invocation, artifact })
    }

    fn run(&self, _: &Plan, sink: &dyn Sink, _: &Cancel) -> Result<RunReport, BoundaryError> {
        let began = Instant::now();
        let _ = self.begun.send(());
        let reason = self.bell.wait();
        let (commands, file_calls) = (self.clear)();
        disk::remove(self.directory)
            .map_err(|cause| BoundaryError { step: "removing a sandbox", cause })?;
        let told = json!({ "commands": commands, "fileCalls": file_calls, "left": 0 });
        let outcome = match reason {
            Reason::Destroyed => Outcome::Performed { succeeded: true },
            Reason::Expired => Outcome::Limited { limit: LimitKind::Wall },
        };
        let told = told.to_string();
        let said = (Stream::Stdout, told.as_bytes());
        let guards = vec![OperationGuard::new(
            "files.removed",
            "the sandbox's directory was removed after its last command ended",
        )];
        let operation = Operation { name: "sandbox.life", succeeded: true, guards };
        Ok(report((outcome, self.isolation, operation), began.elapsed(), sink, said))
    }
}

/// Returns the report of work that started no program and says one line.
pub(super) fn report(
    (outcome, isolation, operation): (Outcome, Isolation, Operation),
    wall: Duration,
    sink: &dyn Sink,
    (stream, line): (Stream, &[u8]),
) -> RunReport {
    let _ = sink.output(stream, line);
    let digest = |bytes: &[u8]| StreamDigest {
        digest: Digest::from_bytes(Sha256::digest(bytes).into()),
        bytes: bytes.len() as u64,
        truncated: false,
    };
    let (stdout, stderr): (&[u8], &[u8]) = match stream {
        Stream::Stdout => (line, b""),
        Stream::Stderr => (b"", line),
    };
    RunReport {
        outcome,
        usage: Usage { wall_us: u64::try_from(wall.as_micros()).ok(), ..Usage::default() },
        stdout: digest(stdout),
        stderr: digest(stderr),
        posture: no_posture(isolation),
        upper: None,
        operation: Some(operation),
    }
}
