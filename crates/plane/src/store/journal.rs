//! The journal of records: what was told is durable in a file that is only appended to, and moved
//! into the database in groups, beside those who wait for answers.
//!
//! ```text
//! record ─► lead: give each its place, append all, sync once, tell everyone ─► they ride
//!                                                                               │
//!              mover: nothing came lately ─► at once; else after a pause ◄──────┘ one commit
//! ```
//!
//! Nobody who reads through this store sees it without them: what rides is kept first. Another
//! store of the home sees them when they are moved, within [`PAUSE`] and a commit.
//! The first who opens a store whose keeper is gone moves what it left ([`take_over`]).
//! Where the journal cannot be used, records are kept by the database alone.

mod entry;
mod pages;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use warrant_protocol::Digest;

use super::commit::Rider;
use super::records::{NextRecord, RecordRow, end_of, insert_next, insert_records, row_of};
use super::turns::{Lead, Seat, Turns};
use super::{Core, Durability, Entry, StoreError, lock};

use pages::Pages;

pub(super) use entry::KeptRecord;

/// While records come, they are moved together, so far apart.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the mover waits after a failure of the database.
const RETRY: Duration = Duration::from_millis(200);

/// More than this do not wait to be moved: whoever comes then moves them first.
const MOST_RIDERS: usize = 512;

/// The ends of more sessions than this are not remembered.
const MOST_SESSIONS: usize = 4096;

/// So much memory is kept for what is appended.
const MOST_BYTES: usize = 512 * 1024;

/// The journal of one store.
pub(super) struct Journal {
    line: Turns<Wanted>,
    book: Mutex<Book>,
    /// The last entry that the database has.
    applied: AtomicU64,
    wake: SyncSender<()>,
}

/// A record that waits to be made, and who waits for it.
struct Wanted {
    next: NextRecord,
    answer: SyncSender<Result<RecordRow, StoreError>>,
}

/// What the leader works with.
struct Book {
    pages: State,
    /// The place and the digest of the last record, by session.
    ends: HashMap<String, (u64, Option<Digest>)>,
    /// The number of the last entry.
    number: u64,
    /// Where entries are written before they are appended; kept, because so much memory costs more
    /// to take and give back than to fill.
    bytes: Vec<u8>,
}

/// ```text
/// unopened ─► open ─► shut (a write failed, or it cannot be had)
/// ```
enum State {
    Unopened,
    Open(Pages),
    Shut,
}

impl Journal {
    /// Starts the thread that moves records; it ends when the store is gone.
    pub(super) fn start(core: &Arc<Core>) -> Result<Self, StoreError> {
        let (wake, woken) = sync_channel(1);
        let weak = Arc::downgrade(core);
        thread::Builder::new().name("mover".to_owned()).spawn(move || work(&weak, &woken))?;
        let book =
            Book { pages: State::Unopened, ends: HashMap::new(), number: 0, bytes: Vec::new() };
        Ok(Self {
            line: Turns::default(),
            book: Mutex::new(book),
            applied: AtomicU64::new(0),
            wake,
        })
    }
}

/// Moves what rides, again and again.
fn work(core: &Weak<Core>, woken: &Receiver<()>) {
    let mut moved: Option<Instant> = None;
    while woken.recv().is_ok() {
        if moved.is_some_and(|moved| moved.elapsed() < 3 * PAUSE) {
            thread::sleep(PAUSE);
        }
        loop {
            let Some(core) = core.upgrade() else { return };
            if core.settle().is_ok() {
                break;
            }
            drop(core);
            thread::sleep(RETRY);
        }
        moved = Some(Instant::now());
    }
}

impl Core {
    /// Keeps the next record of a session, on the disk when it returns.
    pub(super) fn record(&self, next: NextRecord) -> Result<RecordRow, StoreError> {
        let Some(journal) = self.journal.get() else { return self.record_plainly(next) };
        let (answer, answered) = sync_channel(1);
        if let Some(lead) = journal.line.join(Wanted { next, answer }) {
            self.lead_records(journal, &lead);
        }
        // Whoever is done was answered, or its job was dropped.
        answered.recv().unwrap_or(Err(StoreError::Commit))
    }

    /// Keeps a record by the database alone.
    fn record_plainly(&self, next: NextRecord) -> Result<RecordRow, StoreError> {
        self.write(Durability::Now, move |connection| insert_next(connection, next))
    }

