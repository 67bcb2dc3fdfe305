//! Approvals in the store: a statement and what it leads to are one transaction.

use rusqlite::{Connection, OptionalExtension as _, params};
use warrant_protocol::{RunId, RunState, Timestamp, Transition};

use super::read::id_column;
use super::rows::{ApprovalRow, ApprovalStep, ApprovedContract, KeptApproval};
use super::states::{StateChange, in_state};
use super::steps::{append_all, conflict, timestamp_column};
use super::{Durability, Store, StoreError, queue};

impl Store {
    /// Keeps an approval of a run that waits, and the contract if these approvals are enough. The
    /// approvals are used up by the contract.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the run does not wait, [`StoreError::ApprovalsChanged`] when
    /// others than the counted ones approved it.
    pub fn approve(&self, run: &RunId, step: ApprovalStep) -> Result<(), StoreError> {
        let run = run.clone();
        self.write(Durability::Now, move |connection| {
            let seq = waiting(connection, &run)?;
            if let Some(given) = &step.given {
                insert_approval(connection, seq, given)?;
            }
            if live_approvers(connection, seq, step.at)? != step.counted {
                return Err(StoreError::ApprovalsChanged(run.to_string()));
            }
            match &step.issued {
                Some(issued) => issue(connection, (seq, &run), issued, step.at),
                None => Ok(()),
            }
        })
    }

    /// Returns what somebody approved of a run, used or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn approval_by(
        &self,
        run: &RunId,
        approver: &str,
    ) -> Result<Option<KeptApproval>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT approver, key_id, level, statement, approvals.expires_at,
                   approvals.created_at, used_at IS NOT NULL
                 FROM approvals JOIN runs ON runs.seq = approvals.run
                 WHERE runs.id = ? AND approver = ?",
            )?;
            let kept = statement.query_row([run.as_str(), approver], |row| {
                let approval = ApprovalRow {
                    approver: row.get(0)?,
                    key_id: row.get(1)?,
                    level: row.get(2)?,
                    statement: row.get(3)?,
                    expires_at: timestamp_column(row, 4)?,
                    created_at: timestamp_column(row, 5)?,
                };
                Ok(KeptApproval { row: approval, is_used: row.get(6)? })
            });
            Ok(kept.optional()?)
        })
    }

    /// Returns the runs that wait although somebody approved them.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn approved_and_waiting(&self) -> Result<Vec<RunId>, StoreError> {
        self.read(|connection| {
            let is_waiting = in_state(RunState::AwaitingApproval);
            let mut statement = connection.prepare_cached(&format!(
                "SELECT id FROM runs WHERE {is_waiting} AND EXISTS (
                   SELECT 1 FROM approvals WHERE approvals.run = runs.seq AND used_at IS NULL)
                 ORDER BY seq"
            ))?;
            let rows = statement.query_map([], |row| id_column(row, 0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Returns the place of a run that waits for approval.
fn waiting(connection: &Connection, run: &RunId) -> Result<i64, StoreError> {
    let is_waiting = in_state(RunState::AwaitingApproval);
    let seq = connection
        .prepare_cached(&format!("SELECT seq FROM runs WHERE id = ? AND {is_waiting}"))?
        .query_row([run.as_str()], |row| row.get(0))
        .optional()?;
    seq.ok_or_else(|| conflict(connection, run))
}

/// Keeps an approval; one of the same person stands in its way until it has run out.
fn insert_approval(
    connection: &Connection,
    seq: i64,
    approval: &ApprovalRow,
) -> Result<(), StoreError> {
    connection.execute(
        "INSERT INTO approvals (run, approver, key_id, level, statement, expires_at, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (run, approver) DO UPDATE
           SET key_id = ?3, level = ?4, statement = ?5, expires_at = ?6, created_at = ?7
           WHERE used_at IS NULL AND approvals.expires_at <= ?7",
        params![
            seq,
            approval.approver,
            approval.key_id,
            approval.level,
            approval.statement,
            approval.expires_at.unix_ms(),
            approval.created_at.unix_ms(),
        ],
    )?;
    Ok(())
}

/// Returns everyone whose approval counts at `at`, in alphabetical order.
fn live_approvers(
    connection: &Connection,
    seq: i64,
    at: Timestamp,
) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT approver FROM approvals WHERE run = ? AND used_at IS NULL AND expires_at > ?
         ORDER BY approver",
    )?;
    let rows = statement.query_map(params![seq, at.unix_ms()], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Gives an approved run its contract and its place in the queue.
fn issue(
    connection: &Connection,
    (seq, run): (i64, &RunId),
    issued: &ApprovedContract,
    at: Timestamp,
) -> Result<(), StoreError> {
    connection.execute(
        "UPDATE approvals SET used_at = ? WHERE run = ? AND used_at IS NULL",
        params![at.unix_ms(), seq],
    )?;
    let (pool, requester): (String, String) = connection.query_row(
        "SELECT pool, requested_by FROM runs WHERE seq = ?",
        [seq],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let turn = queue::next_turn(connection, &pool, &requester)?;
    connection
        .execute("UPDATE papers SET contract = ? WHERE run = ?", params![issued.contract, seq])?;
    let approve = StateChange {
        transitions: &[Transition::Approve],
        assigned: "turn = ?, updated_at = ?",
        run: "seq = ?",
    };
    let count = connection
        .prepare_cached(&format!("{} RETURNING event_count", approve.sql()?))?
        .query_row(params![turn, at.unix_ms(), seq], |row| row.get(0))
        .optional()?;
    let count = count.ok_or_else(|| conflict(connection, run))?;
    append_all(connection, (seq, count), (run, &issued.events))
}
