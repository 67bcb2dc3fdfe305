//! Records of foreign clients' sessions: what was decided and done, one after the other; and
//! reports of examinations that they asked for.
//!
//! A session has a clock of its own that only runs forward, also after a restart, and each record
//! names the one before it. The store keeps and orders; what a record says, and its signature, are
//! the caller's.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use warrant_protocol::{Digest, RunId, Timestamp};

use super::entering::insert_run;
use super::journal::KeptRecord;
use super::rows::NewRun;
use super::steps::{digest_column, timestamp_column};
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
        self.core.record(NextRecord { session, owner, run, make: Box::new(make) })
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

/// The next record of a session, yet to be made.
pub(super) struct NextRecord {
    pub(super) session: String,
    pub(super) owner: String,
    pub(super) run: Option<NewRun>,
    pub(super) make: Box<dyn FnOnce(u64, Option<Digest>) -> NewRecord + Send>,
}

/// Makes the next record of a session within a transaction.
pub(super) fn insert_next(
    connection: &Connection,
    next: NextRecord,
) -> Result<RecordRow, StoreError> {
    let NextRecord { session, owner, run, make } = next;
    if let Some(run) = &run {
        insert_run(connection, run)?;
    }
    let lamport = snapshots::tick(connection, &clock_of(&session))?;
    let record = make(lamport, last_hash(connection, &session)?);
    let row = row_of(&record, lamport);
    let kept = KeptRecord { number: 0, session, owner, lamport, record, run: None };
    insert_record(connection, &kept)?;
    count_records(connection, &kept, (kept.record.at, 1))?;
    Ok(row)
}

/// Keeps records that were made and told already, in order; those that are kept stay as they are.
pub(super) fn insert_records(
    connection: &Connection,
    records: &[&KeptRecord],
) -> Result<(), StoreError> {
    let mut ends: BTreeMap<&str, (&KeptRecord, (Timestamp, u64))> = BTreeMap::new();
    for kept in records {
        if !insert_record(connection, kept)? {
            continue;
        }
        if let Some(run) = &kept.run {
            insert_run(connection, run)?;
        }
        let (_, (first, count)) = *ends.entry(&kept.session).or_insert((kept, (kept.record.at, 0)));
        ends.insert(&kept.session, (kept, (first, count + 1)));
    }
    for (last, count) in ends.into_values() {
        connection
            .prepare_cached(
                "INSERT INTO clocks (name, value) VALUES (?, ?)
                 ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            )?
            .execute(params![clock_of(&last.session), last.lamport])?;
        count_records(connection, last, count)?;
    }
    Ok(())
}

/// Returns the place and the digest of the last record of a session.
pub(super) fn end_of(
    connection: &Connection,
    session: &str,
) -> Result<(u64, Option<Digest>), StoreError> {
    let mut statement = connection.prepare_cached("SELECT value FROM clocks WHERE name = ?")?;
    let lamport = statement.query_row([clock_of(session)], |row| row.get(0)).optional()?;
    Ok((lamport.unwrap_or(0), last_hash(connection, session)?))
}

/// Returns a record as it is told.
pub(super) fn row_of(record: &NewRecord, lamport: u64) -> RecordRow {
    let NewRecord { body, hash, signature, .. } = record;
    RecordRow { lamport, body: body.clone(), hash: *hash, signature: signature.clone() }
}

fn clock_of(session: &str) -> String {
    format!("helm:{session}")
}

/// Returns whether the record is new.
fn insert_record(connection: &Connection, kept: &KeptRecord) -> Result<bool, StoreError> {
    let NewRecord { run, body, hash, signature, at } = &kept.record;
    let added = connection
        .prepare_cached(
            "INSERT INTO records (session, lamport, owner, run, hash, body, signature, created_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session, lamport) DO NOTHING",
        )?
        .execute(params![
            kept.session,
            kept.lamport,
            kept.owner,
            run.as_str(),
            hash.as_bytes(),
            body,
            signature,
            at.unix_ms()
        ])?;
    Ok(added == 1)
}

/// Tells a session of `count` records more, since `first`, of which `last` is the last.
fn count_records(
    connection: &Connection,
    last: &KeptRecord,
    (first, count): (Timestamp, u64),
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO sessions (session, owner, created_at, lamport, count)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (session) DO UPDATE
               SET lamport = max(lamport, excluded.lamport), count = count + excluded.count",
        )?
        .execute(params![last.session, last.owner, first.unix_ms(), last.lamport, count])?;
    Ok(())
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
