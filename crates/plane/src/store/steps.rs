//! The steps that operations of the store share: each is a part of somebody's transaction.

use crate::request_context::keep_cause;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use warrant_protocol::port::LeaseKey;
use warrant_protocol::{Digest, RunId, RunState, Timestamp, Transition};

use super::blob_readers::note_artifacts;
use super::rows::{EventRow, Owner, Sealing};
use super::states::{StateChange, in_states};
use super::{StoreError, queue};

pub(super) fn seal_run(
    connection: &Connection,
    (seq, count): Place,
    run: &RunId,
    sealing: &Sealing,
) -> Result<(), StoreError> {
    if let Some(contract) = &sealing.contract {
        connection
            .prepare_cached("UPDATE papers SET contract = ? WHERE run = ?")?
            .execute(params![contract, seq])?;
    }
    append_all(connection, (seq, count), (run, &sealing.events))?;
    insert_receipt(connection, seq, (&sealing.receipt_hash, &sealing.receipt), sealing.at)?;
    end(connection, (seq, run), sealing.state, sealing.at)
}

/// A run's place in the order of arrival, and how many events its chain has.
pub(super) type Place = (i64, u64);

pub(super) fn place_row(row: &Row<'_>) -> rusqlite::Result<Place> {
    Ok((row.get(0)?, row.get(1)?))
}

/// Gives a queued run to a runner. `lease` carries the number of the new lease.
pub(super) fn take(
    connection: &Connection,
    lease: &LeaseKey,
    (owner, transitions): (&Owner, &[Transition]),
) -> Result<Place, StoreError> {
    let LeaseKey { run, epoch } = lease;
    let taking = StateChange {
        transitions,
        assigned: "epoch = ?5, owner = ?1, runner = ?2, lease_until = ?3, updated_at = ?4,
          lease_ms = ?7, disconnect_ms = ?8, generation = ?9, process = ?10",
        run: "id = ?6 AND epoch = ?5 - 1",
    };
    let process = owner.process.as_ref().map(serde_json::to_string).transpose();
    let process = process.map_err(|error| keep_cause(&error, StoreError::Malformed("process")))?;
    let taken = connection
        .prepare_cached(&format!("{} RETURNING seq, event_count, pool, turn", taking.sql()?))?
        .query_row(
            params![
                owner.liveness,
                owner.runner,
                owner.lease_until().unix_ms(),
                owner.at.unix_ms(),
                epoch,
                run.as_str(),
                owner.lease_ms,
                owner.disconnect_ms,
                owner.generation,
                process,
            ],
            |row| Ok((place_row(row)?, row.get::<_, String>(2)?, row.get::<_, i64>(3)?)),
        )
        .optional()?;
    let (place, pool, turn) = taken.ok_or_else(|| conflict(connection, run))?;
    queue::advance(connection, &pool, turn)?;
    Ok(place)
}

pub(super) fn append_all(
    connection: &Connection,
    place: Place,
    (run, events): (&RunId, &[EventRow]),
) -> Result<(), StoreError> {
    let count = insert_events(connection, place, (run, events))?;
    if let Some(last) = events.last().filter(|last| last.seq + 1 == count) {
        connection
            .prepare_cached("UPDATE runs SET event_count = ?, head = ? WHERE seq = ?")?
            .execute(params![count, last.hash.as_bytes(), place.0])?;
    }
    Ok(())
}

/// Adds what is not there yet and returns how many events the chain has then.
pub(super) fn insert_events(
    connection: &Connection,
    (run_seq, mut count): Place,
    (run, events): (&RunId, &[EventRow]),
) -> Result<u64, StoreError> {
    let mut insert = connection
        .prepare_cached("INSERT INTO events (run, seq, ts, hash, body) VALUES (?, ?, ?, ?, ?)")?;
    for event in events {
        if event.seq < count {
            let stored: Vec<u8> = connection
                .prepare_cached("SELECT hash FROM events WHERE run = ? AND seq = ?")?
                .query_row(params![run_seq, event.seq], |row| row.get(0))?;
            if stored != event.hash.as_bytes() {
                return Err(StoreError::Fork { run: run.to_string(), seq: event.seq });
            }
            continue;
        }
        if event.seq > count {
            return Err(StoreError::Fork { run: run.to_string(), seq: event.seq });
        }
        let (ts, hash) = (event.ts.unix_ms(), event.hash.as_bytes());
        insert.execute(params![run_seq, event.seq, ts, hash, event.body])?;
        count += 1;
    }
    Ok(count)
}

