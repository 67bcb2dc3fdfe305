//! Workers that wait in jails of their own, so that a run does not wait for them.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::frame::{self, Kind};
use super::launch::WorkerProgram;
use super::request::Request;
use super::supervise::{Watch, converse};
use super::wall::{self, LEAVES_WITHIN, LastWords};
use super::worker::{KEPT, WORD, WRITABLE};
use crate::namespace::{Kept, Namespace, Order, Starter};
use crate::pipes::at;
use crate::{BoundaryError, Invocation, RunReport, WorkspaceAccess};

/// How long a worker may take until it says that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A few jailed workers, and what more of them are made of.
#[derive(Debug)]
pub(super) struct Warmth {
    namespace: Arc<Namespace>,
    program: WorkerProgram,
    size: usize,
    ready: Mutex<VecDeque<Waiting>>,
    /// Held by whoever starts workers, so that no two make one too many.
    starting: Mutex<()>,
}

/// One worker that has said it is ready.
#[derive(Debug)]
struct Waiting {
    kept: Kept,
    line: UnixStream,
    words: Arc<LastWords>,
}

impl Warmth {
    /// Returns an empty store for up to `size` workers.
    pub(super) fn new(namespace: Arc<Namespace>, program: WorkerProgram, size: usize) -> Self {
        let (ready, starting) = (Mutex::default(), Mutex::default());
        Self { namespace, program, size, ready, starting }
    }

    /// Returns how many workers wait.
    pub(super) fn ready(&self) -> usize {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Starts workers until the store is full.
    pub(super) fn refill(&self) -> Result<(), BoundaryError> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        while self.ready() < self.size {
            let worker = self.start()?;
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(worker);
        }
        Ok(())
    }

    /// Starts what is missing, and lets nobody wait for it.
    pub(super) fn refill_later(self: &Arc<Self>) {
        if self.ready() >= self.size {
            return;
        }
        let warmth = Arc::clone(self);
        // What cannot be started now is started, or fails, with the next run.
        let _ = thread::Builder::new().spawn(move || warmth.refill());
    }

    /// Runs one request in a worker that waited, or in a fresh one of the same kind.
    pub(super) fn run(
        &self,
        request: &Request,
        invocation: &Invocation,
        watch: Watch<'_>,
    ) -> Result<RunReport, BoundaryError> {
        let Waiting { kept, line, words } = self.take()?;
        let files = wall::files(&invocation.files);
        let limits = wall::limits(&invocation.limits);
        let shown = self.namespace.show(kept.identity(), files, &limits)?;
        let scratch = shown.scratch.try_clone().map_err(at("opening the upper layer"))?;
        let is_gone = || at("watching the worker")(io::Error::other("the worker is gone"));
        kept.begin(Order { limits, scratch }).ok_or_else(is_gone)?;
        let payload = match invocation.files.access {
            WorkspaceAccess::ReadOnly => &[],
            WorkspaceAccess::Overlay | WorkspaceAccess::Direct => WRITABLE,
        };
        frame::send_with_fd(&line, Kind::Root, payload, &shown.tree)
            .map_err(at("handing over the workspace"))?;
        drop(shown.tree);
        let conversation = converse(&line, request, &invocation.stdin, watch);
        drop(line);
        let jail = kept.end(LEAVES_WITHIN)?;
        let upper = crate::namespace::upper(invocation.files.access, Some(&shown.scratch));
        let upper = upper.map_err(at("opening the upper layer"))?;
        wall::conclude(conversation, RunReport { upper, ..jail }, &words)
    }

    /// Takes a waiting worker; one that died while waiting is of no use.
    fn take(&self) -> Result<Waiting, BoundaryError> {
        loop {
            let waiting = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match waiting {
                None => return self.start(),
                Some(waiting) if waiting.is_there() => return Ok(waiting),
                Some(_) => {}
            }
        }
    }

    fn start(&self) -> Result<Waiting, BoundaryError> {
        let making = at("making the worker's socket");
        let executable = File::open(self.program.path());
        let executable = executable.map_err(at("opening the worker's program"))?;
        let (line, control) = UnixStream::pair().map_err(&making)?;
        let starter = Starter {
            executable: executable.into(),
            args: vec![WORD.to_owned(), KEPT.to_owned()],
            control: OwnedFd::from(control),
        };
        let words = Arc::<LastWords>::default();
        let kept = self.namespace.keep(starter, Arc::clone(&words) as _).map_err(&making)?;
        line.set_read_timeout(Some(READY_WITHIN)).map_err(&making)?;
        match frame::receive(&line) {
            Ok(Some(frame)) if frame.kind == Kind::Ready => {}
            // The jail knows better than the socket why there is no worker.
            _ => {
                kept.end(Duration::ZERO)?;
                let cause = io::Error::other("the worker did not start");
                return Err(at("starting the worker")(cause));
            }
        }
        line.set_read_timeout(None).map_err(&making)?;
        Ok(Waiting { kept, line, words })
    }
}

impl Waiting {
    /// Whether the worker has not hung up. It says nothing by itself while it waits.
    fn is_there(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.line, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(0))
    }
}
