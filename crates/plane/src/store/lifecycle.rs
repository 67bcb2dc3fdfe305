//! The operations that move a run from one state to the next, each one transaction.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use warrant_protocol::port::LeaseKey;
use warrant_protocol::{Digest, RunId, RunState, Timestamp};

use super::blobs::{self, NewBlob};
use super::commit::Rider;
use super::entering::insert_run;
use super::queue;
use super::snapshots::tick;
use super::{Durability, Store, StoreError};

/// A request as it enters the store.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its name.
    pub id: RunId,
    /// Where it is to run.
    pub pool: String,
    /// Which agent.
    pub agent_kind: String,
    /// Which tier was asked for.
    pub isolation: Option<String>,
    /// The task.
    pub prompt: String,
    /// Who asks, as `human:alice`.
    pub requested_by: String,
    /// The digest of the canonical request.
    pub request_hash: Digest,
    /// The digest of the policy snapshot it was judged by.
    pub policy_hash: Digest,
    /// The whole judgment as JSON text.
    pub judgment: String,
    /// The request as canonical JSON text.
    pub request: String,
    /// When it came.
    pub created_at: Timestamp,
    /// The submitter's own name for this submission, if it gave one.
    pub idempotency_key: Option<String>,
    /// Higher goes first; 0 is usual.
    pub priority: i32,
    /// Whether its workspace lies on this machine and never travels, so that no runner of a fleet
    /// may have it.
    pub is_local: bool,
    /// How it enters.
    pub entry: Entry,
}

/// How a run enters the store: the decision's consequence.
#[derive(Debug, Clone)]
pub enum Entry {
    /// Allowed: it waits for a runner.
    Queued {
        /// The signed contract as JSON text.
        contract: String,
        /// The first events of its chain.
        events: Vec<EventRow>,
    },
    /// Allowed, and leased to the runner of this process at once.
    Leased {
        /// The signed contract as JSON text.
        contract: String,
        /// The first events of its chain.
        events: Vec<EventRow>,
        /// Who holds it, for the first time.
        owner: Owner,
    },
    /// People are asked first.
    AwaitingApproval {
        /// Until when.
        deadline: Timestamp,
    },
    /// Denied: its receipt is written at once.
    Sealed(Sealing),
}

/// How a run ends where no runner can sign.
#[derive(Debug, Clone)]
pub struct Sealing {
    /// The state it ends in.
    pub state: RunState,
    /// The contract as JSON text, unless the run has one already.
    pub contract: Option<String>,
    /// The events that are added.
    pub events: Vec<EventRow>,
    /// The digest of the receipt.
    pub receipt_hash: Digest,
    /// The receipt as JSON text.
    pub receipt: String,
    /// When.
    pub at: Timestamp,
}

/// One event of a chain, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// Its place.
    pub seq: u64,
    /// Its time.
    pub ts: Timestamp,
    /// Its hash.
    pub hash: Digest,
    /// The whole chained event as JSON text.
    pub body: String,
}

/// Whether a submission was new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It was kept.
    New,
    /// The same submitter's key names this run already.
    Repeated(RunId),
}

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name under which the holder's life can be checked, on one machine.
    pub liveness: Option<String>,
    /// The runner.
    pub runner: String,
    /// When it was given.
    pub at: Timestamp,
    /// Until when the lease lasts.
    pub lease_until: Timestamp,
}

/// How many events a chain has after an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// How many.
    pub event_count: u64,
}

/// A run's end as its runner tells it, checked and countersigned.
#[derive(Debug)]
pub struct Completion {
    /// The state it ends in.
    pub state: RunState,
    /// The events that were not yet appended.
    pub events: Vec<EventRow>,
    /// The digest of the receipt.
    pub receipt_hash: Digest,
    /// The countersigned receipt as JSON text.
    pub receipt: String,
    /// The blobs it names.
    pub blobs: Vec<NewBlob>,
    /// When.
    pub at: Timestamp,
}