pub(super) fn insert_receipt(
    connection: &Connection,
    run_seq: i64,
    (hash, body): (&Digest, &str),
    at: Timestamp,
) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT INTO receipts (run, hash, body, created_at) VALUES (?, ?, ?, ?)")?
        .execute(params![run_seq, hash.as_bytes(), body, at.unix_ms()])?;
    note_artifacts(connection, run_seq, body)
}

/// Ends a run in `state`, if the table lets it end there from where it stands.
pub(super) fn end(
    connection: &Connection,
    (seq, run): (i64, &RunId),
    state: RunState,
    at: Timestamp,
) -> Result<(), StoreError> {
    let ending = Transition::ending(state).ok_or(StoreError::Malformed("end of a run"))?;
    let change = StateChange {
        transitions: &[ending],
        assigned: "updated_at = ?, owner = NULL, lease_until = NULL",
        run: "seq = ?",
    };
    let changed = connection.prepare_cached(&change.sql()?)?.execute(params![at.unix_ms(), seq])?;
    if changed == 0 { Err(conflict(connection, run)) } else { Ok(()) }
}

pub(super) fn run_of_key(connection: &Connection, key: &str) -> Result<Option<RunId>, StoreError> {
    let id: Option<String> = connection
        .prepare_cached("SELECT id FROM runs WHERE idempotency = ?")?
        .query_row([key], |row| row.get(0))
        .optional()?;
    id.map(|id| id.parse().map_err(|error| keep_cause(&error, StoreError::Malformed("run id"))))
        .transpose()
}

pub(super) fn has_receipt(
    connection: &Connection,
    run: &RunId,
    hash: &Digest,
) -> Result<bool, StoreError> {
    let found: Option<i64> = connection
        .prepare_cached(
            "SELECT 1 FROM runs JOIN receipts ON receipts.run = runs.seq
             WHERE runs.id = ? AND receipts.hash = ?",
        )?
        .query_row(params![run.as_str(), hash.as_bytes()], |row| row.get(0))
        .optional()?;
    Ok(found.is_some())
}

pub(super) fn held(connection: &Connection, run: &RunId, epoch: u64) -> Result<Place, StoreError> {
    let is_held = in_states(RunState::is_held);
    let place = connection
        .prepare_cached(&format!(
            "SELECT seq, event_count FROM runs WHERE id = ? AND epoch = ? AND {is_held}"
        ))?
        .query_row(params![run.as_str(), epoch], place_row)
        .optional()?;
    place.ok_or_else(|| conflict(connection, run))
}

pub(super) fn conflict(connection: &Connection, run: &RunId) -> StoreError {
    let state = connection
        .query_row("SELECT state FROM runs WHERE id = ?", [run.as_str()], |row| row.get(0))
        .optional();
    match state {
        Ok(Some(state)) => StoreError::Conflict { run: run.to_string(), state },
        Ok(None) => StoreError::UnknownRun(run.to_string()),
        Err(error) => error.into(),
    }
}

pub(super) fn digest_column(row: &Row<'_>, index: usize) -> rusqlite::Result<Digest> {
    Ok(Digest::from_bytes(row.get::<_, [u8; 32]>(index)?))
}

pub(super) fn timestamp_column(row: &Row<'_>, index: usize) -> rusqlite::Result<Timestamp> {
    let unix_ms: u64 = row.get(index)?;
    Timestamp::from_unix_ms(unix_ms).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(
            index,
            rusqlite::types::Type::Integer,
            Box::new(error),
        )
    })
}
