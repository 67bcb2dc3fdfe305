//! Records of foreign clients' sessions: what was decided and done, one after the other; and
//! reports of examinations that they asked for.
//!
//! A session has a clock of its own that only runs forward, also after a restart, and each record
//! names the one before it. The store keeps and orders; what a record says, and its signature, are
//! the caller's.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use warrant_protocol::{Digest, RunId, Timestamp};

use super::entering::insert_run;
use super::lifecycle::{NewRun, digest_column, timestamp_column};
use super::{Durability, Store, StoreError, snapshots};

/// A record that is to be kept.
#[derive(Debug, Clone)]
pub struct NewRecord {
    /// The run with the receipt.
    pub run: RunId,
    /// What it says, as canonical JSON.
    pub body: String,
    /// The digest of that.
    pub hash: Digest,
    /// The signature over that, in hex.
    pub signature: String,
    /// When.
    pub at: Timestamp,
}

/// A record that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordRow {
    /// Its place in its session.
    pub lamport: u64,
    /// What it says, as canonical JSON.
    pub body: String,
    /// The digest of that.
    pub hash: Digest,
    /// The signature over that, in hex.
    pub signature: String,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id.
    pub session: String,
    /// When its first record was kept.
    pub created_at: Timestamp,
    /// How many records it has.
    pub count: u64,
    /// The place of its last record.
    pub lamport: u64,
}

/// How many reports of one owner are kept.
const MOST_REPORTS: u32 = 64;

impl Store {
    /// Keeps a report that `owner` asked for; the oldest of many go.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn keep_report(
        &self,
        (id, owner): (&str, &str),
        body: String,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let (id, owner) = (id.to_owned(), owner.to_owned());
        self.write(Durability::Now, move |connection| {
            connection.execute(
                "INSERT INTO reports (id, owner, body, created_at) VALUES (?, ?, ?, ?)",
                params![id, owner, body, at.unix_ms()],
            )?;
            connection.execute(
                "DELETE FROM reports WHERE id IN (SELECT id FROM reports WHERE owner = ?
                   ORDER BY created_at DESC, id LIMIT -1 OFFSET ?)",
                params![owner, MOST_REPORTS],
            )?;
            Ok(())
        })
    }

    /// Returns a report, if this owner has it.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn report(&self, id: &str, owner: &str) -> Result<Option<String>, StoreError> {
        self.read_aside(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT body FROM reports WHERE id = ? AND owner = ?")?;
            Ok(statement.query_row([id, owner], |row| row.get(0)).optional()?)
        })
    }

    /// Keeps the next record of a session of `owner`: `make` is told its place and the digest of
    /// the record before it. The run that it tells of is kept with it unless it is kept already.
    /// One commit, and on the disk when it returns.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn record(
        &self,
        (session, owner): (&str, &str),
        run: Option<NewRun>,
        make: impl FnOnce(u64, Option<Digest>) -> NewRecord + Send + 'static,
    ) -> Result<RecordRow, StoreError> {
        let (session, owner) = (session.to_owned(), owner.to_owned());
        self.write(Durability::Now, move |connection| {
            if let Some(run) = &run {
                insert_run(connection, run)?;
            }
            let lamport = snapshots::tick(connection, &format!("helm:{session}"))?;
            let previous = last_hash(connection, &session)?;
            let NewRecord { run, body, hash, signature, at } = make(lamport, previous);
            connection
                .prepare_cached(
                    "INSERT INTO records
                       (session, lamport, owner, run, hash, body, signature, created_at)
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                )?
                .execute(params![
                    session,
                    lamport,
                    owner,
                    run.as_str(),
                    hash.as_bytes(),
                    body,
                    signature,
                    at.unix_ms()
                ])?;
            connection
                .prepare_cached(
                    "INSERT INTO sessions (session, owner, created_at, lamport, count)
                     VALUES (?, ?, ?, ?, 1)
                     ON CONFLICT (session) DO UPDATE SET lamport = ?4, count = count + 1",
                )?
                .execute(params![session, owner, at.unix_ms(), lamport])?;
            Ok(RecordRow { lamport, body, hash, signature })
        })
    }

    /// Returns the sessions of one owner, newest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn sessions(
        &self,
        owner: &str,
        (limit, offset): (u32, u32),
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT session, created_at, count, lamport FROM sessions WHERE owner = ?
                 ORDER BY created_at DESC, session LIMIT ? OFFSET ?",
            )?;
            let rows = statement.query_map(params![owner, limit, offset], session_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the first `limit` records of a session after a place, in order; nothing for a
    /// session that this owner does not have.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn records(
        &self,
        (session, owner): (&str, &str),
        (after, limit): (u64, u32),
    ) -> Result<Vec<RecordRow>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT lamport, body, hash, signature FROM records
                 WHERE session = ? AND owner = ? AND lamport > ? ORDER BY lamport LIMIT ?",
            )?;
            let rows = statement.query_map(params![session, owner, after, limit], record_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the digest of a run's receipt, if it has one.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn receipt_hash(&self, run: &RunId) -> Result<Option<Digest>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT hash FROM receipts JOIN runs ON runs.seq = receipts.run WHERE runs.id = ?",
            )?;
            Ok(statement.query_row([run.as_str()], |row| digest_column(row, 0)).optional()?)
        })
    }

    /// Returns the record of this digest, if this owner has it.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn record_of(&self, owner: &str, hash: &Digest) -> Result<Option<RecordRow>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT lamport, body, hash, signature FROM records WHERE hash = ? AND owner = ?",
            )?;
            Ok(statement.query_row(params![hash.as_bytes(), owner], record_row).optional()?)
        })
    }
}

fn last_hash(connection: &Connection, session: &str) -> Result<Option<Digest>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT hash FROM records WHERE session = ? ORDER BY lamport DESC LIMIT 1",
    )?;
    Ok(statement.query_row([session], |row| digest_column(row, 0)).optional()?)
}

fn record_row(row: &Row<'_>) -> rusqlite::Result<RecordRow> {
    Ok(RecordRow {
        lamport: row.get(0)?,
        body: row.get(1)?,
        hash: digest_column(row, 2)?,
        signature: row.get(3)?,
    })
}

fn session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        session: row.get(0)?,
        created_at: timestamp_column(row, 1)?,
        count: row.get(2)?,
        lamport: row.get(3)?,
    })
}
