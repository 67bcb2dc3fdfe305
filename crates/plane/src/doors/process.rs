//! One command of a living sandbox, as its watchers see it: what it said so far and how it ended.
//!
//! Whoever runs it pushes; any number of watchers read from any place, at their own pace. What is
//! kept is bounded; a watcher that comes too late is told that something is gone.

use crate::request_context::keep_cause;
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use warrant_protocol::{Outcome, RunId, Timestamp};

/// Bytes of output that are kept of one command; the oldest go first. A little more than what
/// policy lets a command say where it names no other limit, so that nothing is lost there.
const MOST_KEPT_BYTES: usize = 17 * 1024 * 1024;
/// How long a write waits for a command that does not read.
const WRITE_WAIT: Duration = Duration::from_secs(10);
/// How often a write tries again meanwhile.
const WRITE_AGAIN: Duration = Duration::from_millis(10);

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
    /// Writes as much to its input as it takes now, and never waits: [`Process::write`] does.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when it takes nothing now; the system's error when nobody
    /// reads.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends its input.
    fn close_input(&self);

    /// Changes the size of its terminal.
    ///
    /// # Errors
    /// The system's error when it has none.
    fn resize(&self, columns: u16, rows: u16) -> io::Result<()>;

    /// Returns the columns and rows of its terminal, if it has one.
    fn size(&self) -> Option<(u16, u16)>;

    /// Ends its whole tree.
    fn kill(&self);

    /// Returns whether it was told to end.
    fn is_ending(&self) -> bool;
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
            Outcome::Performed { succeeded } => Some(i64::from(!succeeded)),
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
    /// Output that was said is not kept any more; what follows comes after it.
    Missed,
    /// The end; nothing follows.
    Ended(End),
}

/// One command.
pub struct Process {
    facts: ProcessFacts,
    grip: Box<dyn Grip>,
    board: Mutex<Board>,
    changed: watch::Sender<u64>,
    attending: AtomicUsize,
    /// Held by the one who writes, so that what two write does not mix.
    writing: tokio::sync::Mutex<()>,
}

/// A command that someone attends to: its output is not forgotten meanwhile.
#[derive(Debug)]
pub struct Attended(Arc<Process>);

impl Deref for Attended {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.attending.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Board {
    chunks: VecDeque<Chunk>,
    /// How many chunks are gone.
    gone: u64,
    bytes: usize,
    lost: Lost,
    end: Option<End>,
}

/// Bytes of output that are gone.
#[derive(Debug, Default, Clone, Copy)]
struct Lost {
    stdout: usize,
    stderr: usize,
    terminal: usize,
}

impl Lost {
    const fn add(&mut self, chunk: &Chunk) {
        let bytes = chunk.bytes.len();
        match chunk.stream {
            ChunkStream::Stdout => self.stdout += bytes,
            ChunkStream::Stderr => self.stderr += bytes,
            ChunkStream::Terminal => self.terminal += bytes,
        }
    }

    const fn of(self, stream: Option<ChunkStream>) -> usize {
        match stream {
            Some(ChunkStream::Stdout) => self.stdout,
            Some(ChunkStream::Stderr) => self.stderr,
            Some(ChunkStream::Terminal) => self.terminal,
            None => self.stdout + self.stderr + self.terminal,
        }
    }
}

impl Process {
    /// Returns a command that has said nothing yet.
    #[must_use]
    pub fn new(facts: ProcessFacts, grip: Box<dyn Grip>) -> Self {
        let (changed, _) = watch::channel(0);
        let (board, attending) = (Mutex::default(), AtomicUsize::new(0));
        Self { facts, grip, board, changed, attending, writing: tokio::sync::Mutex::default() }
    }

    /// Returns the command to someone who reads what it says.
    #[must_use]
    pub fn attend(self: &Arc<Self>) -> Attended {
        self.attending.fetch_add(1, Ordering::AcqRel);
        Attended(Arc::clone(self))
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

    /// Writes to its input, and waits a while where it does not read.
    ///
    /// SECURITY: no thread is kept meanwhile. All guests share the threads that may wait, and one
    /// who writes to a command that never reads would take them from the others.
    ///
    /// # Errors
    /// The system's error when nobody reads, or did not for too long.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let turn = tokio::time::timeout(WRITE_WAIT, self.writing.lock()).await;
        let _turn = turn.map_err(|error| keep_cause(&error, io::ErrorKind::TimedOut))?;
        let mut rest = bytes;
        let mut waited = Duration::ZERO;
        while !rest.is_empty() {
            match self.grip.write(rest) {
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    waited = Duration::ZERO;
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if self.end().is_some() => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(_) if waited >= WRITE_WAIT => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {
                    tokio::time::sleep(WRITE_AGAIN).await;
                    waited += WRITE_AGAIN;
                }
            }
        }
        Ok(())
    }

