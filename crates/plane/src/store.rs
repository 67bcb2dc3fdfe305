//! The store: domain operations, each one transaction, over an embedded SQLite database.
//!
//! Owns the rows; it never signs, judges or interprets what it keeps. Whether a state may change
//! is decided by the `WHERE` of each operation, which is written from the one table of
//! [`warrant_protocol::state`] (`states`): zero rows means somebody else was there first.
//!
//! Writers of one process share commits: one of them runs everything that waits, in one
//! transaction with a savepoint each, and syncs once (`commit`). Operations that need not
//! survive a power cut by themselves say so ([`Durability::WithNext`]) and ride on the sync of
//! the next one that does; a killed process loses neither. A run that its own process submits and
//! leases is not even written before it starts ([`Store::submit_later`]): it rides in the
//! transaction of its start.

mod approvals;
mod blob_readers;
mod blobs;
mod checkpoint;
mod commit;
mod copying;
mod entering;
mod false_claims;
mod fleet;
mod integrity;
mod journal;
mod lifecycle;
mod pages;
mod pieces;
mod queue;
mod read;
mod reading;
mod recent;
mod records;
mod retention;
mod rows;
mod schema;
mod snapshots;
mod states;
mod steps;
mod turns;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use thiserror::Error;

use crate::files;
use checkpoint::Checkpointer;
use commit::{Job, Riders, Writer};
use journal::Journal;
use turns::Turns;

pub use blobs::{BlobReader, BlobWriter, CheckedFile, DamagedBlob, INLINE_BYTES, NewBlob};
pub use copying::DatabaseCopy;
pub(crate) use copying::keep_log;
pub use false_claims::{FalseClaimCount, FalseClaimRow};
pub use fleet::{EnrollAgain, EnrollToken, EnrollTokenRow, Enrolling, PrincipalRow, RunnerRow};
pub use integrity::{BlobFacts, RunFacts};
pub use pages::{Listing, ListingFilter, SummaryRow};
pub use pieces::ExportPosition;
pub use queue::{Abilities, Candidate};
pub use read::{LiveRun, Page, RunFilter, RunRow};
pub use records::{NewRecord, RecordRow, SessionRow};
pub use retention::{BLOB_GRACE_MS, Swept};
pub use rows::{
    Appended, ApprovalRow, ApprovalStep, ApprovedContract, Completion, Entry, EventRow,
    KeptApproval, NewRun, Owner, Sealing, Submitted,
};
pub use snapshots::PolicyRow;

/// How long whoever wants to write waits for other processes. Two hundred that start at once on a
/// machine with a slow disk take half a minute for their commits, and the lock knows no order.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pages of the log before they are moved into the database; a fresh process reads the log once.
const LOG_PAGES: u32 = 100;

/// The same for a process that stays, should the thread that moves them not come to it.
const BUSY_LOG_PAGES: u32 = 20_000;

/// How much of the database such a process may hold, in KiB, as SQLite writes it: the inner pages
/// of the indexes of a few hundred thousand runs.
const BUSY_CACHE: i64 = -16_000;

/// The embedded store of one home.
pub struct Store {
    core: Arc<Core>,
    blobs: PathBuf,
}

/// The database and who waits for it: what the store's own threads share with it.
struct Core {
    path: PathBuf,
    /// How SQLite is asked for it when nothing may be written.
    read_only: Option<String>,
    writer: Mutex<Writer>,
    line: Turns<Job>,
    riders: Mutex<Riders>,
    checkpointer: OnceLock<Checkpointer>,
    journal: OnceLock<Journal>,
    readers: Mutex<Vec<Connection>>,
}

/// Whether a commit must survive a power cut by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It becomes durable together with the next durable one; a killed process loses nothing.
    WithNext,
    /// It is on the disk when the operation returns.
    Now,
}

/// Why an operation of the store failed. Nothing of it was kept.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database refused.
    #[error("the store failed")]
    Sql(#[source] rusqlite::Error),
    /// There is no room for what was to be written.
    #[error("the disk that holds the store is full")]
    Full(#[source] rusqlite::Error),
    /// The file system refused.
    #[error("the store's files failed")]
    File(#[from] io::Error),
    /// It cannot be written, and not be read without writing.
    #[error(
        "cannot read {path} where it lies: copy the whole home to where you can write, and read it \
         there with --home"
    )]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the database said, if it was asked.
        #[source]
        cause: Option<rusqlite::Error>,
    },
    /// The database was written by an older version, and cannot be changed where it lies.
    #[error(
        "the store has schema {found}, this program {known}: copy the home to where you can write"
    )]
    Older {
        /// What the database says.
        found: u32,
        /// What we know.
        known: u32,
    },
    /// The database was written by a newer version.
    #[error("the store has schema {found}, this program knows {known}")]
    Newer {
        /// What the database says.
        found: u32,
        /// What we know.
        known: u32,
    },
    /// The database is damaged.
    #[error(
        "the store is damaged ({detail}): see what is wrong with `warrant fsck`, and put a backup \
         into an empty home with `warrant --home DIR restore FILE`"
    )]
    Corrupt {
        /// What is wrong.
        detail: String,
        /// What the database said, if it was the one to notice.
        #[source]
        cause: Option<Box<rusqlite::Error>>,
    },
    /// There is no such run.
    #[error("there is no run {0}")]
    UnknownRun(String),
    /// The run is not in a state that allows it, or another epoch holds it.
    #[error("run {run} is {state}, which does not allow this")]
    Conflict {
        /// Which run.
        run: String,
        /// Its state.
        state: String,
    },
    /// Somebody else approved while it was decided what an approval leads to.
    #[error("the approvals of run {0} changed meanwhile")]
    ApprovalsChanged(String),
    /// Another event stands at that place of the chain.
    #[error("another event stands at seq {seq} of {run}")]
    Fork {
        /// Which run.
        run: String,
        /// Where.
        seq: u64,
    },
    /// A row holds something it cannot hold.
    #[error("the store holds a malformed {0}")]
    Malformed(&'static str),
    /// The commit that carried this operation failed for another one's sake.
    #[error("the commit failed")]
    Commit,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full(error),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { detail: error.to_string(), cause: Some(Box::new(error)) }
            }
            _ => Self::Sql(error),
        }
    }
}

