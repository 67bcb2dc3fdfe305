//! Moving the log into the database beside the writer, for a process that stays.
//!
//! A thread with a connection of its own copies while others write, until next to nothing is left.
//! When the log has become long, the leader of the next commit copies that rest, so that the log
//! begins anew; everybody waits for the disk meanwhile, so that is seldom done.
//! Left to SQLite, every few hundred commits would wait for a copy of the whole log.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::StoreError;

/// After so many operations the log is looked at. Whoever commits while much is being copied waits
/// for the disk with it, so little is copied at a time.
const OPERATIONS: u64 = 16;

/// A log of so many pages is to begin anew. It is read once by a process that finds nobody else at
/// the database.
const LONG: i64 = 8192;

/// So few pages the leader copies itself.
const REST: i64 = 200;

/// More rounds than this mean that somebody reads for long; the next look tries again.
const ROUNDS: usize = 8;

/// Wakes the thread that copies.
pub(super) struct Checkpointer {
    wake: SyncSender<()>,
    operations: AtomicU64,
    is_nearly_done: Arc<AtomicBool>,
}

impl Checkpointer {
    /// Starts the thread; it ends when the checkpointer is gone.
    pub(super) fn start(database: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(database, flags)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        // The log stays from one process to the next.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let (wake, woken) = sync_channel(1);
        let is_nearly_done = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&is_nearly_done);
        std::thread::Builder::new()
            .name("checkpointer".to_owned())
            .spawn(move || work(&connection, &woken, &shared))?;
        Ok(Self { wake, operations: AtomicU64::new(0), is_nearly_done })
    }

    /// Counts what a commit carried.
    pub(super) fn count(&self, operations: u64) {
        let before = self.operations.fetch_add(operations, Ordering::Relaxed);
        if before / OPERATIONS != (before + operations) / OPERATIONS {
            // One that is awake already sees what came meanwhile.
            let _ = self.wake.try_send(());
        }
    }

    /// Copies the rest, if that is all that is left. Whoever calls holds the writer.
    pub(super) fn finish(&self, writer: &Connection) {
        if self.is_nearly_done.swap(false, Ordering::AcqRel) {
            // A log that stays is only longer.
            let _ = copy(writer);
        }
    }
}

fn work(connection: &Connection, woken: &Receiver<()>, is_nearly_done: &AtomicBool) {
    while woken.recv().is_ok() {
        for _ in 0..ROUNDS {
            let Ok(Copied { log, left }) = copy(connection) else { break };
            if left <= REST {
                is_nearly_done.store(log >= LONG, Ordering::Release);
                break;
            }
        }
    }
}

/// How many pages the log has, and how many of them are not in the database yet.
struct Copied {
    log: i64,
    left: i64,
}

/// Copies what can be copied without waiting for anybody.
fn copy(connection: &Connection) -> rusqlite::Result<Copied> {
    connection.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?.query_row([], |row| {
        let (log, copied): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(Copied { log, left: log - copied })
    })
}
