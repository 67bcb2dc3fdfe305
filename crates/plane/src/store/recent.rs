//! What a requester did in the last minutes, counted by indexes that know requester and time.

use std::ops::RangeInclusive;

use rusqlite::params;
use warrant_protocol::RunState;

use super::states::in_state;
use super::{Store, StoreError};

/// No count goes beyond this; a policy that needs to tell more apart has another problem.
const MOST_COUNTED: u32 = 10_000;

/// How often a requester asked in a span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentCounts {
    /// Requests, whatever became of them.
    pub runs: u32,
    /// Those that were denied.
    pub denied: u32,
}

impl Store {
    /// Counts the requests of a requester (`human:alice`) in a span of milliseconds since 1970. The
    /// cost depends on how many there are in that time, never on how many came before.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn recent_counts(
        &self,
        requester: &str,
        unix_ms: RangeInclusive<u64>,
    ) -> Result<RecentCounts, StoreError> {
        self.read(|connection| {
            let count = |sql: &str| -> Result<u32, StoreError> {
                Ok(connection.prepare_cached(sql)?.query_row(
                    params![requester, unix_ms.start(), unix_ms.end(), MOST_COUNTED],
                    |row| row.get(0),
                )?)
            };
            let is_denied = in_state(RunState::Denied);
            Ok(RecentCounts {
                runs: count(
                    "SELECT count(*) FROM (
                       SELECT 1 FROM runs INDEXED BY runs_by_time
                       WHERE requested_by = ?1 AND created_at BETWEEN ?2 AND ?3 LIMIT ?4)",
                )?,
                denied: count(&format!(
                    "SELECT count(*) FROM (
                       SELECT 1 FROM runs INDEXED BY runs_denied
                       WHERE {is_denied} AND requested_by = ?1
                         AND created_at BETWEEN ?2 AND ?3 LIMIT ?4)",
                ))?,
            })
        })
    }
}
