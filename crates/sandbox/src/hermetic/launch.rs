//! Starting workers, and keeping a few of them warm.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::frame::{self, Kind};
use super::worker::WORD;

/// How long a worker may take until it says that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The program that becomes a worker when its first argument says so.
#[derive(Debug, Clone)]
pub struct WorkerProgram(PathBuf);

impl WorkerProgram {
    /// Returns the running program itself; its `main` must call [`crate::hermetic::worker_main`].
    #[must_use]
    pub fn this() -> Self {
        Self("/proc/self/exe".into())
    }

    /// Returns another program whose `main` calls [`crate::hermetic::worker_main`].
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

/// A started worker that has said it is ready. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    /// The socket to it.
    pub line: UnixStream,
    /// What its runtime says when it dies: an allocation that failed, a stack that overflowed.
    last_words: OwnedFd,
}

impl Worker {
    /// Starts a worker without a jail around it; its own filter is all that holds it.
    pub(super) fn start(program: &WorkerProgram) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let (last_words, their_stderr) = rustix::pipe::pipe_with(
            rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK,
        )?;
        let child = Command::new(program.path())
            .arg(WORD)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(their_stderr)
            .spawn()?;
        let worker = Self { child, line, last_words };
        worker.line.set_read_timeout(Some(READY_WITHIN))?;
        match frame::receive(&worker.line)? {
            Some(frame) if frame.kind == Kind::Ready => {}
            _ => return Err(io::Error::other("the worker did not start")),
        }
        worker.line.set_read_timeout(None)?;
        Ok(worker)
    }

    /// Returns the worker's process id on this host.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the worker and returns the signal that ended it, had it already died of one.
    pub(super) fn end(&mut self) -> io::Result<Option<u8>> {
        use std::os::unix::process::ExitStatusExt;
        let status = match self.child.try_wait()? {
            Some(status) => status,
            None => {
                self.child.kill()?;
                self.child.wait()?;
                return Ok(None);
            }
        };
        Ok(status.signal().and_then(|signal| u8::try_from(signal).ok()))
    }

    /// Waits a moment for a worker that has closed its socket to be gone.
    pub(super) fn settle(&mut self, within: Duration) -> io::Result<()> {
        let step = Duration::from_millis(1);
        let mut waited = Duration::ZERO;
        while self.child.try_wait()?.is_none() && waited < within {
            std::thread::sleep(step);
            waited += step;
        }
        Ok(())
    }

    /// Returns the first bytes of what the worker's runtime said when it died.
    pub(super) fn last_words(&self) -> String {
        let mut buffer = [0; 4096];
        let count = rustix::io::read(self.last_words.as_fd(), &mut buffer).unwrap_or(0);
        String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()).into_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A worker that is already gone cannot be killed, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A few workers that are started and wait, so that a run does not wait for them.
///
/// A worker serves one run; whoever owns the pool refills it between runs.
#[derive(Debug)]
pub struct Pool {
    program: WorkerProgram,
    size: usize,
    ready: Mutex<VecDeque<Worker>>,
}

impl Pool {
    /// Returns an empty pool that keeps up to `size` workers.
    #[must_use]
    pub fn new(program: WorkerProgram, size: usize) -> Self {
        Self { program, size, ready: Mutex::default() }
    }

    /// Returns how many workers may wait.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns the program its workers are made of.
    pub(super) fn program(&self) -> &WorkerProgram {
        &self.program
    }

    /// Starts workers until the pool is full.
    ///
    /// # Errors
    /// The system's error when a worker cannot be started.
    pub fn refill(&self) -> io::Result<()> {
        while self.lock().len() < self.size {
            let worker = Worker::start(&self.program)?;
            self.lock().push_back(worker);
        }
        Ok(())
    }

    /// Returns how many workers wait.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.lock().len()
    }

    /// Takes a waiting worker, or starts one.
    pub(crate) fn take(&self) -> io::Result<Worker> {
        loop {
            let Some(mut worker) = self.lock().pop_front() else {
                return Worker::start(&self.program);
            };
            // One that died while waiting is of no use.
            if worker.child.try_wait()?.is_none() {
                return Ok(worker);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Worker>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