    /// Takes output.
    pub fn push(&self, stream: ChunkStream, bytes: &[u8]) {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.bytes += bytes.len();
        board.chunks.push_back(Chunk { stream, bytes: Bytes::copy_from_slice(bytes) });
        while board.bytes > MOST_KEPT_BYTES && board.chunks.len() > 1 {
            let Some(oldest) = board.chunks.pop_front() else { break };
            board.bytes -= oldest.bytes.len();
            board.lost.add(&oldest);
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

    /// Forgets the output of a command that ended and to which nobody attends.
    pub fn forget_output(&self) {
        if self.attending.load(Ordering::Acquire) == 0 {
            self.abandon_output();
        }
    }

    /// Forgets the output of a command also where somebody attends to it, who is told so.
    pub fn abandon_output(&self) {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(chunk) = board.chunks.pop_front() {
            board.lost.add(&chunk);
            board.gone += 1;
        }
        board.chunks.shrink_to_fit();
        board.bytes = 0;
        drop(board);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Returns how much of its output is kept.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).bytes
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

    /// Returns the text of what is kept of its output, of one stream or of all as they came. It
    /// begins with a line that says so when something before it is gone.
    #[must_use]
    pub fn text(&self, stream: Option<ChunkStream>) -> String {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = board.lost.of(stream);
        let chunks = board.chunks.clone();
        drop(board);
        let wanted = |chunk: &&Chunk| stream.is_none_or(|stream| chunk.stream == stream);
        let bytes: Vec<u8> =
            chunks.iter().filter(wanted).flat_map(|chunk| chunk.bytes.iter().copied()).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match lost {
            0 => text,
            _ => format!("{}{text}", gone(lost)),
        }
    }

    /// Waits for the end.
    pub async fn wait(&self) -> End {
        let mut cursor = self.now();
        loop {
            match self.next(&mut cursor).await {
                Next::Chunk(_) | Next::Missed => {}
                Next::Ended(end) => return end,
            }
        }
    }

    fn at(&self, cursor: &mut u64) -> Option<Next> {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        if *cursor < board.gone {
            *cursor = board.gone;
            return Some(Next::Missed);
        }
        let place = usize::try_from(*cursor - board.gone).unwrap_or(usize::MAX);
        if let Some(chunk) = board.chunks.get(place) {
            *cursor += 1;
            return Some(Next::Chunk(chunk.clone()));
        }
        board.end.clone().map(Next::Ended)
    }
}

/// Returns the line that stands for output that is gone.
fn gone(bytes: usize) -> String {
    format!("[{bytes} bytes of output before this are not kept]\n")
}

/// What a watcher is told who missed output.
pub(crate) const MISSED: &str = "[output before this was not read in time and is not kept]";

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("facts", &self.facts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoGrip;

    impl Grip for NoGrip {
        fn write(&self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn close_input(&self) {}
        fn resize(&self, _: u16, _: u16) -> io::Result<()> {
            Ok(())
        }
        fn size(&self) -> Option<(u16, u16)> {
            None
        }
        fn kill(&self) {}
        fn is_ending(&self) -> bool {
            false
        }
    }

    fn process() -> Arc<Process> {
        let facts = ProcessFacts {
            pid: 1,
            run: "run_00000000-0000-4000-8000-000000000001".parse().unwrap(),
            argv: Vec::new(),
            cwd: None,
            tag: None,
            has_terminal: false,
            started_at: Timestamp::from_unix_ms(0).unwrap(),
        };
        Arc::new(Process::new(facts, Box::new(NoGrip)))
    }

    #[test]
    fn who_missed_output_is_told() {
        let process = process();
        let mebibyte = vec![b'a'; 1024 * 1024];
        for _ in 0..20 {
            process.push(ChunkStream::Stdout, &mebibyte);
        }
        let mut cursor = 0;
        assert!(matches!(process.at(&mut cursor), Some(Next::Missed)));
        assert!(matches!(process.at(&mut cursor), Some(Next::Chunk(_))));
        let lost = 3 * 1024 * 1024;
        assert!(process.text(None).starts_with(&format!("[{lost} bytes of output before this")));
        assert_eq!(process.text(Some(ChunkStream::Stderr)), "");
    }

    #[test]
    fn output_to_which_someone_attends_is_not_forgotten() {
        let process = process();
        process.push(ChunkStream::Stdout, b"said");
        let attended = process.attend();
        process.forget_output();
        assert_eq!(attended.text(None), "said");
        drop(attended);
        process.forget_output();
        assert_eq!(process.text(None), "[4 bytes of output before this are not kept]\n");
    }
}
