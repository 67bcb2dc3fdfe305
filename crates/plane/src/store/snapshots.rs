//! Policy snapshots with their history, and clocks that only go forward.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use warrant_protocol::{Digest, Timestamp};

use super::steps::{digest_column, timestamp_column};
use super::{Durability, Store, StoreError};

/// A policy snapshot as it was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRow {
    /// The snapshot's digest.
    pub hash: Digest,
    /// The snapshot as JSON text.
    pub body: String,
    /// Who set it.
    pub set_by: String,
    /// When.
    pub created_at: Timestamp,
}

impl Store {
    /// Sets the policy in force; the ones before stay readable. The same again is no change.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn set_policy(&self, policy: PolicyRow) -> Result<(), StoreError> {
        self.write(Durability::Now, move |connection| {
            let latest = latest_policy(connection)?;
            if latest.is_some_and(|latest| latest.hash == policy.hash) {
                return Ok(());
            }
            connection.execute(
                "INSERT INTO policies (hash, body, set_by, created_at) VALUES (?, ?, ?, ?)",
                params![
                    policy.hash.as_bytes(),
                    policy.body,
                    policy.set_by,
                    policy.created_at.unix_ms(),
                ],
            )?;
            Ok(())
        })
    }

    /// Returns the policy in force, if one was ever set.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn policy(&self) -> Result<Option<PolicyRow>, StoreError> {
        self.read(latest_policy)
    }

    /// Returns every policy that was set, newest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn policy_history(&self) -> Result<Vec<PolicyRow>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT hash, body, set_by, created_at FROM policies ORDER BY seq DESC",
            )?;
            let rows = statement.query_map([], policy_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Writes one small row durably, so that the caller learns whether writing works.
    ///
    /// # Errors
    /// [`StoreError`] when nothing can be written now.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        self.tick("write-check").map(drop)
    }

    /// Returns the next tick of a clock: one more than ever before, also after a restart.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn tick(&self, clock: &str) -> Result<u64, StoreError> {
        let clock = clock.to_owned();
        self.write(Durability::Now, move |connection| tick(connection, &clock))
    }
}

pub(super) fn tick(connection: &Connection, clock: &str) -> Result<u64, StoreError> {
    Ok(connection
        .prepare_cached(
            "INSERT INTO clocks (name, value) VALUES (?, 1)
             ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        )?
        .query_row([clock], |row| row.get(0))?)
}

fn latest_policy(connection: &Connection) -> Result<Option<PolicyRow>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT hash, body, set_by, created_at FROM policies ORDER BY seq DESC LIMIT 1",
    )?;
    Ok(statement.query_row([], policy_row).optional()?)
}

fn policy_row(row: &Row<'_>) -> rusqlite::Result<PolicyRow> {
    Ok(PolicyRow {
        hash: digest_column(row, 0)?,
        body: row.get(1)?,
        set_by: row.get(2)?,
        created_at: timestamp_column(row, 3)?,
    })
}
