//! The wall around a worker: the jail of the namespace tier, with nothing in it but the workspace.
//!
//! The interpreter is one wall and this is the second; a hole in one is not an escape.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use warrant_protocol::{Limits, Outcome};

use super::launch::WorkerProgram;
use super::request::Request;
use super::supervise::{Ended, Watch, cause_of_death, converse};
use super::worker::{JAILED, WORD};
use crate::namespace::{Namespace, Worker};
use crate::{
    BoundaryError, Cancel, Files, Invocation, NetworkDecision, RunReport, Sink, Stdin, Stream,
};

/// How long a worker that has said its last may take to leave before it is killed.
pub(super) const LEAVES_WITHIN: Duration = Duration::from_millis(500);

/// Runs one request in a jailed worker to its end.
pub(super) fn run(
    (namespace, program): (&Namespace, &WorkerProgram),
    request: &Request,
    invocation: &Invocation,
    watch: Watch<'_>,
) -> Result<RunReport, BoundaryError> {
    let failed = |step| move |cause| BoundaryError { step, cause };
    let executable = File::open(program.path()).map_err(failed("opening the worker's program"))?;
    let (line, control) = UnixStream::pair().map_err(failed("making the worker's socket"))?;
    let stop = Cancel::new().map_err(failed("making the worker's socket"))?;
    let worker = Worker {
        executable: executable.into(),
        args: vec![WORD.to_owned(), JAILED.to_owned()],
        env: Vec::new(),
        files: files(&invocation.files),
        limits: limits(&invocation.limits),
        stdin: Stdin::Empty,
        control: Some(OwnedFd::from(control)),
    };
    let words = LastWords::default();
    let (gone, is_gone) = channel::<()>();
    let stopping = &stop;
    let (conversation, jail) = thread::scope(|scope| {
        let talking = scope.spawn(move || {
            let conversation = converse(&line, request, &invocation.stdin, watch);
            drop(line);
            // Nobody says anything on this channel; it closes when the jail is gone.
            let _ = is_gone.recv_timeout(LEAVES_WITHIN);
            stopping.cancel();
            conversation
        });
        let jail = namespace.run_worker(worker, &words, &stop);
        drop(gone);
        (talking.join(), jail)
    });
    let conversation = conversation.map_err(|_| io::Error::other("the supervisor panicked"));
    conclude(conversation.flatten(), jail?, &words)
}

/// Puts together what a worker said and what its jail saw.
pub(super) fn conclude(
    conversation: io::Result<(Option<Outcome>, Ended)>,
    jail: RunReport,
    words: &LastWords,
) -> Result<RunReport, BoundaryError> {
    let failed = |step| move |cause| BoundaryError { step, cause };
    let (said, ended) = conversation.map_err(failed("watching the worker"))?;
    let outcome = outcome(said, &jail.outcome, &words.text())
        .ok_or_else(|| {
            io::Error::other(format!("the worker left without a word: {}", words.text()))
        })
        .map_err(failed("watching the worker"))?;
    Ok(report(outcome, ended, jail))
}

/// Returns how the run ended, from what the worker said and what the jail saw.
fn outcome(said: Option<Outcome>, seen: &Outcome, words: &str) -> Option<Outcome> {
    match (said, seen) {
        (Some(said), _) => Some(said),
        (None, Outcome::Signaled { signal }) => cause_of_death(Some(*signal), words),
        (None, Outcome::Limited { .. }) => Some(seen.clone()),
        (None, _) => cause_of_death(None, words),
    }
}

fn report(outcome: Outcome, ended: Ended, jail: RunReport) -> RunReport {
    let mut usage = ended.usage;
    usage.wall_us = jail.usage.wall_us;
    usage.cpu_us = jail.usage.cpu_us;
    usage.peak_memory_bytes = jail.usage.peak_memory_bytes;
    RunReport {
        outcome,
        usage,
        stdout: ended.stdout,
        stderr: ended.stderr,
        posture: jail.posture,
        upper: jail.upper,
        operation: None,
    }
}

/// The worker guards its repository itself; the jail knows only the workspace.
pub(super) fn files(files: &Files) -> Files {
    Files { read_roots: Vec::new(), write_roots: Vec::new(), ..files.clone() }
}

/// Counting files and bytes is left to the worker, which knows which of them are the script's.
pub(super) fn limits(limits: &Limits) -> Limits {
    Limits {
        processes: None,
        open_files: limits.open_files.map(|count| count.max(32)),
        file_bytes: None,
        // Room for the jail's own skeleton, and for what a last write may add.
        disk_bytes: limits.disk_bytes.map(|bytes| bytes.saturating_add(16 << 20)),
        inodes: None,
        output_bytes: None,
        ..limits.clone()
    }
}

/// Keeps the first of what the worker's runtime says.
#[derive(Debug, Default)]
pub(super) struct LastWords(Mutex<Vec<u8>>);

impl LastWords {
    fn text(&self) -> String {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).into_owned()
    }
}

impl Sink for LastWords {
    fn output(&self, _stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = 4096_usize.saturating_sub(words.len()).min(bytes.len());
        words.extend_from_slice(bytes.get(..room).unwrap_or_default());
        Ok(())
    }

    fn network(&self, _decision: NetworkDecision) {}
}
