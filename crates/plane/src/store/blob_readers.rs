//! Who may read a blob: whoever stored it, and whoever may read a run that names it.

use rusqlite::{Connection, params};
use warrant_protocol::{Digest, RunId, RunState};

use super::read::id_column;
use super::states::in_state;
use super::{Durability, Store, StoreError};

impl Store {
    /// Keeps that a principal (`human:alice`) stored a blob.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn add_blob_uploader(&self, digest: &Digest, principal: &str) -> Result<(), StoreError> {
        let (digest, principal) = (*digest, principal.to_owned());
        self.write(Durability::WithNext, move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO blob_uploaders (principal, digest) VALUES (?, ?)
                     ON CONFLICT DO NOTHING",
                )?
                .execute(params![principal, digest.as_bytes()])?;
            Ok(())
        })
    }

    /// Returns whether a principal stored a blob, asked for a run that names it, or approved one.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn may_read_blob(&self, digest: &Digest, principal: &str) -> Result<bool, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT EXISTS (
                   SELECT 1 FROM blob_uploaders WHERE principal = ?2 AND digest = ?1)
                 OR EXISTS (
                   SELECT 1 FROM blob_runs JOIN runs ON runs.seq = blob_runs.run
                   WHERE digest = ?1 AND (requested_by = ?2 OR EXISTS (
                     SELECT 1 FROM approvals
                     WHERE approvals.run = runs.seq AND approver = ?2)))",
            )?;
            Ok(statement.query_row(params![digest.as_bytes(), principal], |row| row.get(0))?)
        })
    }

    /// Returns whether somebody (`human:alice`) approved a run, whatever came of it.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn has_approved(&self, run: &RunId, approver: &str) -> Result<bool, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT 1 FROM approvals JOIN runs ON runs.seq = approvals.run
                 WHERE approver = ? AND runs.id = ?",
            )?;
            Ok(statement.exists(params![approver, run.as_str()])?)
        })
    }

    /// Returns the runs that wait for people and name a blob.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn awaiting_with_blob(&self, digest: &Digest) -> Result<Vec<RunId>, StoreError> {
        self.read(|connection| {
            let is_awaiting = in_state(RunState::AwaitingApproval);
            let mut statement = connection.prepare_cached(&format!(
                "SELECT id FROM blob_runs JOIN runs ON runs.seq = blob_runs.run
                 WHERE digest = ? AND {is_awaiting}",
            ))?;
            let rows = statement.query_map([digest.as_bytes()], |row| id_column(row, 0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Notes which blobs a new run names. Only those count that its requester stored.
///
/// SECURITY: else whoever knows a digest reads the blob by asking for a run that names it.
pub(super) fn note_workspace(
    connection: &Connection,
    seq: i64,
    (request, requester): (&str, &str),
) -> Result<(), StoreError> {
    let has_stored = connection
        .prepare_cached("SELECT 1 FROM blob_uploaders WHERE principal = ?")?
        .exists([requester])?;
    if has_stored {
        connection
            .prepare_cached(
                "INSERT OR IGNORE INTO blob_runs (digest, run)
                 SELECT unhex(named.value), ?1 FROM json_tree(?2, '$.workspace') AS named
                 WHERE named.type = 'text' AND length(named.value) = 64 AND EXISTS (
                   SELECT 1 FROM blob_uploaders
                   WHERE principal = ?3 AND digest = unhex(named.value))",
            )?
            .execute(params![seq, request, requester])?;
    }
    Ok(())
}

/// Notes which blobs the receipt of a run names.
pub(super) fn note_artifacts(
    connection: &Connection,
    seq: i64,
    receipt: &str,
) -> Result<(), StoreError> {
    // Most runs have none, and to look costs less than to parse.
    if !receipt.contains("\"artifactHashes\":[\"") {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO blob_runs (digest, run)
             SELECT unhex(kept.value), ?1
             FROM json_each(?2, '$.workspaceOut.artifactHashes') AS kept
             WHERE unhex(kept.value) IS NOT NULL",
        )?
        .execute(params![seq, receipt])?;
    Ok(())
}
