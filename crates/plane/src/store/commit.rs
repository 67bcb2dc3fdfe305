//! Group commit: writers of one process share transactions and syncs.
//!
//! ```text
//! queue a job ── nobody leads ─► lead: run whatever waits, commit, tell everyone, pass the lead on
//!        └────── somebody leads ─► wait ─► done, or lead the next group
//! ```
//!
//! Whoever is told goes on at once; the next leader is somebody who waits, so that nobody works
//! for others longer than for one commit.
//!
//! Runs that this process submitted for itself ride in the next transaction, whoever makes it;
//! whoever reads makes one first, so that nobody sees a store without them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, Thread};

use rusqlite::Connection;
use warrant_protocol::RunId;

use super::entering::insert_run;
use super::{Durability, Entry, EventRow, NewRun, Owner, Store, StoreError, lock};

/// The connection that writes, and how it syncs now.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) syncs: Option<Durability>,
}

/// Jobs that wait for the next commit.
#[derive(Default)]
pub(super) struct Line {
    riders: Vec<NewRun>,
    jobs: Vec<Job>,
    is_led: bool,
}

type Answer = Box<dyn FnOnce() + Send>;
type Work = Box<dyn FnOnce(&Connection) -> Option<Answer> + Send>;

struct Job {
    durability: Durability,
    /// Does the work and returns what tells the caller once the commit is done.
    /// `None` means the work failed and was told already; its savepoint is rolled back.
    work: Work,
    seat: Seat,
}

/// Where a writer waits. A seat that is dropped lets its writer go, whatever became of the job.
struct Seat(Arc<Place>);

struct Place {
    thread: Thread,
    turn: AtomicU8,
}

const WAITS: u8 = 0;
const LEADS: u8 = 1;
const DONE: u8 = 2;

impl Seat {
    fn call(&self, turn: u8) {
        self.0.turn.store(turn, Ordering::Release);
        self.0.thread.unpark();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.call(DONE);
    }
}

impl Place {
    /// Waits until the job is done or this thread is to lead.
    fn wait(&self) -> u8 {
        loop {
            match self.turn.load(Ordering::Acquire) {
                WAITS => thread::park(),
                turn => return turn,
            }
        }
    }
}

/// Passes the lead on when it goes, also when work panicked.
struct Lead<'a>(&'a Mutex<Line>);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut line = lock(self.0);
        match line.jobs.first() {
            Some(next) => next.seat.call(LEADS),
            None => line.is_led = false,
        }
    }
}

impl Store {
    /// Runs `work` in a transaction, together with whatever else waits.
    pub(super) fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = mpsc::sync_channel(1);
        let work: Work = Box::new(move |connection| match work(connection) {
            Ok(value) => Some(Box::new(move || {
                // The caller waits for exactly this answer.
                let _ = answer.send(Ok(value));
            })),
            Err(error) => {
                let _ = answer.send(Err(error));
                None
            }
        });
        let place = Arc::new(Place { thread: thread::current(), turn: AtomicU8::new(WAITS) });
        let is_first = {
            let mut line = lock(&self.line);
            line.jobs.push(Job { durability, work, seat: Seat(Arc::clone(&place)) });
            !std::mem::replace(&mut line.is_led, true)
        };
        let committed = match is_first || place.wait() == LEADS {
            true => self.lead(),
            false => Ok(()),
        };
        // Whoever is done was answered, or its work was dropped.
        answered.recv().unwrap_or_else(|_| Err(committed.err().unwrap_or(StoreError::Commit)))
    }

    /// Has a run kept in the next transaction, before everything else in it. If that fails nothing
    /// of it is kept, and whatever builds on it fails.
    pub(super) fn ride(&self, run: NewRun) {
        lock(&self.line).riders.push(run);
    }

    /// Leases a run that rides; gives the lease back when no queued one of this name does.
    pub(super) fn lease_rider(
        &self,
        run: &RunId,
        lease: (Owner, Vec<EventRow>),
    ) -> Result<(), (Owner, Vec<EventRow>)> {
        let mut line = lock(&self.line);
        let rider = line.riders.iter_mut().find(|rider| rider.id == *run);
        let Some(entry) = rider.map(|rider| &mut rider.entry) else { return Err(lease) };
        let Entry::Queued { contract, events } = entry else { return Err(lease) };
        let (contract, mut events) = (std::mem::take(contract), std::mem::take(events));
        let (owner, claimed) = lease;
        events.extend(claimed);
        *entry = Entry::Leased { contract, events, owner };
        Ok(())
    }

    /// Makes sure that nothing rides any more.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        if lock(&self.line).riders.is_empty() {
            return Ok(());
        }
        self.write(Durability::WithNext, |_| Ok(()))
    }

    /// Commits whatever waits.
    fn lead(&self) -> Result<(), StoreError> {
        let _lead = Lead(&self.line);
        // On a busy machine others that are about to write get here first; on an idle one this is
        // nothing.
        thread::yield_now();
        let mut writer = lock(&self.writer);
        let checkpointer = self.checkpointer.get();
        if let Some(checkpointer) = checkpointer {
            checkpointer.finish(&writer.connection);
        }
        let (riders, jobs) = {
            let mut line = lock(&self.line);
            (std::mem::take(&mut line.riders), std::mem::take(&mut line.jobs))
        };
        let count = jobs.len() as u64;
        let committed = commit_together(&mut writer, riders, jobs);
        if let Some(checkpointer) = checkpointer {
            checkpointer.count(count);
        }
        committed
    }
}

