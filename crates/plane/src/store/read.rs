//! Reading: one run, pages of runs, events, receipts, approvals, and what is still alive.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use warrant_protocol::wire::ProcessIdentity;
use warrant_protocol::{Digest, RunId, RunState, Timestamp};

use super::rows::{ApprovalRow, EventRow};
use super::states::{in_state, in_states};
use super::steps::{digest_column, timestamp_column};
use super::{Store, StoreError};

/// A run, without its chain and receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Its place in the order of arrival; the cursor of pages.
    pub seq: u64,
    /// Its name.
    pub id: RunId,
    /// Where it stands.
    pub state: RunState,
    /// The number of its present lease.
    pub epoch: u64,
    /// Where it runs.
    pub pool: String,
    /// Which agent.
    pub agent_kind: String,
    /// Which tier was asked for.
    pub isolation: Option<String>,
    /// The task.
    pub prompt: String,
    /// Who asked.
    pub requested_by: String,
    /// The digest of the request.
    pub request_hash: Digest,
    /// The digest of the policy it was judged by.
    pub policy_hash: Digest,
    /// When it came.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Until when approvals are waited for.
    pub deadline: Option<Timestamp>,
    /// The whole judgment as JSON text.
    pub judgment: String,
    /// The request as JSON text.
    pub request: String,
    /// The contract as JSON text.
    pub contract: Option<String>,
    /// Who runs it.
    pub runner: Option<String>,
    /// Who asked for it to be stopped.
    pub stop_by: Option<String>,
    /// How many events its chain has.
    pub event_count: u64,
    /// Whether it has a receipt.
    pub has_receipt: bool,
}

/// A run that has no receipt yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRun {
    /// Which run.
    pub id: RunId,
    /// Where it stands.
    pub state: RunState,
    /// The number of its lease.
    pub epoch: u64,
    /// The name under which its holder's life can be checked.
    pub owner: Option<String>,
    /// How long its lease lasts without renewal.
    pub lease_ms: Option<u64>,
    /// Until when approvals are waited for.
    pub deadline: Option<Timestamp>,
    /// For how long its runner goes on while the plane does not answer, if it does.
    pub disconnect_ms: Option<u64>,
    /// The runner that holds it.
    pub runner: Option<String>,
    /// Which process of that runner took it.
    pub generation: Option<u64>,
    /// Which process of its machine that is.
    pub process: Option<ProcessIdentity>,
}

/// Which runs are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Only those in this state.
    pub state: Option<RunState>,
    /// Only those before this cursor.
    pub before: Option<u64>,
    /// At most this many; 100 when absent.
    pub limit: Option<u32>,
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The runs.
    pub runs: Vec<RunRow>,
    /// The cursor of the next page, if there may be one.
    pub next: Option<u64>,
}

/// What a [`RunRow`] is read from.
const RUNS: &str = "runs JOIN papers ON papers.run = runs.seq";

const COLUMNS: &str = "runs.seq, id, state, epoch, pool, agent_kind, isolation, prompt,
  requested_by, request_hash, policy_hash, runs.created_at, updated_at, deadline, judgment,
  request, contract, runner, stop_by, event_count, 
  EXISTS (SELECT 1 FROM receipts WHERE receipts.run = runs.seq)";

