//! Reading what may be large piece by piece, beside the writer: nobody's connection or lock is held
//! between two pieces.

use crate::request_context::keep_cause;
use rusqlite::params;
use warrant_protocol::{RunId, Timestamp};

use super::read::event_row;
use super::rows::EventRow;
use super::{Store, StoreError};

/// Where an export goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportPosition {
    ts: u64,
    run: i64,
    seq: i64,
}

impl ExportPosition {
    /// Returns the position before everything since a moment.
    #[must_use]
    pub const fn since(moment: Timestamp) -> Self {
        Self { ts: moment.unix_ms(), run: -1, seq: -1 }
    }
}

impl Store {
    /// Returns the next events of a run from place `from` on: at least one if there is any, and no
    /// more once they have `most_bytes`.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn events_piece(
        &self,
        run: &RunId,
        from: u64,
        most_bytes: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT events.seq, ts, hash, body FROM events
                 JOIN runs ON runs.seq = events.run WHERE runs.id = ? AND events.seq >= ?
                 ORDER BY events.seq",
            )?;
            let mut rows = statement.query(params![run.as_str(), from.min(i64::MAX as u64)])?;
            let (mut events, mut bytes) = (Vec::new(), 0);
            while bytes < most_bytes
                && let Some(row) = rows.next()?
            {
                let event = event_row(row, 0)?;
                bytes += event.body.len();
                events.push(event);
            }
            Ok(events)
        })
    }

    /// Returns how many bytes the events of a run have, without reading them.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn chain_bytes(&self, run: &RunId) -> Result<u64, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT coalesce(sum(octet_length(body)), 0) FROM events
                 JOIN runs ON runs.seq = events.run WHERE runs.id = ?",
            )?;
            Ok(statement.query_row([run.as_str()], |row| row.get(0))?)
        })
    }

    /// Adds the events after a position to `out`, one JSON object with its `runId` per line, until
    /// it has `most_bytes`. Returns the position after them; nothing when they were the last.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn export_piece(
        &self,
        after: ExportPosition,
        out: &mut Vec<u8>,
        most_bytes: usize,
    ) -> Result<Option<ExportPosition>, StoreError> {
        self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT ts, events.run, events.seq, body, runs.id FROM events
                 CROSS JOIN runs ON runs.seq = events.run
                 WHERE (ts, events.run, events.seq) > (?, ?, ?)
                 ORDER BY ts, events.run, events.seq",
            )?;
            let mut rows = statement.query(params![after.ts, after.run, after.seq])?;
            while let Some(row) = rows.next()? {
                let (run, body) = (row.get_ref(4)?, row.get_ref(3)?);
                let (Ok(run), Ok(body)) = (run.as_str(), body.as_str()) else {
                    return Err(StoreError::Malformed("event"));
                };
                write_line(out, body, run)?;
                if out.len() >= most_bytes {
                    let (ts, run, seq) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    return Ok(Some(ExportPosition { ts, run, seq }));
                }
            }
            Ok(None)
        })
    }
}

/// Writes an event with the run it belongs to. Events are kept as text and stay it.
fn write_line(out: &mut Vec<u8>, body: &str, run: &str) -> Result<(), StoreError> {
    let members = body.strip_prefix('{').ok_or(StoreError::Malformed("event"))?;
    if body.contains("\"runId\"") {
        // What a runner called by the same name must not stand beside ours.
        let mut line: serde_json::Map<String, serde_json::Value> = serde_json::from_str(body)
            .map_err(|error| keep_cause(&error, StoreError::Malformed("event")))?;
        line.insert("runId".to_owned(), run.into());
        out.extend_from_slice(serde_json::Value::Object(line).to_string().as_bytes());
    } else {
        out.extend_from_slice(b"{\"runId\":\"");
        out.extend_from_slice(run.as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(members.as_bytes());
    }
    out.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_run_once() {
        let line = |body: &str| {
            let mut out = Vec::new();
            write_line(&mut out, body, "run_a").unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(line(r#"{"seq":0}"#), "{\"runId\":\"run_a\",\"seq\":0}\n");
        assert_eq!(line(r#"{"runId":"x","seq":0}"#), "{\"runId\":\"run_a\",\"seq\":0}\n");
    }
}