/// One signed approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRow {
    /// Who approved.
    pub approver: String,
    /// With which key.
    pub key_id: String,
    /// At which level.
    pub level: u8,
    /// The signed statement as JSON text.
    pub statement: String,
    /// Until when it counts.
    pub expires_at: Timestamp,
    /// When it was given.
    pub created_at: Timestamp,
}

impl Store {
    /// Keeps a new run, judged.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn submit(&self, run: NewRun, durability: Durability) -> Result<Submitted, StoreError> {
        self.write(durability, move |connection| {
            if let Some(earlier) = run.idempotency_key.as_deref() {
                let earlier = run_of_key(connection, earlier)?;
                if let Some(id) = earlier {
                    return Ok(Submitted::Repeated(id));
                }
            }
            insert_run(connection, &run)?;
            Ok(Submitted::New)
        })
    }

    /// Keeps a new run together with whatever comes next: its lease and its start.
    ///
    /// A process that is killed before that leaves no trace of it, and nothing has happened.
    pub fn submit_later(&self, run: NewRun) {
        self.core.ride([Rider::Run(Box::new(run))]);
    }

    /// Adds an approval to a run that waits for one; a second by the same person replaces nothing.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the run does not wait, or the same person approved before.
    pub fn approve(&self, run: &RunId, approval: ApprovalRow) -> Result<(), StoreError> {
        let run = run.clone();
        self.write(Durability::Now, move |connection| {
            let seq = in_state(connection, &run, &[RunState::AwaitingApproval])?;
            let added = connection.execute(
                "INSERT INTO approvals
                   (run, approver, key_id, level, statement, expires_at, created_at)
                 VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, approver) DO NOTHING",
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
            if added == 0 { Err(conflict(connection, &run)) } else { Ok(()) }
        })
    }

    /// Gives an approved run its contract; its approvals are used up by that.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the run does not wait any more.
    pub fn issue(
        &self,
        run: &RunId,
        (contract, events): (String, Vec<EventRow>),
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let run = run.clone();
        self.write(Durability::Now, move |connection| {
            let seq = in_state(connection, &run, &[RunState::AwaitingApproval])?;
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
                .execute("UPDATE papers SET contract = ? WHERE run = ?", params![contract, seq])?;
            let count = connection
                .prepare_cached(
                    "UPDATE runs SET state = 'queued', turn = ?, updated_at = ? WHERE seq = ?
                     RETURNING event_count",
                )?
                .query_row(params![turn, at.unix_ms(), seq], |row| row.get(0))?;
            append_all(connection, (seq, count), (&run, &events))
        })
    }

    /// Leases a queued run to a runner, with the event that says so.
    ///
    /// `epoch` is the number of the lease before; the new one is one more.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not queued or another lease came in between.
    pub fn claim(
        &self,
        run: &RunId,
        epoch: u64,
        (owner, events): (Owner, Vec<EventRow>),
    ) -> Result<(), StoreError> {
        let key = LeaseKey { run: run.clone(), epoch: epoch + 1 };
        // Nothing has happened yet: if power is cut now, nothing is missed.
        self.write(Durability::WithNext, move |connection| {
            let place = take(connection, &key, (&owner, RunState::Leased))?;
            append_all(connection, place, (&key.run, &events))
        })
    }

    /// Leases a run that this process submitted for itself, for the first time: it enters the
    /// store leased, unless it is there already.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not queued or another lease came in between.
    pub fn claim_own(&self, run: &RunId, lease: (Owner, Vec<EventRow>)) -> Result<(), StoreError> {
        self.core.lease_rider(run, lease).or_else(|lease| self.claim(run, 0, lease))
    }

    /// Leases a queued run to a runner that will not say when it starts: the lease is the start.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not queued or another lease came in between.
    pub fn claim_started(
        &self,
        lease: &LeaseKey,
        owner: Owner,
        build: impl FnOnce(u64) -> Result<Vec<EventRow>, StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let key = lease.clone();
        self.write(Durability::Now, move |connection| {
            let place = take(connection, &key, (&owner, RunState::Running))?;
            let events = build(tick(connection, "starts")?)?;
            append_all(connection, place, (&key.run, &events))
        })
    }

    /// Extends a lease; returns who asked for a stop, if somebody did.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when another epoch holds the run: stop.
    pub fn renew(
        &self,
        run: &RunId,
        epoch: u64,
        until: Timestamp,
    ) -> Result<Option<String>, StoreError> {
        let run = run.clone();
        self.write(Durability::WithNext, move |connection| {
            let stop: Option<Option<String>> = connection
                .prepare_cached(
                    "UPDATE runs SET lease_until = max(?, lease_until)
                     WHERE id = ? AND epoch = ? AND state IN ('leased', 'running', 'stopping')
                     RETURNING stop_by",
                )?
                .query_row(params![until.unix_ms(), run.as_str(), epoch], |row| row.get(0))
                .optional()?;
            stop.ok_or_else(|| conflict(connection, &run))
        })
    }

    /// Asks for a running run to be stopped; the first who asks is remembered.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not running.
    pub fn request_stop(&self, run: &RunId, by: &str, at: Timestamp) -> Result<(), StoreError> {
        let (run, by) = (run.clone(), by.to_owned());
        self.write(Durability::Now, move |connection| {
            let changed = connection.execute(
                "UPDATE runs SET state = 'stopping', stop_by = coalesce(stop_by, ?),
                   stop_at = coalesce(stop_at, ?), updated_at = ?
                 WHERE id = ? AND state IN ('running', 'stopping')",
                params![by, at.unix_ms(), at.unix_ms(), run.as_str()],
            )?;
            if changed == 0 { Err(conflict(connection, &run)) } else { Ok(()) }
        })
    }

    /// Puts a run whose lease ended before its start back into the queue, with the event that
    /// says so.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it was started or another epoch holds it.
    pub fn requeue(
        &self,
        lease: &LeaseKey,
        at: Timestamp,
        events: Vec<EventRow>,
    ) -> Result<(), StoreError> {
        let LeaseKey { run, epoch } = lease.clone();
        self.write(Durability::Now, move |connection| {
            let place = connection
                .prepare_cached(
                    "UPDATE runs SET state = 'queued', owner = NULL, runner = NULL,
                       lease_until = NULL, updated_at = ?
                     WHERE id = ? AND epoch = ? AND state = 'leased'
                     RETURNING seq, event_count",
                )?
                .query_row(params![at.unix_ms(), run.as_str(), epoch], place_row)
                .optional()?;
            let place = place.ok_or_else(|| conflict(connection, &run))?;
            append_all(connection, place, (&run, &events))
        })
    }

    /// Gives every lease that came over the network until `until` at least: while the plane was
    /// down nobody could renew.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn prolong_leases(&self, until: Timestamp) -> Result<(), StoreError> {
        self.write(Durability::Now, move |connection| {
            connection.execute(
                "UPDATE runs SET lease_until = max(lease_until, ?)
                 WHERE owner IS NULL AND state IN ('leased', 'running', 'stopping')",
                [until.unix_ms()],
            )?;
            Ok(())
        })
    }

    /// Puts a leased run that was never started back into the queue.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it was started or another epoch holds it.
    pub fn hand_back(&self, run: &RunId, epoch: u64, at: Timestamp) -> Result<(), StoreError> {
        let run = run.clone();
        self.write(Durability::Now, move |connection| {
            let changed = connection.execute(
                "UPDATE runs SET state = 'queued', owner = NULL, lease_until = NULL, updated_at = ?
                 WHERE id = ? AND epoch = ? AND state = 'leased'",
                params![at.unix_ms(), run.as_str(), epoch],
            )?;
            if changed == 0 { Err(conflict(connection, &run)) } else { Ok(()) }
        })
    }

    /// Records that a leased run starts now. Durable before it returns: the write-ahead intent.
    ///
    /// `build` makes the events from the next tick of `clock`; both are part of the transaction.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when another epoch holds it or it was started before.
    pub fn start(
        &self,
        lease: &LeaseKey,
        at: Timestamp,
        build: impl FnOnce(u64) -> Result<Vec<EventRow>, StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let LeaseKey { run, epoch } = lease.clone();
        self.write(Durability::Now, move |connection| {
            let place = connection
                .prepare_cached(
                    "UPDATE runs SET state = 'running', updated_at = ?
                     WHERE id = ? AND epoch = ? AND state = 'leased'
                     RETURNING seq, event_count",
                )?
                .query_row(params![at.unix_ms(), run.as_str(), epoch], place_row)
                .optional()?;
            let place = place.ok_or_else(|| conflict(connection, &run))?;
            let events = build(tick(connection, "starts")?)?;
            append_all(connection, place, (&run, &events))
        })
    }

    /// Appends events to the chain of a run that a lease holds. The same batch again is no change.
    ///
    /// # Errors
    /// [`StoreError::Fork`] when other events stand there, [`StoreError::Conflict`] when the run
    /// is not held by `epoch`.
    pub fn append(
        &self,
        run: &RunId,
        epoch: u64,
        events: Vec<EventRow>,
    ) -> Result<Appended, StoreError> {
        self.append_with(Durability::WithNext, &LeaseKey { run: run.clone(), epoch }, events)
    }

    /// Appends events like [`Store::append`], as durable as the caller needs.
    ///
    /// # Errors
    /// Those of [`Store::append`].
    pub fn append_with(
        &self,
        durability: Durability,
        lease: &LeaseKey,
        events: Vec<EventRow>,
    ) -> Result<Appended, StoreError> {
        let LeaseKey { run, epoch } = lease.clone();
        self.write(durability, move |connection| {
            let place = held(connection, &run, epoch)?;
            append_all(connection, place, (&run, &events))?;
            let last = events.last().map_or(0, |last| last.seq + 1);
            Ok(Appended { event_count: place.1.max(last) })
        })
    }

    /// Ends a run with its receipt. The same receipt again is no change.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the run is not held by `epoch` or has another receipt.
    pub fn complete(
        &self,
        run: &RunId,
        epoch: u64,
        completion: Completion,
    ) -> Result<(), StoreError> {
        let run = run.clone();
        self.write(Durability::Now, move |connection| {
            let place = match held(connection, &run, epoch) {
                Err(StoreError::Conflict { .. })
                    if has_receipt(connection, &run, &completion.receipt_hash)? =>
                {
                    return Ok(());
                }
                held => held?,
            };
            blobs::insert_all(connection, &completion.blobs, completion.at)?;
            append_all(connection, place, (&run, &completion.events))?;
            insert_receipt(
                connection,
                place.0,
                (&completion.receipt_hash, &completion.receipt),
                completion.at,
            )?;
            end(connection, place.0, completion.state, completion.at)
        })
    }

    /// Ends a run for which no runner can sign: refused, expired, cancelled or lost.
    ///
    /// `epoch` fences against a runner that is still at it: the caller saw this epoch.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the run ended meanwhile or another epoch holds it.
    pub fn seal(&self, run: &RunId, epoch: u64, sealing: Sealing) -> Result<(), StoreError> {
        let run = run.clone();
        self.write(Durability::Now, move |connection| {
            let place = connection
                .prepare_cached(
                    "SELECT seq, event_count FROM runs WHERE id = ? AND epoch = ?
                     AND state IN ('awaiting_approval', 'queued', 'leased', 'running', 'stopping')",
                )?
                .query_row(params![run.as_str(), epoch], place_row)
                .optional()?;
            let place = place.ok_or_else(|| conflict(connection, &run))?;
            seal_run(connection, place, &run, &sealing)
        })
    }
}

