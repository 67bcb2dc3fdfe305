//! One directory of a living sandbox that a client watches, as that client sees it: what happened
//! in it since it asked last.
//!
//! Whoever looks pushes; one reader takes. What waits to be taken is bounded: a reader who comes
//! too late is told that something is gone, never given a part for the whole.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use warrant_protocol::RunId;

use crate::doors::Entry;

/// More sightings than this do not wait to be taken.
const MOST_WAITING: usize = 8192;
/// More bytes of names than this do not wait to be taken.
const MOST_WAITING_BYTES: usize = 2 * 1024 * 1024;

/// What happened to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Created,
    /// Its content changed.
    Written,
    /// It is gone.
    Removed,
    /// It has another name now.
    Renamed,
    /// Its permissions, owner or times changed.
    Marked,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The name below the watched directory; `.` for the directory itself.
    pub name: String,
    /// What happened to it.
    pub change: Change,
    /// What it was right after that, if that was wished for and could be seen.
    pub entry: Option<Entry>,
}

/// Why nothing more is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Whoever asked, or the end of the sandbox.
    Ended,
    /// Something happened that cannot be told any more; for people.
    Missed(String),
}

/// Whoever looks at a directory.
pub trait Eye: Send + Sync {
    /// Looks now: what happened before this call is pushed when it returns.
    fn look(&self, lookout: &Lookout);

    /// Looks no longer.
    fn close(&self);
}

/// One watched directory.
pub struct Lookout {
    id: String,
    run: RunId,
    eye: Box<dyn Eye>,
    board: Mutex<Board>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Board {
    waiting: VecDeque<Sighting>,
    bytes: usize,
    over: Option<Over>,
}

impl Lookout {
    /// Returns one that has seen nothing yet.
    #[must_use]
    pub fn new(id: String, run: RunId, eye: Box<dyn Eye>) -> Self {
        let (changed, _) = watch::channel(0);
        Self { id, run, eye, board: Mutex::default(), changed }
    }

    /// Returns what tells it from the others of its sandbox.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the run with the receipt.
    #[must_use]
    pub const fn run(&self) -> &RunId {
        &self.run
    }

    /// Looks now.
    pub fn look(&self) {
        self.eye.look(self);
    }

    /// Adds what was seen. Too much of it ends the watch.
    pub fn push(&self, sighting: Sighting) {
        let mut board = self.board();
        if board.over.is_some() {
            return;
        }
        board.bytes += sighting.name.len();
        board.waiting.push_back(sighting);
        if board.waiting.len() > MOST_WAITING || board.bytes > MOST_WAITING_BYTES {
            drop(board);
            return self.miss("more happened than was fetched in time");
        }
        drop(board);
        self.tell();
    }

    /// Ends the watch because not everything that happened can be told.
    pub fn miss(&self, message: &str) {
        self.stop(Over::Missed(message.to_owned()));
    }

    /// Ends the watch.
    pub fn end(&self) {
        self.stop(Over::Ended);
    }

    /// Returns whether it ended because somebody wished so.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.board().over == Some(Over::Ended)
    }

    /// Returns whether nothing more is seen.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.board().over.is_some()
    }

    /// Takes everything that happened before this call.
    ///
    /// # Errors
    /// [`Over`] when there is nothing and will be nothing.
    pub fn take(&self) -> Result<Vec<Sighting>, Over> {
        self.look();
        let mut board = self.board();
        board.bytes = 0;
        let taken: Vec<Sighting> = board.waiting.drain(..).collect();
        match &board.over {
            Some(over) if taken.is_empty() => Err(over.clone()),
            _ => Ok(taken),
        }
    }

    /// Waits for what happens next and takes it.
    ///
    /// # Errors
    /// [`Over`] when there is nothing more.
    pub async fn next(&self) -> Result<Sighting, Over> {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Some(next) = self.pop() {
                return next;
            }
            if changed.changed().await.is_err() {
                // The sender is our own; it cannot be gone.
                tokio::task::yield_now().await;
            }
        }
    }

    fn pop(&self) -> Option<Result<Sighting, Over>> {
        let mut board = self.board();
        if let Some(sighting) = board.waiting.pop_front() {
            board.bytes = board.bytes.saturating_sub(sighting.name.len());
            return Some(Ok(sighting));
        }
        board.over.clone().map(Err)
    }

    fn stop(&self, over: Over) {
        let mut board = self.board();
        if board.over.is_none() || over == Over::Ended {
            // A part must not be taken for the whole.
            board.waiting.clear();
            board.bytes = 0;
            board.over = Some(over);
        }
        drop(board);
        self.eye.close();
        self.tell();
    }

    fn tell(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.eye.close();
    }
}

impl std::fmt::Debug for Lookout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookout").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoEye;

    impl Eye for NoEye {
        fn look(&self, _: &Lookout) {}
        fn close(&self) {}
    }

    fn lookout() -> Lookout {
        let run = "run_00000000-0000-4000-8000-000000000001".parse().unwrap();
        Lookout::new("w1".to_owned(), run, Box::new(NoEye))
    }

    fn written(name: &str) -> Sighting {
        Sighting { name: name.to_owned(), change: Change::Written, entry: None }
    }

    #[test]
    fn what_happened_is_taken_once_and_in_order() {
        let lookout = lookout();
        lookout.push(written("a"));
        lookout.push(written("b"));
        assert_eq!(lookout.take(), Ok(vec![written("a"), written("b")]));
        assert_eq!(lookout.take(), Ok(Vec::new()));
        lookout.end();
        lookout.push(written("c"));
        assert_eq!(lookout.take(), Err(Over::Ended));
    }

    #[test]
    fn a_flood_that_nobody_fetches_is_told_and_not_kept() {
        let lookout = lookout();
        for _ in 0..=MOST_WAITING {
            lookout.push(written("a"));
        }
        assert!(matches!(lookout.take(), Err(Over::Missed(_))));
        let lookout = self::lookout();
        lookout.push(written(&"a".repeat(MOST_WAITING_BYTES + 1)));
        assert!(matches!(lookout.take(), Err(Over::Missed(_))) && !lookout.is_ended());
    }
}
