//! What programs say while they run, for whoever watches. Bounded, in memory, not evidence: the
//! whole log is an artifact of the run once it ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use warrant_protocol::RunId;

/// How much of one run's log is kept for those who come late.
const MAX_BYTES: usize = 256 * 1024;

/// How much of all live logs is kept; when many runs have one, each has less.
const MAX_TOTAL_BYTES: usize = 16 * 1024 * 1024;

/// How many runs have a live log at once.
const MAX_RUNS: usize = 1024;

/// The live logs of runs.
#[derive(Debug, Default)]
pub(crate) struct LiveLogs {
    runs: Mutex<HashMap<RunId, Arc<LiveLog>>>,
}

/// The live log of one run.
#[derive(Debug)]
pub(crate) struct LiveLog {
    kept: Mutex<Kept>,
    length: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// How many bytes were dropped before the first that is kept.
    dropped: u64,
    bytes: Vec<u8>,
}

impl LiveLogs {
    /// Adds to a run's log the piece that begins at byte `at`, or after everything that is known.
    pub(crate) fn push(&self, run: &RunId, at: Option<u64>, bytes: &[u8]) {
        let Some(log) = self.of(run) else { return };
        let count = self.runs.lock().unwrap_or_else(PoisonError::into_inner).len();
        let most = (MAX_TOTAL_BYTES / count.max(1)).min(MAX_BYTES);
        log.push(at, bytes, most);
    }

    /// Returns the log of a run, new if there is none; nothing when there are too many.
    pub(crate) fn of(&self, run: &RunId) -> Option<Arc<LiveLog>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = runs.get(run) {
            return Some(Arc::clone(log));
        }
        if runs.len() >= MAX_RUNS {
            return None;
        }
        let log = Arc::new(LiveLog { kept: Mutex::default(), length: watch::Sender::new(0) });
        runs.insert(run.clone(), Arc::clone(&log));
        Some(log)
    }

    /// Forgets the log of a run that ended.
    pub(crate) fn end(&self, run: &RunId) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }
}

impl LiveLog {
    fn push(&self, at: Option<u64>, bytes: &[u8], most: usize) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let length = kept.dropped + kept.bytes.len() as u64;
        let at = at.unwrap_or(length);
        if at > length {
            // What lies between was lost on the way; it is in the log that the run leaves.
            kept.bytes.clear();
            kept.dropped = at;
        }
        // A piece that was sent twice counts once.
        let known = usize::try_from(length.saturating_sub(at)).unwrap_or(usize::MAX);
        kept.bytes.extend_from_slice(bytes.get(known..).unwrap_or_default());
        let excess = kept.bytes.len().saturating_sub(most);
        if excess > 0 {
            kept.bytes.drain(..excess);
            kept.bytes.shrink_to(most);
            kept.dropped += excess as u64;
        }
        let length = kept.dropped + kept.bytes.len() as u64;
        drop(kept);
        self.length.send_replace(length);
    }

    /// Returns what was said from byte `from` on and where that starts.
    pub(crate) fn since(&self, from: u64) -> (u64, Bytes) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let start = from.max(kept.dropped);
        let skip = usize::try_from(start - kept.dropped).unwrap_or(usize::MAX);
        let rest = kept.bytes.get(skip..).unwrap_or_default();
        (start, Bytes::copy_from_slice(rest))
    }

    /// Returns a listener that hears when more was said.
    pub(crate) fn listen(&self) -> watch::Receiver<u64> {
        self.length.subscribe()
    }
}
