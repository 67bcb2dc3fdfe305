//! Whether the store is what it should be: a quick look at opening, and everything for `fsck`.
//!
//! Nothing here writes. What is found is named; whoever asked decides what to do about it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;

use rusqlite::{Connection, params};
use warrant_protocol::{Digest, RunState};

use super::steps::digest_column;
use super::{Store, StoreError, schema};

/// Databases up to this size are checked page by page at opening, which takes about a second for
/// this much; larger ones only by `fsck`.
const CHECKED_AT_OPENING_BYTES: u64 = 256 << 20;

/// How many of the newest runs are looked at when the store is opened.
const RUNS_AT_OPENING: u64 = 64;

/// What the row of a run says, beside what [`super::RunRow`] holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFacts {
    /// Its place in the order of arrival.
    pub seq: u64,
    /// Its name as stored.
    pub id: String,
    /// Its state as stored.
    pub state: String,
    /// How many events its row counts.
    pub event_count: u64,
    /// The hash of its last event, as its row says.
    pub head: Option<Digest>,
    /// The hash of the last event that is stored.
    pub last_event: Option<Digest>,
    /// The digest in its receipt's row, if it has one.
    pub receipt_hash: Option<Digest>,
    /// How many events are stored.
    pub stored_events: u64,
    /// Whether request and judgment are there.
    pub has_papers: bool,
    /// Whether it has a contract.
    pub has_contract: bool,
    /// When it last changed, in ms since 1970.
    pub updated_at_ms: u64,
}

/// What is stored of one blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobFacts {
    /// Its address.
    pub digest: Digest,
    /// Its size.
    pub size: u64,
}

impl Store {
    /// Takes the look that every process takes before it serves others: are the pages sound (of a
    /// database that is not too large), are all tables and triggers there, do the newest runs say
    /// the same in every table.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] saying what is wrong.
    pub fn check_at_opening(&self) -> Result<(), StoreError> {
        let bytes = fs::metadata(&self.core.path)?.len();
        self.read_aside(|connection| {
            if bytes <= CHECKED_AT_OPENING_BYTES {
                let found = pages(connection, "quick_check(1)")?;
                if let Some(detail) = found.into_iter().next() {
                    return Err(StoreError::corrupt(detail));
                }
            }
            if let Some(detail) = missing_objects(connection)?.into_iter().next() {
                return Err(StoreError::corrupt(detail));
            }
            Ok(())
        })?;
        for facts in self.run_facts(self.last_place()?.saturating_sub(RUNS_AT_OPENING), u32::MAX)? {
            if let Some(problem) = facts.problems().into_iter().next() {
                return Err(StoreError::corrupt(format!("{}: {problem}", facts.id)));
            }
        }
        Ok(())
    }

    fn last_place(&self) -> Result<u64, StoreError> {
        self.read_aside(|connection| {
            let sql = "SELECT coalesce(max(seq), 0) FROM runs";
            Ok(connection.query_row(sql, [], |row| row.get(0))?)
        })
    }

    /// Returns what is wrong with the pages, indexes, tables and triggers of the database.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read at all.
    pub fn database_problems(&self) -> Result<Vec<String>, StoreError> {
        self.read_aside(|connection| {
            let mut found = pages(connection, "integrity_check(100)")?;
            found.extend(missing_objects(connection)?);
            Ok(found)
        })
    }

