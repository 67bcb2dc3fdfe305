//! One command of a living sandbox, as its watchers see it: what it said so far and how it ended.
//!
//! Whoever runs it pushes; any number of watchers read from any place, at their own pace. What is
//! kept is bounded; a watcher that comes too late is told how much is gone by where it continues.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use warrant_protocol::{Outcome, RunId, Timestamp};

/// Bytes of output that are kept of one command; the oldest go first.
const MOST_KEPT_BYTES: usize = 8 * 1024 * 1024;

/// What is known of a command from its start.
#[derive(Debug, Clone)]
pub struct ProcessFacts {
    /// Its number in its sandbox.
    pub pid: u32,
    /// The run with the receipt.
    pub run: RunId,
    /// The program and its arguments, as they came.
    pub argv: Vec<String>,
    /// Where it started.
    pub cwd: Option<String>,
    /// The client's own name for it.
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub has_terminal: bool,
    /// When it was started.
    pub started_at: Timestamp,
}

/// The ways to reach into a running command.
pub trait Grip: Send + Sync {
    /// Writes to its input; waits while it does not read.
    ///
    /// # Errors
    /// The system's error when nobody reads.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;

    /// Ends its input.
    fn close_input(&self);

    /// Changes the size of its terminal.
    ///
    /// # Errors
    /// The system's error when it has none.
    fn resize(&self, columns: u16, rows: u16) -> io::Result<()>;

    /// Ends its whole tree.
    fn kill(&self);
}

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal.
    Terminal,
}

/// A piece of output.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Where it came from.
    pub stream: ChunkStream,
    /// What was said.
    pub bytes: Bytes,
}

/// How a command ended; its receipt is stored.
#[derive(Debug, Clone)]
pub struct End {
    /// How.
    pub outcome: Outcome,
    /// Why it did not end well, for people; empty when it did.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

impl End {
    /// Returns the exit code as shells count: 128 and the signal for what was killed, nothing for
    /// what never ran.
    #[must_use]
    pub fn exit_code(&self) -> Option<i64> {
        const KILLED: i64 = 137;
        match &self.outcome {
            Outcome::Exited { code } => Some(i64::from(*code)),
            Outcome::Signaled { signal } => Some(128 + i64::from(*signal)),
            Outcome::Cancelled | Outcome::Limited { .. } => Some(KILLED),
            Outcome::Denied
            | Outcome::ApprovalExpired
            | Outcome::PostureRefused
            | Outcome::GapDenied
            | Outcome::Unobserved
            | Outcome::Lost
            | Outcome::Failed => None,
        }
    }

    /// Whether it ran out of its time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.outcome, Outcome::Limited { limit: warrant_protocol::LimitKind::Wall })
    }
}

/// What comes next for a watcher.
#[derive(Debug, Clone)]
pub enum Next {
    /// More output.
    Chunk(Chunk),
    /// The end; nothing follows.
    Ended(End),
}

/// One command.
pub struct Process {
    facts: ProcessFacts,
    grip: Box<dyn Grip>,
    board: Mutex<Board>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Board {
    chunks: VecDeque<Chunk>,
    /// How many chunks are gone.
    gone: u64,
    bytes: usize,
    end: Option<End>,
}

impl Process {
    /// Returns a command that has said nothing yet.
    #[must_use]
    pub fn new(facts: ProcessFacts, grip: Box<dyn Grip>) -> Self {
        let (changed, _) = watch::channel(0);
        Self { facts, grip, board: Mutex::default(), changed }
    }

    /// Returns what is known from its start.
    #[must_use]
    pub const fn facts(&self) -> &ProcessFacts {
        &self.facts
    }

    /// Returns the ways to reach into it.
    #[must_use]
    pub fn grip(&self) -> &dyn Grip {
        &*self.grip
    }

    /// Takes output.
    pub fn push(&self, stream: ChunkStream, bytes: &[u8]) {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.bytes += bytes.len();
        board.chunks.push_back(Chunk { stream, bytes: Bytes::copy_from_slice(bytes) });
        while board.bytes > MOST_KEPT_BYTES && board.chunks.len() > 1 {
            let Some(oldest) = board.chunks.pop_front() else { break };
            board.bytes -= oldest.bytes.len();
            board.gone += 1;
        }
        drop(board);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Takes the end. A second end is no change.
    pub fn finish(&self, end: End) {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.end.get_or_insert(end);
        drop(board);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Forgets the output of a command that ended long ago.
    pub fn forget_output(&self) {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.gone += board.chunks.len() as u64;
        board.chunks.clear();
        board.bytes = 0;
    }

    /// Returns how it ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).end.clone()
    }

    /// Returns what is kept of its output from a place on, and the place after it.
    #[must_use]
    pub fn output_from(&self, cursor: u64) -> (Vec<Chunk>, u64) {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = usize::try_from(cursor.saturating_sub(board.gone)).unwrap_or(usize::MAX);
        let chunks: Vec<Chunk> = board.chunks.iter().skip(skip).cloned().collect();
        (chunks, board.gone + board.chunks.len() as u64)
    }

    /// Returns the place after everything that was said so far.
    #[must_use]
    pub fn now(&self) -> u64 {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.gone + board.chunks.len() as u64
    }

    /// Waits for what comes after `cursor`, and moves it.
    pub async fn next(&self, cursor: &mut u64) -> Next {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Some(next) = self.at(cursor) {
                return next;
            }
            if changed.changed().await.is_err() {
                // The sender is our own; it cannot be gone.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Returns the text of what is kept of its output, of one stream or of all as they came.
    #[must_use]
    pub fn text(&self, stream: Option<ChunkStream>) -> String {
        let (chunks, _) = self.output_from(0);
        let wanted = |chunk: &&Chunk| stream.is_none_or(|stream| chunk.stream == stream);
        let bytes: Vec<u8> =
            chunks.iter().filter(wanted).flat_map(|chunk| chunk.bytes.iter().copied()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for the end.
    pub async fn wait(&self) -> End {
        let mut cursor = self.now();
        loop {
            match self.next(&mut cursor).await {
                Next::Chunk(_) => {}
                Next::Ended(end) => return end,
            }
        }
    }

    fn at(&self, cursor: &mut u64) -> Option<Next> {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        *cursor = (*cursor).max(board.gone);
        let place = usize::try_from(*cursor - board.gone).unwrap_or(usize::MAX);
        if let Some(chunk) = board.chunks.get(place) {
            *cursor += 1;
            return Some(Next::Chunk(chunk.clone()));
        }
        board.end.clone().map(Next::Ended)
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("facts", &self.facts).finish_non_exhaustive()
    }
}