fn seal_run(
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
    end(connection, seq, sealing.state, sealing.at)
}

/// A run's place in the order of arrival, and how many events its chain has.
type Place = (i64, u64);

fn place_row(row: &Row<'_>) -> rusqlite::Result<Place> {
    Ok((row.get(0)?, row.get(1)?))
}

/// Gives a queued run to a runner. `lease` carries the number of the new lease.
fn take(
    connection: &Connection,
    lease: &LeaseKey,
    (owner, state): (&Owner, RunState),
) -> Result<Place, StoreError> {
    let LeaseKey { run, epoch } = lease;
    let taken = connection
        .prepare_cached(
            "UPDATE runs SET state = ?7, epoch = ?5, owner = ?1, runner = ?2,
               lease_until = ?3, updated_at = ?4
             WHERE id = ?6 AND epoch = ?5 - 1 AND state = 'queued'
             RETURNING seq, event_count, pool, turn",
        )?
        .query_row(
            params![
                owner.liveness,
                owner.runner,
                owner.lease_until.unix_ms(),
                owner.at.unix_ms(),
                epoch,
                run.as_str(),
                state.as_str(),
            ],
            |row| Ok((place_row(row)?, row.get::<_, String>(2)?, row.get::<_, i64>(3)?)),
        )
        .optional()?;
    let (place, pool, turn) = taken.ok_or_else(|| conflict(connection, run))?;
    queue::advance(connection, &pool, turn)?;
    Ok(place)
}