impl StoreError {
    fn corrupt(detail: impl Into<String>) -> Self {
        Self::Corrupt { detail: detail.into(), cause: None }
    }

    /// Returns whether it failed because nothing can be written where it lies.
    #[must_use]
    pub fn is_of_writing(&self) -> bool {
        use rusqlite::ffi;
        match self {
            Self::Full(_) => true,
            // A quota, and a limit of the process, are no full disk to the database.
            Self::Sql(error) => error.sqlite_error().is_some_and(|error| {
                [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_SHMSIZE]
                    .contains(&error.extended_code)
            }),
            Self::File(error) => files::is_of_writing(error),
            _ => false,
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.core.path.display())
    }
}

impl Store {
    /// Opens the store in `dir`, and makes it if there is none.
    ///
    /// # Errors
    /// [`StoreError`] when the directory cannot be used or holds a newer store.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("plane.db");
        // SQLite would create it readable by all; its log and index take over this mode.
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let is_new = match created {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error.into()),
        };
        let has_log = dir.join("plane.db-wal").exists();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let writer = Connection::open_with_flags(&path, flags)?;
        writer.busy_timeout(PATIENCE)?;
        // A checkpoint at every exit of a short process would cost more than its whole run.
        writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // Without this a statement is compiled anew whenever a value is bound that could change
        // the plan; ours have one good plan.
        writer.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        schema::prepare(&writer, is_new, &dir.join("plane.lock"))?;
        if !has_log {
            // SQLite is built not to do this at the first commit of every process: the log stays
            // from one process to the next, so its name must become durable only once.
            File::open(dir)?.sync_all()?;
        }
        writer.pragma_update(None, "synchronous", "FULL")?;
        writer.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
        writer.set_prepared_statement_cache_capacity(64);
        journal::take_over(dir, &writer)?;
        let core = Core {
            path,
            read_only: None,
            writer: Mutex::new(Writer { connection: writer, syncs: None }),
            line: Turns::default(),
            riders: Mutex::default(),
            checkpointer: OnceLock::new(),
            journal: OnceLock::new(),
            readers: Mutex::new(Vec::new()),
        };
        Ok(Self { core: Arc::new(core), blobs: dir.join("blobs") })
    }

    /// Waits until everything that was asked for before is written.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        self.write(Durability::Now, |_| Ok(()))
    }

    /// Lets go of it at the end of a process, without taking its memory apart: everything that was
    /// answered is in the log already.
    pub(crate) fn leave(self) {
        let _ = self.core.settle();
        std::mem::forget(self);
    }

    /// Has the log moved into the database beside the writers: right for a process that stays and
    /// writes much, whose writers would otherwise wait for it every few runs.
    ///
    /// # Errors
    /// [`StoreError`] when the database refuses.
    pub fn expect_many_writes(&self) -> Result<(), StoreError> {
        let core = &*self.core;
        if core.checkpointer.get().is_some() {
            return Ok(());
        }
        let checkpointer = Checkpointer::start(&core.path)?;
        // Another thread that was faster has started one as good.
        let _ = core.checkpointer.set(checkpointer);
        let writer = lock(&core.writer);
        writer.connection.pragma_update(None, "cache_size", BUSY_CACHE)?;
        Ok(writer.connection.pragma_update(None, "wal_autocheckpoint", BUSY_LOG_PAGES)?)
    }

    /// Has records made durable in a journal of this store's own and moved into the database in
    /// groups: right for the one process that keeps the sessions of foreign clients.
    ///
    /// INVARIANT: from then on no other store of this home keeps records.
    ///
    /// # Errors
    /// [`StoreError`] when there is no thread for it.
    pub fn expect_many_records(&self) -> Result<(), StoreError> {
        if self.core.journal.get().is_none() {
            // Another thread that was faster has made one as good.
            let _ = self.core.journal.set(Journal::start(&self.core)?);
        }
        Ok(())
    }

    fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.core.write(durability, work)
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.core.read(work)
    }

    fn read_aside<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.core.read_aside(work)
    }
}

impl Core {
    /// Runs a short read, on the writer's connection if it is free, so that a short process
    /// opens one connection only.
    fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.settle()?;
        match self.writer.try_lock() {
            Ok(writer) => work(&writer.connection),
            Err(_) => self.read_aside(work),
        }
    }

    /// Runs a read that may take long beside the writer.
    fn read_aside<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.settle()?;
        let idle = lock(&self.readers).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open_reader()?,
        };
        let result = work(&connection);
        lock(&self.readers).push(connection);
        result
    }

    fn open_reader(&self) -> Result<Connection, StoreError> {
        if let Some(uri) = &self.read_only {
            return reading::connect(uri);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Ok(connection)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Nobody was told that a run that rides was kept; it is kept all the same if it can be.
        // Records that cannot be are in the journal, for the next who opens the store.
        if self.core.settle().is_ok() {
            self.core.close_journal();
        }
    }
}

/// A thread that panicked while holding a lock left nothing half done: SQLite rolls back.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
