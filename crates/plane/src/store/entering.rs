//! The first write of a run: its row, its papers, its first events, and its receipt if it was
//! denied.

use rusqlite::{Connection, params};
use warrant_protocol::{RunState, Timestamp, Transition};

use super::StoreError;
use super::blob_readers::note_workspace;
use super::queue;
use super::rows::{Entry, EventRow, NewRun, Owner, Sealing};
use super::states::first_state;
use super::steps::{insert_events, insert_receipt};

pub(super) fn insert_run(connection: &Connection, run: &NewRun) -> Result<(), StoreError> {
    let entered = Entered::of(connection, run)?;
    let events = entered.events;
    connection
        .prepare_cached(
            "INSERT INTO runs (id, state, pool, agent_kind, isolation, requested_by,
               request_hash, policy_hash, created_at, updated_at, deadline, idempotency, priority,
               turn, is_local, event_count, head, epoch, owner, runner, lease_until)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
               ?17, ?18, ?19, ?20)",
        )?
        .execute(params![
            run.id.as_str(),
            entered.state.as_str(),
            run.pool,
            run.agent_kind,
            run.isolation,
            run.requested_by,
            run.request_hash.as_bytes(),
            run.policy_hash.as_bytes(),
            run.created_at.unix_ms(),
            entered.deadline.map(Timestamp::unix_ms),
            run.idempotency_key,
            run.priority,
            entered.turn,
            run.is_local,
            events.len(),
            events.last().map(|last| last.hash.as_bytes().as_slice()),
            u64::from(entered.owner.is_some()),
            entered.owner.and_then(|owner| owner.liveness.as_deref()),
            entered.owner.map(|owner| owner.runner.as_str()),
            entered.owner.map(|owner| owner.lease_until().unix_ms()),
        ])?;
    let seq = connection.last_insert_rowid();
    connection
        .prepare_cached(
            "INSERT INTO papers (run, prompt, judgment, request, contract) VALUES (?, ?, ?, ?, ?)",
        )?
        .execute(params![seq, run.prompt, run.judgment, run.request, entered.contract])?;
    insert_events(connection, (seq, 0), (&run.id, events))?;
    if !run.is_local {
        note_workspace(connection, seq, (&run.request, &run.requested_by))?;
    }
    match entered.sealing {
        None => Ok(()),
        Some(Sealing { receipt_hash, receipt, at, .. }) => {
            insert_receipt(connection, seq, (receipt_hash, receipt), *at)
        }
    }
}

/// What is written of a run because of how it enters.
struct Entered<'a> {
    state: RunState,
    contract: Option<&'a str>,
    events: &'a [EventRow],
    /// Its place among those that wait for a runner.
    turn: i64,
    owner: Option<&'a Owner>,
    deadline: Option<Timestamp>,
    sealing: Option<&'a Sealing>,
}

impl<'a> Entered<'a> {
    fn of(connection: &Connection, run: &'a NewRun) -> Result<Self, StoreError> {
        let bare = Self {
            state: first_state(Transition::Ask)?,
            contract: None,
            events: &[],
            turn: 0,
            owner: None,
            deadline: None,
            sealing: None,
        };
        Ok(match &run.entry {
            Entry::Queued { contract, events } => Self {
                state: first_state(Transition::Allow)?,
                contract: Some(contract),
                events,
                turn: queue::next_turn(connection, &run.pool, &run.requested_by)?,
                ..bare
            },
            Entry::Leased { contract, events, owner } => Self {
                state: leased(first_state(Transition::Allow)?)?,
                contract: Some(contract),
                events,
                owner: Some(owner),
                ..bare
            },
            Entry::AwaitingApproval { deadline } => Self { deadline: Some(*deadline), ..bare },
            Entry::Sealed(sealing) => Self {
                state: sealed_at_once(sealing.state)?,
                contract: sealing.contract.as_deref(),
                events: &sealing.events,
                sealing: Some(sealing),
                ..bare
            },
        })
    }
}

/// A run that its own process leases before it is written.
fn leased(state: RunState) -> Result<RunState, StoreError> {
    state.after(Transition::Claim).map_err(|error| {
        tracing::error!(%error, "a run cannot enter leased");
        StoreError::Malformed("first state")
    })
}

/// A run that enters with its receipt: only some ends are also a beginning.
fn sealed_at_once(state: RunState) -> Result<RunState, StoreError> {
    let begins = [Transition::Deny, Transition::Note];
    let is_it = |transition: &Transition| RunState::first(*transition) == Some(state);
    match begins.iter().any(is_it) {
        true => Ok(state),
        false => Err(StoreError::Malformed("first state")),
    }
}
