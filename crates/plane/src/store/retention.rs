//! Retention: runs that ended long ago, and blobs that nothing names any more. What a run moved may
//! go before its evidence does: the receipt still says what it was, by digest.
//!
//! What was stored within the grace is never touched, however unreferenced it looks: somebody
//! may be uploading it for a run that does not exist yet. Storing a blob again begins its grace
//! anew.

use std::collections::HashSet;
use std::fs;
use std::io::Read as _;

use rusqlite::{Connection, params};
use serde_json::Value;
use warrant_protocol::{Digest, RunState, Timestamp};

use super::blobs::file_of;
use super::states::in_states;
use super::{Durability, Store, StoreError};

/// How long a blob is kept after it was stored, whatever names it.
pub const BLOB_GRACE_MS: u64 = 24 * 3_600_000;

/// How much of an envelope is read to find what it names.
const MAX_ENVELOPE_BYTES: u64 = 4 * 1024 * 1024;

/// How many blobs go in one transaction.
const BATCH: usize = 256;

/// Which runs still hold on to what they name: those under way, and those that ended not long ago.
fn still_kept() -> String {
    let is_live = in_states(|state| !state.is_terminal());
    format!("WHERE (runs.updated_at >= ?1 OR {is_live})")
}

/// What a sweep removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs with their chains and receipts.
    pub runs: u64,
    /// Blobs.
    pub blobs: u64,
}

impl Store {
    /// Removes runs that ended before `ended_before`, with chain, receipt and approvals.
    ///
    /// # Errors
    /// [`StoreError`] when the store failed; then nothing was removed.
    pub fn sweep_runs(&self, ended_before: Timestamp) -> Result<u64, StoreError> {
        self.write(Durability::Now, move |connection| {
            let has_ended = in_states(RunState::is_terminal);
            connection.execute(
                &format!(
                    "INSERT INTO sweeping (run) SELECT seq FROM runs WHERE updated_at < ?
                     AND {has_ended}"
                ),
                [ended_before.unix_ms()],
            )?;
            for table in ["events", "receipts", "approvals", "papers", "blob_runs"] {
                let sql = format!("DELETE FROM {table} WHERE run IN (SELECT run FROM sweeping)");
                connection.execute(&sql, [])?;
            }
            let removed = connection
                .execute("DELETE FROM runs WHERE seq IN (SELECT run FROM sweeping)", [])?;
            connection.execute("DELETE FROM sweeping", [])?;
            Ok(removed as u64)
        })
    }

    /// Removes blobs that were stored before `stored_before` and that nothing names any more. What
    /// a run names that ended before `ended_before` does not count.
    ///
    /// # Errors
    /// [`StoreError`] when the store failed; what was removed until then stays removed.
    pub fn sweep_blobs(
        &self,
        stored_before: Timestamp,
        ended_before: Timestamp,
    ) -> Result<u64, StoreError> {
        let named = self.named_blobs(ended_before)?;
        let old: Vec<Digest> = self.read_aside(|connection| {
            let mut statement =
                connection.prepare("SELECT digest FROM blobs WHERE created_at < ?")?;
            let rows = statement
                .query_map([stored_before.unix_ms()], |row| super::steps::digest_column(row, 0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let unnamed: Vec<Digest> =
            old.into_iter().filter(|digest| !named.contains(digest)).collect();
        let mut removed = 0;
        for batch in unnamed.chunks(BATCH) {
            let (batch, dir) = (batch.to_vec(), self.blobs.clone());
            removed += self.write(Durability::Now, move |connection| {
                let mut removed = 0;
                for digest in batch {
                    // Whoever stored or named it since the look keeps it.
                    let gone = connection.execute(
                        "DELETE FROM blobs WHERE digest = ? AND created_at < ?",
                        params![digest.as_bytes(), stored_before.unix_ms()],
                    )?;
                    if gone == 1 {
                        connection.execute(
                            "DELETE FROM blob_uploaders WHERE digest = ?",
                            [digest.as_bytes()],
                        )?;
                        // Small ones have no file; a file that stays is only space.
                        let _ = fs::remove_file(file_of(&dir, &digest));
                    }
                    removed += gone as u64;
                }
                Ok(removed)
            })?;
        }
        Ok(removed)
    }

    /// Every blob that a run, a receipt, a live chain or an envelope names, except of runs that
    /// ended before `ended_before`.
    fn named_blobs(&self, ended_before: Timestamp) -> Result<HashSet<Digest>, StoreError> {
        let ended_before = ended_before.unix_ms();
        let (mut named, envelopes) = self.read_aside(|connection| {
            let mut named = HashSet::new();
            let still_kept = still_kept();
            let has_chain = in_states(|state| state.is_held() || state == RunState::Queued);
            for query in [
                "SELECT request ->> '$.workspace.bundleHash' FROM runs JOIN papers ON papers.run = runs.seq",
                "SELECT request ->> '$.workspace.dirtyDiffHash' FROM runs JOIN papers ON papers.run = runs.seq",
                "SELECT file.value ->> 'hash'
                 FROM runs JOIN papers ON papers.run = runs.seq,
                 json_each(request, '$.workspace.untrackedFiles') AS file",
                "SELECT kept.value FROM runs JOIN receipts ON receipts.run = runs.seq,
                 json_each(receipts.body, '$.workspaceOut.artifactHashes') AS kept",
                "SELECT kept.value ->> 'contentHash'
                 FROM runs JOIN receipts ON receipts.run = runs.seq,
                 json_each(receipts.body, '$.boundaryDisclosures') AS kept",
            ] {
                collect(connection, &mut named, &format!("{query} {still_kept}"), ended_before)?;
            }
            for member in ["hash", "contentHash"] {
                let sql = format!(
                    "SELECT body ->> '$.event.{member}' FROM events JOIN runs ON runs.seq = events.run
                     {still_kept} AND {has_chain}"
                );
                collect(connection, &mut named, &sql, ended_before)?;
            }
            let mut envelopes = HashSet::new();
            let query = "SELECT request ->> '$.continuation.envelopeHash'
                         FROM runs JOIN papers ON papers.run = runs.seq";
            let sql = format!("{query} {still_kept}");
            collect(connection, &mut envelopes, &sql, ended_before)?;
            Ok((named, envelopes))
        })?;
        for envelope in envelopes {
            named.insert(envelope);
            if let Some(reader) = self.blob(&envelope)? {
                let mut content = Vec::new();
                reader.take(MAX_ENVELOPE_BYTES).read_to_end(&mut content)?;
                if let Ok(value) = serde_json::from_slice(&content) {
                    digests_in(&value, &mut named);
                }
            }
        }
        Ok(named)
    }
}

fn collect(
    connection: &Connection,
    into: &mut HashSet<Digest>,
    sql: &str,
    ended_before: u64,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([ended_before])?;
    while let Some(row) = rows.next()? {
        let text: Option<String> = row.get(0)?;
        into.extend(text.and_then(|text| text.parse::<Digest>().ok()));
    }
    Ok(())
}

fn digests_in(value: &Value, into: &mut HashSet<Digest>) {
    match value {
        Value::String(text) => into.extend(text.parse::<Digest>().ok()),
        Value::Array(items) => items.iter().for_each(|item| digests_in(item, into)),
        Value::Object(members) => members.values().for_each(|member| digests_in(member, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