fn append_all(
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
    Ok(())
}

fn end(
    connection: &Connection,
    seq: i64,
    state: RunState,
    at: Timestamp,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "UPDATE runs SET state = ?, updated_at = ?, owner = NULL, lease_until = NULL
             WHERE seq = ?",
        )?
        .execute(params![state.as_str(), at.unix_ms(), seq])?;
    Ok(())
}

fn run_of_key(connection: &Connection, key: &str) -> Result<Option<RunId>, StoreError> {
    let id: Option<String> = connection
        .prepare_cached("SELECT id FROM runs WHERE idempotency = ?")?
        .query_row([key], |row| row.get(0))
        .optional()?;
    id.map(|id| id.parse().map_err(|_| StoreError::Malformed("run id"))).transpose()
}

fn has_receipt(connection: &Connection, run: &RunId, hash: &Digest) -> Result<bool, StoreError> {
    let found: Option<i64> = connection
        .prepare_cached(
            "SELECT 1 FROM runs JOIN receipts ON receipts.run = runs.seq
             WHERE runs.id = ? AND receipts.hash = ?",
        )?
        .query_row(params![run.as_str(), hash.as_bytes()], |row| row.get(0))
        .optional()?;
    Ok(found.is_some())
}

fn in_state(connection: &Connection, run: &RunId, states: &[RunState]) -> Result<i64, StoreError> {
    let (seq, state): (i64, String) = connection
        .prepare_cached("SELECT seq, state FROM runs WHERE id = ?")?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .ok_or_else(|| StoreError::UnknownRun(run.to_string()))?;
    if states.iter().any(|wanted| wanted.as_str() == state) {
        Ok(seq)
    } else {
        Err(StoreError::Conflict { run: run.to_string(), state })
    }
}

fn held(connection: &Connection, run: &RunId, epoch: u64) -> Result<Place, StoreError> {
    let place = connection
        .prepare_cached(
            "SELECT seq, event_count FROM runs WHERE id = ? AND epoch = ?
             AND state IN ('leased', 'running', 'stopping')",
        )?
        .query_row(params![run.as_str(), epoch], place_row)
        .optional()?;
    place.ok_or_else(|| conflict(connection, run))
}

fn conflict(connection: &Connection, run: &RunId) -> StoreError {
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
