//! The sinks of the checks: one that keeps everything, and some that behave badly on purpose.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warrant_sandbox::{Cancel, NetworkDecision, Sink, Stream};

/// More than any check lets a program say; what comes after is only counted.
const KEPT_AT_MOST: usize = 16 << 20;

/// How a sink treats what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Takes it at once.
    Keep,
    /// Takes it, and cancels the run at the first byte.
    CancelAtFirst,
    /// Says that nobody reads any more.
    Refuse,
    /// Takes its time over every piece, and cancels the run after a while.
    Slow {
        /// For each piece.
        pause: Duration,
        /// Since the first piece.
        cancel_after: Duration,
    },
}

/// What a sink was given.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// On standard output.
    pub(crate) stdout: Vec<u8>,
    /// On standard error.
    pub(crate) stderr: Vec<u8>,
    /// How many bytes, kept or not.
    pub(crate) total: u64,
    /// The largest piece.
    pub(crate) largest: usize,
    /// Hosts that were refused.
    pub(crate) refused: Vec<String>,
    first_at: Option<Instant>,
}

/// Keeps what a run says.
#[derive(Debug)]
pub(crate) struct Recorder {
    manner: Manner,
    cancel: Cancel,
    heard: Mutex<Heard>,
}

impl Recorder {
    /// Returns a sink that treats output in this manner.
    pub(crate) fn new(manner: Manner, cancel: Cancel) -> Self {
        Self { manner, cancel, heard: Mutex::default() }
    }

    /// Returns what was heard so far, and forgets it.
    pub(crate) fn take(&self) -> Heard {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, stream: Stream, bytes: &[u8]) -> Instant {
        let mut heard = self.lock();
        heard.total += bytes.len() as u64;
        heard.largest = heard.largest.max(bytes.len());
        let buffer = match stream {
            Stream::Stdout => &mut heard.stdout,
            Stream::Stderr => &mut heard.stderr,
        };
        if buffer.len() < KEPT_AT_MOST {
            buffer.extend_from_slice(bytes);
        }
        *heard.first_at.get_or_insert_with(Instant::now)
    }
}

impl Sink for Recorder {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let first_at = self.keep(stream, bytes);
        match self.manner {
            Manner::Keep => {}
            Manner::CancelAtFirst => self.cancel.cancel(),
            Manner::Refuse => return Err(io::ErrorKind::BrokenPipe.into()),
            Manner::Slow { pause, cancel_after } => {
                std::thread::sleep(pause);
                if first_at.elapsed() >= cancel_after {
                    self.cancel.cancel();
                }
            }
        }
        Ok(())
    }

    fn network(&self, decision: NetworkDecision) {
        if !decision.allowed {
            self.lock().refused.push(decision.host);
        }
    }
}
