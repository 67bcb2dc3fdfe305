//! The queue of a pool: priority first, then whose turn it is.
//!
//! Start-time fair queueing: a requester's run gets the turn after their last one, but never one
//! before the pool's present turn. So whoever brings thousands delays only themselves.

use rusqlite::{Connection, params};
use warrant_protocol::{RunId, RunState};

use super::read::id_column;
use super::states::in_state;
use super::{Store, StoreError};

/// What a run costs of its requester's turns.
const COST: i64 = 1;

/// A queued run that a runner might take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Which run.
    pub id: RunId,
    /// The number of its last lease.
    pub epoch: u64,
}

/// What a runner can do, as JSON lists of names; absent means everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Tiers it makes.
    pub isolations: Option<String>,
    /// Agents it starts.
    pub agent_kinds: Option<String>,
    /// Components of the posture that hold there.
    pub posture: Option<String>,
}

impl Store {
    /// Returns queued runs of a pool that fit a runner of the fleet, whoever is next first. Runs of
    /// this machine alone are not among them.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn candidates(
        &self,
        pool: &str,
        abilities: &Abilities,
        limit: usize,
    ) -> Result<Vec<Candidate>, StoreError> {
        self.read(|connection| {
            let is_queued = in_state(RunState::Queued);
            let mut statement = connection.prepare_cached(&format!(
                "SELECT id, epoch FROM runs WHERE {is_queued} AND pool = ?1 AND is_local = 0
                   AND (?2 IS NULL
                     OR coalesce(isolation, 'process') IN (SELECT value FROM json_each(?2)))
                   AND (?3 IS NULL OR agent_kind IN (SELECT value FROM json_each(?3)))
                   AND (?4 IS NULL OR NOT EXISTS (
                     SELECT 1 FROM papers, json_each(contract, '$.requiredPosture') AS wanted
                     WHERE papers.run = runs.seq AND wanted.value NOT IN (SELECT value FROM json_each(?4))))
                 ORDER BY priority DESC, turn, seq LIMIT ?5"
            ))?;
            let Abilities { isolations, agent_kinds, posture } = abilities;
            let rows = statement
                .query_map(params![pool, isolations, agent_kinds, posture, limit], |row| {
                    Ok(Candidate { id: id_column(row, 0)?, epoch: row.get(1)? })
                })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns how many runs wait for a runner of the fleet in each pool.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn queued_by_pool(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(|connection| {
            let is_queued = in_state(RunState::Queued);
            let mut statement = connection.prepare_cached(&format!(
                "SELECT pool, count(*) FROM runs WHERE {is_queued} AND is_local = 0 GROUP BY pool"
            ))?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Returns the turn of a requester's next run in a pool, and remembers that it was given.
pub(super) fn next_turn(
    connection: &Connection,
    pool: &str,
    requester: &str,
) -> Result<i64, StoreError> {
    Ok(connection
        .prepare_cached(
            "INSERT INTO turns (pool, requester, turn)
             VALUES (?1, ?2, ?3 + coalesce((SELECT value FROM clocks WHERE name = ?4), 0))
             ON CONFLICT (pool, requester) DO UPDATE
               SET turn = ?3 + max(turn, coalesce((SELECT value FROM clocks WHERE name = ?4), 0))
             RETURNING turn",
        )?
        .query_row(params![pool, requester, COST, clock_of(pool)], |row| row.get(0))?)
}

/// Moves the pool's present turn to that of a run that leaves the queue.
pub(super) fn advance(connection: &Connection, pool: &str, turn: i64) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO clocks (name, value) VALUES (?, ?)
             ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
        )?
        .execute(params![clock_of(pool), turn])?;
    Ok(())
}

fn clock_of(pool: &str) -> String {
    format!("turn:{pool}")
}
