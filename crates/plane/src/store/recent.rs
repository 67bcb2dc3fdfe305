//! What a requester did in the last minutes, counted by indexes that know requester and time.

use std::ops::RangeInclusive;

use rusqlite::params;
use warrant_protocol::RunState;

use super::states::in_state;
use super::{Store, StoreError};

/// No count goes beyond this; a policy that needs to tell more apart has another problem.
const MOST_COUNTED: u32 = 10_000;

impl Store {
    /// Counts the requests of a requester (`human:alice`) in a span of milliseconds since 1970,
    /// whatever became of them. The cost depends on how many there are in that time, never on how
    /// many came before.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn recent_runs(
        &self,
        requester: &str,
        unix_ms: RangeInclusive<u64>,
    ) -> Result<u32, StoreError> {
        let sql = "SELECT count(*) FROM (
               SELECT 1 FROM runs INDEXED BY runs_by_time
               WHERE requested_by = ?1 AND created_at BETWEEN ?2 AND ?3 LIMIT ?4)";
        self.count_recent(sql, requester, unix_ms)
    }

    /// Counts the requests of a requester that were denied, as [`Store::recent_runs`] does.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn recent_denials(
        &self,
        requester: &str,
        unix_ms: RangeInclusive<u64>,
    ) -> Result<u32, StoreError> {
        let is_denied = in_state(RunState::Denied);
        let sql = format!(
            "SELECT count(*) FROM (
               SELECT 1 FROM runs INDEXED BY runs_denied
               WHERE {is_denied} AND requested_by = ?1
                 AND created_at BETWEEN ?2 AND ?3 LIMIT ?4)"
        );
        self.count_recent(&sql, requester, unix_ms)
    }

    fn count_recent(
        &self,
        sql: &str,
        requester: &str,
        unix_ms: RangeInclusive<u64>,
    ) -> Result<u32, StoreError> {
        self.read(|connection| {
            let span = params![requester, unix_ms.start(), unix_ms.end(), MOST_COUNTED];
            Ok(connection.prepare_cached(sql)?.query_row(span, |row| row.get(0))?)
        })
    }
}
