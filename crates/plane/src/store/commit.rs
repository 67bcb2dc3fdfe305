//! Group commit: writers of one process share transactions and syncs, taking turns ([`Turns`]).
//!
//! What rides is kept in the next transaction, whoever makes it: runs that this process submitted
//! for itself, and records that are durable already, in the journal. Whoever reads makes one first,
//! so that nobody sees a store without them.

use std::sync::mpsc;
use std::thread;

use rusqlite::Connection;
use warrant_protocol::RunId;

use super::entering::insert_run;
use super::journal::KeptRecord;
use super::records::insert_records;
use super::turns::{Lead, Seat};
use super::{Core, Durability, Entry, EventRow, NewRun, Owner, StoreError, lock};

/// The connection that writes, and how it syncs now.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) syncs: Option<Durability>,
}

/// What is kept in the next transaction.
pub(super) enum Rider {
    /// A run: if it cannot be kept nothing of it is, and whatever builds on it fails.
    Run(Box<NewRun>),
    /// A record that somebody was told of: without it there is no transaction.
    Record(Box<KeptRecord>),
}

/// Everything that rides.
#[derive(Default)]
pub(super) struct Riders {
    waiting: Vec<Rider>,
    /// Whether a transaction carries some that is not committed yet.
    are_underway: bool,
}

impl Riders {
    /// Returns how many wait for a transaction.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

type Answer = Box<dyn FnOnce() + Send>;
type Work = Box<dyn FnOnce(&Connection) -> Option<Answer> + Send>;

/// Work that waits for the next commit.
pub(super) struct Job {
    durability: Durability,
    /// Does the work and returns what tells the caller once the commit is done.
    /// `None` means the work failed and was told already; its savepoint is rolled back.
    work: Work,
}

impl Core {
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
        let committed = match self.line.join(Job { durability, work }) {
            Some(lead) => self.lead(lead),
            None => Ok(()),
        };
        // Whoever is done was answered, or its work was dropped.
        answered.recv().unwrap_or_else(|_| Err(committed.err().unwrap_or(StoreError::Commit)))
    }

    /// Has something kept in the next transaction, before everything else in it.
    pub(super) fn ride(&self, riders: impl IntoIterator<Item = Rider>) {
        lock(&self.riders).waiting.extend(riders);
    }

    /// Leases a run that rides; gives the lease back when no queued one of this name does.
    pub(super) fn lease_rider(
        &self,
        run: &RunId,
        lease: (Owner, Vec<EventRow>),
    ) -> Result<(), Box<(Owner, Vec<EventRow>)>> {
        let mut riders = lock(&self.riders);
        let rider = riders.waiting.iter_mut().find_map(|rider| match rider {
            Rider::Run(new) if new.id == *run => Some(new),
            Rider::Run(_) | Rider::Record(_) => None,
        });
        let Some(entry) = rider.map(|rider| &mut rider.entry) else { return Err(Box::new(lease)) };
        let Entry::Queued { contract, events } = entry else { return Err(Box::new(lease)) };
        let (contract, mut events) = (std::mem::take(contract), std::mem::take(events));
        let (owner, claimed) = lease;
        events.extend(claimed);
        *entry = Entry::Leased { contract, events, owner };
        Ok(())
    }

    /// Makes sure that nothing rides any more.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        let riders = lock(&self.riders);
        if riders.waiting.is_empty() && !riders.are_underway {
            return Ok(());
        }
        drop(riders);
        // The commit of this comes after the one under way, and carries what that one could not.
        self.write(Durability::WithNext, |_| Ok(()))
    }

    /// Commits whatever waits.
    fn lead(&self, lead: Lead<'_, Job>) -> Result<(), StoreError> {
        // On a busy machine others that are about to write get here first; on an idle one this is
        // nothing.
        thread::yield_now();
        let mut writer = lock(&self.writer);
        let checkpointer = self.checkpointer.get();
        if let Some(checkpointer) = checkpointer {
            checkpointer.finish(&writer.connection);
        }
        // Jobs first: what a job builds on rode before it joined.
        let jobs = lead.take();
        let mut riding = Riding::take(self);
        // Nobody waits for the commit of what rides, so more of it may be copied at a time.
        let count = (jobs.len() + riding.riders.len().div_ceil(4)) as u64;
        let committed = commit_together(&mut writer, &riding.riders, jobs);
        if committed.is_ok() {
            self.note_applied(&std::mem::take(&mut riding.riders));
        }
        drop(riding);
        if let Some(checkpointer) = checkpointer {
            checkpointer.count(count);
        }
        drop(writer);
        drop(lead);
        committed
    }
}

/// What a transaction carries.
struct Riding<'a> {
    core: &'a Core,
    riders: Vec<Rider>,
}

impl<'a> Riding<'a> {
    fn take(core: &'a Core) -> Self {
        let mut all = lock(&core.riders);
        let riders = std::mem::take(&mut all.waiting);
        all.are_underway = !riders.is_empty();
        Self { core, riders }
    }
}

impl Drop for Riding<'_> {
    /// INVARIANT: a record is given up by nobody: when the transaction failed, or work in it
    /// panicked, it rides on.
    fn drop(&mut self) {
        let records = self.riders.drain(..).filter(|rider| matches!(rider, Rider::Record(_)));
        let mut all = lock(&self.core.riders);
        all.waiting.splice(0..0, records);
        all.are_underway = false;
    }
}

fn commit_together(
    writer: &mut Writer,
    riders: &[Rider],
    jobs: Vec<(Job, Seat)>,
) -> Result<(), StoreError> {
    let records = riders.iter().filter_map(|rider| match rider {
        Rider::Record(record) => Some(&**record),
        Rider::Run(_) => None,
    });
    let records: Vec<&KeptRecord> = records.collect();
    let wanted = jobs.iter().map(|(job, _)| job.durability).max();
    // What the journal holds may go from there once it is here.
    let durability = wanted.filter(|_| records.is_empty()).unwrap_or(Durability::Now);
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
    let mut is_empty = records.is_empty();
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
    if let Err(error) = insert_records(connection, &records) {
        let _ = connection.execute_batch("ROLLBACK");
        return Err(error);
    }
    let ridden = riders.iter().try_for_each(|rider| match rider {
        Rider::Run(run) => attempt(&mut || insert_run(connection, run).is_ok()),
        Rider::Record(_) => Ok(()),
    });
    let done = ridden.and_then(|()| {
        jobs.into_iter().try_for_each(|(Job { work, .. }, seat)| {
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
