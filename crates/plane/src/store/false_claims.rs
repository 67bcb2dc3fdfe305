//! What runners said that the plane could refute, kept for whoever operates the fleet.

use rusqlite::params;
use warrant_protocol::{RunId, Timestamp};

use super::read::id_column;
use super::steps::timestamp_column;
use super::{Durability, Store, StoreError};

/// One thing that a runner said and that the plane refuted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FalseClaimRow {
    /// Which runner.
    pub runner: String,
    /// About which run.
    pub run: RunId,
    /// Under which lease of it.
    pub epoch: u64,
    /// Which member was wrong.
    pub field: String,
    /// What was wrong with it.
    pub detail: String,
    /// When.
    pub at: Timestamp,
}

/// What the record of a false claim led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FalseClaimCount {
    /// How many different ones the runner is on record with.
    pub total: u64,
    /// Whether this one ended the runner's enrollment.
    pub is_revoked_now: bool,
}

impl Store {
    /// Keeps a false claim, durably, and revokes its runner once it is on record with `most` of
    /// them. The same claim again counts once: answers get lost, and runners repeat themselves.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn add_false_claim(
        &self,
        claim: FalseClaimRow,
        most: u64,
    ) -> Result<FalseClaimCount, StoreError> {
        self.write(Durability::Now, move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO false_claims (runner, run, epoch, field, detail, created_at)
                     VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                )?
                .execute(params![
                    claim.runner,
                    claim.run.as_str(),
                    claim.epoch,
                    claim.field,
                    claim.detail,
                    claim.at.unix_ms(),
                ])?;
            let total: u64 = connection
                .prepare_cached("SELECT count(*) FROM false_claims WHERE runner = ?")?
                .query_row([&claim.runner], |row| row.get(0))?;
            let is_revoked_now = total >= most
                && connection
                    .prepare_cached(
                        "UPDATE runners SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
                    )?
                    .execute(params![claim.at.unix_ms(), claim.runner])?
                    == 1;
            Ok(FalseClaimCount { total, is_revoked_now })
        })
    }

    /// Returns the latest false claims, newest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn false_claims(&self, limit: u32) -> Result<Vec<FalseClaimRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT runner, run, epoch, field, detail, created_at FROM false_claims
                 ORDER BY id DESC LIMIT ?",
            )?;
            let rows = statement.query_map([limit], |row| {
                Ok(FalseClaimRow {
                    runner: row.get(0)?,
                    run: id_column(row, 1)?,
                    epoch: row.get(2)?,
                    field: row.get(3)?,
                    detail: row.get(4)?,
                    at: timestamp_column(row, 5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}
