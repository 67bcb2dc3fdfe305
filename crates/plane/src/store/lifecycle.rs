//! The operations that move a run from one state to the next, each one transaction.

use rusqlite::{OptionalExtension as _, params};
use warrant_protocol::port::LeaseKey;
use warrant_protocol::{RunId, RunState, Timestamp, Transition};

use super::commit::Rider;
use super::entering::insert_run;
use super::rows::{Appended, Completion, EventRow, NewRun, Owner, Sealing, Submitted};
use super::snapshots::tick;
use super::states::{StateChange, in_states};
use super::steps::{
    append_all, conflict, end, has_receipt, held, insert_receipt, place_row, run_of_key, seal_run,
    take,
};
use super::{Durability, Store, StoreError, blobs};

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
            let place = take(connection, &key, (&owner, &[Transition::Claim]))?;
            append_all(connection, place, (&key.run, &events))
        })
    }

    /// Leases a run that this process submitted for itself, for the first time: it enters the
    /// store leased, unless it is there already.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not queued or another lease came in between.
    pub fn claim_own(&self, run: &RunId, lease: (Owner, Vec<EventRow>)) -> Result<(), StoreError> {
        self.core.lease_rider(run, lease).or_else(|lease| self.claim(run, 0, *lease))
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
            let place = take(connection, &key, (&owner, &[Transition::Claim, Transition::Start]))?;
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
            let is_held = in_states(RunState::is_held);
            let stop: Option<Option<String>> = connection
                .prepare_cached(&format!(
                    "UPDATE runs SET lease_until = max(?, lease_until)
                     WHERE id = ? AND epoch = ? AND {is_held} RETURNING stop_by"
                ))?
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
            let stop = StateChange {
                transitions: &[Transition::Stop],
                assigned: "stop_by = coalesce(stop_by, ?), stop_at = coalesce(stop_at, ?),
                  updated_at = ?",
                run: "id = ?",
            };
            let changed = connection
                .execute(&stop.sql()?, params![by, at.unix_ms(), at.unix_ms(), run.as_str()])?;
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
            let requeue = StateChange {
                transitions: &[Transition::Requeue],
                assigned: "owner = NULL, runner = NULL, lease_until = NULL, updated_at = ?",
                run: "id = ? AND epoch = ?",
            };
            let place = connection
                .prepare_cached(&format!("{} RETURNING seq, event_count", requeue.sql()?))?
                .query_row(params![at.unix_ms(), run.as_str(), epoch], place_row)
                .optional()?;
            let place = place.ok_or_else(|| conflict(connection, &run))?;
            append_all(connection, place, (&run, &events))
        })
    }

    /// Puts a leased run that was never started back into the queue.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it was started or another epoch holds it.
    pub fn hand_back(&self, run: &RunId, epoch: u64, at: Timestamp) -> Result<(), StoreError> {
        let run = run.clone();
        self.write(Durability::Now, move |connection| {
            let requeue = StateChange {
                transitions: &[Transition::Requeue],
                assigned: "owner = NULL, lease_until = NULL, updated_at = ?",
                run: "id = ? AND epoch = ?",
            };
            let changed =
                connection.execute(&requeue.sql()?, params![at.unix_ms(), run.as_str(), epoch])?;
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
            let start = StateChange {
                transitions: &[Transition::Start],
                assigned: "updated_at = ?",
                run: "id = ? AND epoch = ?",
            };
            let place = connection
                .prepare_cached(&format!("{} RETURNING seq, event_count", start.sql()?))?
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
            end(connection, (place.0, &run), completion.state, completion.at)
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
            let is_live = in_states(|state| !state.is_terminal());
            let place = connection
                .prepare_cached(&format!(
                    "SELECT seq, event_count FROM runs WHERE id = ? AND epoch = ? AND {is_live}"
                ))?
                .query_row(params![run.as_str(), epoch], place_row)
                .optional()?;
            let place = place.ok_or_else(|| conflict(connection, &run))?;
            seal_run(connection, place, &run, &sealing)
        })
    }
}