impl Store {
    /// Returns one run.
    ///
    /// # Errors
    /// [`StoreError::UnknownRun`] when there is none of that name.
    pub fn run(&self, id: &RunId) -> Result<RunRow, StoreError> {
        self.read(|connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM {RUNS} WHERE id = ?"))?
                .query_row([id.as_str()], run_row)
                .optional()?
                .ok_or_else(|| StoreError::UnknownRun(id.to_string()))
        })
    }

    /// Returns a page of runs, newest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn list(&self, filter: &RunFilter) -> Result<Page, StoreError> {
        let limit = filter.limit.unwrap_or(100).clamp(1, 1000);
        let before = filter.before.unwrap_or(i64::MAX as u64).min(i64::MAX as u64);
        let runs: Vec<RunRow> = self.read_aside(|connection| match filter.state {
            None => {
                let sql = format!(
                    "SELECT {COLUMNS} FROM {RUNS} WHERE runs.seq < ? ORDER BY runs.seq DESC LIMIT ?"
                );
                collect(connection, &sql, params![before, limit])
            }
            Some(state) => {
                let sql = format!(
                    "SELECT {COLUMNS} FROM {RUNS} WHERE runs.seq < ? AND state = ?
                     ORDER BY runs.seq DESC LIMIT ?"
                );
                collect(connection, &sql, params![before, state.as_str(), limit])
            }
        })?;
        let is_full = runs.len() as u64 == u64::from(limit);
        let next = runs.last().filter(|_| is_full).map(|run| run.seq);
        Ok(Page { runs, next })
    }

    /// Returns the runs without a receipt, oldest first. Costs nothing when there are none.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn live(&self) -> Result<Vec<LiveRun>, StoreError> {
        self.read(|connection| {
            let is_live = in_states(|state| !state.is_terminal());
            let mut statement = connection.prepare_cached(&format!(
                "SELECT id, state, epoch, owner, lease_ms, deadline, disconnect_ms, runner,
                   generation, process FROM runs WHERE {is_live} ORDER BY state, seq"
            ))?;
            let rows = statement.query_map([], live_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the runs that runners behind the network hold, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn leased_remotely(&self) -> Result<Vec<LiveRun>, StoreError> {
        self.read(|connection| {
            let is_held = in_states(RunState::is_held);
            let mut statement = connection.prepare_cached(&format!(
                "SELECT id, state, epoch, owner, lease_ms, deadline, disconnect_ms, runner,
                   generation, process FROM runs WHERE {is_held} AND owner IS NULL ORDER BY seq"
            ))?;
            let rows = statement.query_map([], live_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the oldest queued run of a pool, if there is one.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn next_queued(&self, pool: &str) -> Result<Option<RunRow>, StoreError> {
        self.read(|connection| {
            let is_queued = in_state(RunState::Queued);
            let sql = format!(
                "SELECT {COLUMNS} FROM {RUNS} WHERE {is_queued} AND pool = ?
                 ORDER BY priority DESC, turn, runs.seq LIMIT 1"
            );
            Ok(collect(connection, &sql, params![pool])?.pop())
        })
    }

    /// Returns the runs that wait for approval of exactly this request.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn awaiting(&self, request_hash: &Digest) -> Result<Vec<RunRow>, StoreError> {
        self.read(|connection| {
            let is_waiting = in_state(RunState::AwaitingApproval);
            let sql = format!(
                "SELECT {COLUMNS} FROM {RUNS} WHERE {is_waiting}
                 AND request_hash = ? ORDER BY runs.seq"
            );
            collect(connection, &sql, params![request_hash.as_bytes()])
        })
    }

    /// Returns how many runs of a requester can still be approved.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn count_awaiting(&self, requested_by: &str, now: Timestamp) -> Result<u64, StoreError> {
        self.read(|connection| {
            let is_waiting = in_state(RunState::AwaitingApproval);
            let sql = format!(
                "SELECT count(*) FROM {RUNS} WHERE {is_waiting}
                 AND requested_by = ? AND deadline > ?"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            Ok(statement.query_row(params![requested_by, now.unix_ms()], |row| row.get(0))?)
        })
    }

    /// Returns the queued runs of exactly this request.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn queued(&self, request_hash: &Digest) -> Result<Vec<RunRow>, StoreError> {
        self.read(|connection| {
            let is_queued = in_state(RunState::Queued);
            let sql = format!(
                "SELECT {COLUMNS} FROM {RUNS} WHERE {is_queued}
                 AND request_hash = ? ORDER BY runs.seq"
            );
            collect(connection, &sql, params![request_hash.as_bytes()])
        })
    }

    /// Returns the chain of a run, in order.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn events(&self, run: &RunId) -> Result<Vec<EventRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT events.seq, ts, hash, body FROM events
                 JOIN runs ON runs.seq = events.run WHERE runs.id = ? ORDER BY events.seq",
            )?;
            let rows = statement.query_map([run.as_str()], |row| event_row(row, 0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the chain of a run from place `from` on, in order.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn events_from(&self, run: &RunId, from: u64) -> Result<Vec<EventRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT events.seq, ts, hash, body FROM events
                 JOIN runs ON runs.seq = events.run WHERE runs.id = ? AND events.seq >= ?
                 ORDER BY events.seq",
            )?;
            let from = from.min(i64::MAX as u64);
            let rows = statement.query_map(params![run.as_str(), from], |row| event_row(row, 0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns whether a lease holds its run now.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn holds(&self, run: &RunId, epoch: u64) -> Result<bool, StoreError> {
        self.read(|connection| {
            let is_held = in_states(RunState::is_held);
            let mut statement = connection.prepare_cached(&format!(
                "SELECT 1 FROM runs WHERE id = ? AND epoch = ? AND {is_held}"
            ))?;
            Ok(statement.exists(params![run.as_str(), epoch])?)
        })
    }

    /// Returns the receipt of a run as JSON text, if it has one.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn receipt(&self, run: &RunId) -> Result<Option<String>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT body FROM receipts JOIN runs ON runs.seq = receipts.run WHERE runs.id = ?",
            )?;
            Ok(statement.query_row([run.as_str()], |row| row.get(0)).optional()?)
        })
    }

    /// Returns the approvals of a run that were not used yet, in the order they were given.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn approvals(&self, run: &RunId) -> Result<Vec<ApprovalRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT approver, key_id, level, statement, approvals.expires_at,
                   approvals.created_at
                 FROM approvals JOIN runs ON runs.seq = approvals.run
                 WHERE runs.id = ? AND used_at IS NULL ORDER BY approvals.id",
            )?;
            let rows = statement.query_map([run.as_str()], |row| {
                Ok(ApprovalRow {
                    approver: row.get(0)?,
                    key_id: row.get(1)?,
                    level: row.get(2)?,
                    statement: row.get(3)?,
                    expires_at: timestamp_column(row, 4)?,
                    created_at: timestamp_column(row, 5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

fn collect(
    connection: &Connection,
    sql: &str,
    values: &[&dyn rusqlite::ToSql],
) -> Result<Vec<RunRow>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(values, run_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    Ok(RunRow {
        seq: row.get(0)?,
        id: id_column(row, 1)?,
        state: state_column(row, 2)?,
        epoch: row.get(3)?,
        pool: row.get(4)?,
        agent_kind: row.get(5)?,
        isolation: row.get(6)?,
        prompt: row.get(7)?,
        requested_by: row.get(8)?,
        request_hash: digest_column(row, 9)?,
        policy_hash: digest_column(row, 10)?,
        created_at: timestamp_column(row, 11)?,
        updated_at: timestamp_column(row, 12)?,
        deadline: optional_timestamp(row, 13)?,
        judgment: row.get(14)?,
        request: row.get(15)?,
        contract: row.get(16)?,
        runner: row.get(17)?,
        stop_by: row.get(18)?,
        event_count: row.get(19)?,
        has_receipt: row.get(20)?,
    })
}

fn live_row(row: &Row<'_>) -> rusqlite::Result<LiveRun> {
    Ok(LiveRun {
        id: id_column(row, 0)?,
        state: state_column(row, 1)?,
        epoch: row.get(2)?,
        owner: row.get(3)?,
        lease_ms: row.get(4)?,
        deadline: optional_timestamp(row, 5)?,
        disconnect_ms: row.get(6)?,
        runner: row.get(7)?,
        generation: row.get(8)?,
        process: process_column(row, 9)?,
    })
}

/// Reads the name of a process. One that cannot be read means nothing, so there is none.
fn process_column(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<ProcessIdentity>> {
    let text: Option<String> = row.get(index)?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
}

pub(super) fn event_row(row: &Row<'_>, from: usize) -> rusqlite::Result<EventRow> {
    Ok(EventRow {
        seq: row.get(from)?,
        ts: timestamp_column(row, from + 1)?,
        hash: digest_column(row, from + 2)?,
        body: row.get(from + 3)?,
    })
}

pub(super) fn optional_timestamp(
    row: &Row<'_>,
    index: usize,
) -> rusqlite::Result<Option<Timestamp>> {
    match row.get::<_, Option<u64>>(index)? {
        Some(_) => timestamp_column(row, index).map(Some),
        None => Ok(None),
    }
}

pub(super) fn id_column(row: &Row<'_>, index: usize) -> rusqlite::Result<RunId> {
    row.get::<_, String>(index)?.parse().map_err(|error| malformed(index, error))
}

pub(super) fn state_column(row: &Row<'_>, index: usize) -> rusqlite::Result<RunState> {
    let name: String = row.get(index)?;
    RunState::parse(&name).ok_or_else(|| malformed(index, StoreError::Malformed("state")))
}

pub(super) fn malformed(
    index: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Text, Box::new(error))
}