    fn lead_records(&self, journal: &Journal, lead: &Lead<'_, Wanted>) {
        // On a busy machine others that are about to come get here first.
        thread::yield_now();
        let mut book = lock(&journal.book);
        let jobs = lead.take();
        if book.pages.is_unopened() {
            let dir = self.path.parent().unwrap_or_else(|| Path::new("/"));
            // Only slower where it cannot be had.
            book.pages = Pages::create(dir).map_or(State::Shut, State::Open);
        }
        let room = self.make_room();
        let is_open = matches!(book.pages, State::Open(_));
        let (entered, plain): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|(wanted, _)| is_open && wanted.fits());
        match room {
            Ok(()) if entered.is_empty() => {}
            Ok(()) => self.enter_all(journal, &mut book, entered),
            Err(error) => {
                if let Some((first, _)) = entered.first() {
                    let _ = first.answer.send(Err(error));
                }
            }
        }
        for (Wanted { next, answer }, seat) in plain {
            // The database gives it its place, after those that ride.
            book.ends.remove(&next.session);
            let _ = answer.send(self.record_plainly(next));
            drop(seat);
        }
    }

    /// Has what rides moved when it is too much.
    fn make_room(&self) -> Result<(), StoreError> {
        let riders = lock(&self.riders).waiting();
        if riders < MOST_RIDERS { Ok(()) } else { self.settle() }
    }

    /// Appends records to the journal, tells everyone, and has them moved.
    fn enter_all(&self, journal: &Journal, book: &mut Book, jobs: Vec<(Wanted, Seat)>) {
        let Book { pages: State::Open(pages), ends: known, number, bytes } = book else { return };
        pages.turn(journal.applied.load(Ordering::Acquire));
        // Whatever goes wrong from here on, the places are read anew.
        let mut ends = std::mem::take(known);
        let (mut kept, mut told) = (Vec::new(), Vec::new());
        bytes.clear();
        bytes.shrink_to(MOST_BYTES);
        for (Wanted { next, answer }, seat) in jobs {
            let place = *number + 1 + kept.len() as u64;
            match self.enter(&mut ends, next, place) {
                Ok(record) => {
                    record.append_to(bytes, pages.generation());
                    told.push((answer, row_of(&record.record, record.lamport), seat));
                    kept.push(record);
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        }
        let last = *number + kept.len() as u64;
        if let Err(error) = pages.append(bytes, last) {
            self.shut(book);
            if let Some((first, ..)) = told.first() {
                let _ = first.send(Err(error.into()));
            }
            return;
        }
        *number = last;
        if ends.len() <= MOST_SESSIONS {
            *known = ends;
        }
        self.ride(kept.into_iter().map(|record| Rider::Record(Box::new(record))));
        for (answer, row, seat) in told {
            // The caller waits for exactly this answer.
            let _ = answer.send(Ok(row));
            drop(seat);
        }
        // One that is awake already sees what came meanwhile.
        let _ = journal.wake.try_send(());
    }

    /// Gives a record its place.
    fn enter(
        &self,
        ends: &mut HashMap<String, (u64, Option<Digest>)>,
        next: NextRecord,
        number: u64,
    ) -> Result<KeptRecord, StoreError> {
        let NextRecord { session, owner, run, make } = next;
        let (lamport, previous) = match ends.get(&session) {
            Some(end) => *end,
            None => self.read(|connection| end_of(connection, &session))?,
        };
        let record = make(lamport + 1, previous);
        ends.insert(session.clone(), (lamport + 1, Some(record.hash)));
        Ok(KeptRecord { number, session, owner, lamport: lamport + 1, record, run })
    }

    /// Uses the journal no more, because a write to it failed.
    fn shut(&self, book: &mut Book) {
        if self.settle().is_ok()
            && let State::Open(pages) = std::mem::replace(&mut book.pages, State::Shut)
        {
            pages.remove();
        }
    }

    /// Takes note of what the database has now.
    pub(super) fn note_applied(&self, riders: &[Rider]) {
        let number = |rider: &Rider| match rider {
            Rider::Record(record) => Some(record.number),
            Rider::Run(_) => None,
        };
        let last = riders.iter().filter_map(number).next_back();
        if let (Some(journal), Some(last)) = (self.journal.get(), last) {
            journal.applied.store(last, Ordering::Release);
        }
    }

    /// Removes the journal of a store that goes, when everything in it was moved.
    pub(super) fn close_journal(&self) {
        let Some(journal) = self.journal.get() else { return };
        let pages = std::mem::replace(&mut lock(&journal.book).pages, State::Shut);
        if let State::Open(pages) = pages {
            pages.remove();
        }
    }
}

impl Wanted {
    /// Returns whether the journal can hold it: with a run that is whole, or of a run that is kept.
    fn fits(&self) -> bool {
        self.next.run.as_ref().is_none_or(|run| matches!(run.entry, Entry::Sealed(_)))
    }
}

impl State {
    const fn is_unopened(&self) -> bool {
        matches!(self, Self::Unopened)
    }
}

/// Moves what a keeper that is gone left behind into the database.
///
/// # Errors
/// [`StoreError`] when it cannot be read or kept: what somebody was told must not be missing.
pub(super) fn take_over(dir: &Path, connection: &Connection) -> Result<(), StoreError> {
    let Some(left) = Pages::left(dir)? else { return Ok(()) };
    let records = left.records()?;
    if !records.is_empty() {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let moved = insert_records(connection, &records.iter().collect::<Vec<_>>());
        let moved = moved.and_then(|()| Ok(connection.execute_batch("COMMIT")?));
        if moved.is_err() {
            // The journal stays.
            let _ = connection.execute_batch("ROLLBACK");
            return moved;
        }
    }
    left.remove();
    Ok(())
}