fn commit_together(
    writer: &mut Writer,
    riders: Vec<NewRun>,
    jobs: Vec<Job>,
) -> Result<(), StoreError> {
    let durability = jobs.iter().map(|job| job.durability).max().unwrap_or(Durability::Now);
    let connection = &writer.connection;
    if !connection.is_autocommit() {
        // Work that panicked, or a commit that could be neither made nor taken back: nobody was
        // told that it was kept, and it must not stand in the way of everything after it.
        connection.execute_batch("ROLLBACK")?;
    }
    if writer.syncs != Some(durability) {
        writer.syncs = None;
        let synchronous = match durability {
            Durability::WithNext => "NORMAL",
            Durability::Now => "FULL",
        };
        connection.pragma_update(None, "synchronous", synchronous)?;
        writer.syncs = Some(durability);
    }
    let say = |words| connection.prepare_cached(words)?.execute([]).map(drop);
    say("BEGIN IMMEDIATE")?;
    let mut tell: Vec<(Answer, Seat)> = Vec::with_capacity(jobs.len());
    // Every page that changes under a savepoint is copied first; as long as nothing is kept for
    // anybody, the transaction itself can be taken back.
    let mut is_empty = true;
    let mut attempt = |work: &mut dyn FnMut() -> bool| {
        let is_first = is_empty;
        if !is_first {
            say("SAVEPOINT job")?;
        }
        match (work(), is_first) {
            (true, true) => {
                is_empty = false;
                Ok(())
            }
            (false, true) => {
                say("ROLLBACK")?;
                say("BEGIN IMMEDIATE")
            }
            (true, false) => say("RELEASE job"),
            (false, false) => {
                say("ROLLBACK TO job")?;
                say("RELEASE job")
            }
        }
    };
    let ridden =
        riders.iter().try_for_each(|run| attempt(&mut || insert_run(connection, run).is_ok()));
    let done = ridden.and_then(|()| {
        jobs.into_iter().try_for_each(|Job { work, seat, .. }| {
            let mut job = Some((work, seat));
            attempt(&mut || {
                let Some((work, seat)) = job.take() else { return false };
                work(connection).map(|answer| tell.push((answer, seat))).is_some()
            })
        })
    });
    let committed = done.and_then(|()| say("COMMIT"));
    if let Err(error) = committed {
        // Whether or not the rollback succeeds, nobody is told that anything was kept.
        let _ = connection.execute_batch("ROLLBACK");
        return Err(error.into());
    }
    for (answer, seat) in tell {
        answer();
        drop(seat);
    }
    Ok(())
}