    /// Returns how many runs and blobs there are.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn counts(&self) -> Result<(u64, u64), StoreError> {
        self.read_aside(|connection| {
            let count = |table: &str| {
                let sql = format!("SELECT count(*) FROM {table}");
                connection.query_row(&sql, [], |row| row.get(0))
            };
            Ok((count("runs")?, count("blobs")?))
        })
    }

    /// Returns what is stored of the first runs after a place, in the order of arrival. All of one
    /// answer is of one moment.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn run_facts(&self, after: u64, limit: u32) -> Result<Vec<RunFacts>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT seq, id, state, event_count, head,
                   (SELECT hash FROM receipts WHERE receipts.run = runs.seq),
                   (SELECT count(*) FROM events WHERE events.run = runs.seq),
                   EXISTS (SELECT 1 FROM papers WHERE papers.run = runs.seq),
                   EXISTS (SELECT 1 FROM papers WHERE papers.run = runs.seq AND contract NOT NULL),
                   updated_at,
                   (SELECT hash FROM events WHERE events.run = runs.seq
                    ORDER BY events.seq DESC LIMIT 1)
                 FROM runs WHERE seq > ? ORDER BY seq LIMIT ?",
            )?;
            let rows = statement.query_map(params![after, limit], |row| {
                Ok(RunFacts {
                    seq: row.get(0)?,
                    id: row.get(1)?,
                    state: row.get(2)?,
                    event_count: row.get(3)?,
                    head: row.get::<_, Option<[u8; 32]>>(4)?.map(Digest::from_bytes),
                    receipt_hash: row.get::<_, Option<[u8; 32]>>(5)?.map(Digest::from_bytes),
                    stored_events: row.get(6)?,
                    has_papers: row.get(7)?,
                    has_contract: row.get(8)?,
                    updated_at_ms: row.get(9)?,
                    last_event: row.get::<_, Option<[u8; 32]>>(10)?.map(Digest::from_bytes),
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the first blobs after an address, in the order of addresses.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn blob_facts(
        &self,
        after: Option<&Digest>,
        limit: u32,
    ) -> Result<Vec<BlobFacts>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT digest, size FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?",
            )?;
            let after: &[u8] = after.map_or(&[], |digest| digest.as_bytes());
            let rows = statement.query_map(params![after, limit], |row| {
                Ok(BlobFacts { digest: digest_column(row, 0)?, size: row.get(1)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Reads a blob to its end and returns what is wrong with it, if anything. One that was removed
    /// meanwhile is not wrong.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be read.
    pub fn blob_problem(&self, blob: &BlobFacts) -> Result<Option<String>, StoreError> {
        let mut reader = match self.sized_blob(&blob.digest) {
            Ok(Some((_, reader))) => reader,
            Ok(None) => return Ok(None),
            Err(StoreError::File(error)) => return self.unless_removed(blob, error.to_string()),
            Err(error) => return Err(error),
        };
        let mut piece = [0; 64 * 1024];
        let mut bytes = 0_u64;
        loop {
            match reader.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => bytes += count as u64,
                Err(error) => return self.unless_removed(blob, error.to_string()),
            }
        }
        let is_counted = bytes == blob.size;
        Ok((!is_counted).then(|| format!("it has {bytes} bytes, its row says {}", blob.size)))
    }

    fn unless_removed(
        &self,
        blob: &BlobFacts,
        problem: String,
    ) -> Result<Option<String>, StoreError> {
        Ok(self.has_blob(&blob.digest)?.then_some(problem))
    }

    /// Returns the sessions whose records do not follow one another, or whose digests are not
    /// those of their texts, each with what is wrong.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn record_problems(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.read_aside(|connection| {
            let mut problems = Vec::new();
            let mut statement =
                connection.prepare("SELECT session, lamport, hash, body FROM records")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (session, lamport): (String, u64) = (row.get(0)?, row.get(1)?);
                let body: String = row.get(3)?;
                if digest_column(row, 2)? != Digest::of(body.as_bytes()) {
                    problems
                        .push((session, format!("record {lamport} is not what its digest says")));
                }
            }
            Ok(problems)
        })
    }
}

impl RunFacts {
    /// Returns what is wrong with a run as its row and its neighbors in other tables tell it.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        let state = RunState::ALL.into_iter().find(|state| state.as_str() == self.state);
        let Some(state) = state else {
            return vec![format!("`{}` is no state", self.state)];
        };
        check(self.has_papers, "its request is missing".to_owned());
        check(
            self.event_count == self.stored_events,
            format!(
                "its row counts {} events, {} are stored",
                self.event_count, self.stored_events
            ),
        );
        check(self.head == self.last_event, "its row names another last event".to_owned());
        let is_ended = state.is_terminal();
        check(
            is_ended == self.receipt_hash.is_some(),
            format!("it is {state} and has {} receipt", if is_ended { "no" } else { "a" }),
        );
        let needs_contract = state != RunState::AwaitingApproval;
        check(!needs_contract || self.has_contract, format!("it is {state} and has no contract"));
        problems
    }
}

fn pages(connection: &Connection, check: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare(&format!("PRAGMA {check}"))?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    let said: Vec<String> = rows.collect::<Result<_, _>>()?;
    Ok(said.into_iter().filter(|line| line != "ok").collect())
}

/// Tables, indexes and triggers that a store of this version has and this one lacks.
fn missing_objects(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let found = objects(connection)?;
    let fresh = Connection::open_in_memory()?;
    schema::make(&fresh)?;
    let wanted = objects(&fresh)?;
    Ok(wanted.difference(&found).map(|object| format!("the {object} is missing")).collect())
}

fn objects(connection: &Connection) -> Result<BTreeSet<String>, StoreError> {
    let mut statement = connection
        .prepare("SELECT type || ' ' || name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
