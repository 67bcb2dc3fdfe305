//! What must hold after every event of a simulation, and at its end.

use std::collections::{BTreeMap, BTreeSet};

use warrant_protocol::verify::verify_slice;
use warrant_protocol::{ChainedEvent, Digest, Event, KeyRole, RunId, RunState, TrustedKeys};

use super::super::plane::person;
use super::super::runner::SimulatedRunner;
use super::Simulation;

/// What was seen, against which the store is checked.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) executions: BTreeMap<RunId, u32>,
    pub(super) submitted: BTreeSet<RunId>,
    pub(super) approved: BTreeSet<RunId>,
    pub(super) kept: BTreeMap<RunId, Digest>,
    pub(super) receipts: BTreeMap<RunId, Digest>,
    pub(super) cancel_asked: BTreeSet<RunId>,
    pub(super) refused: BTreeSet<RunId>,
    /// Which process of which runner took a run.
    pub(super) holders: BTreeMap<RunId, Vec<(usize, u64)>>,
    pub(super) killed: BTreeSet<(usize, u64)>,
    pub(super) did_clocks_jump: bool,
}

impl Simulation {
    /// Returns which promise is broken now.
    pub(super) fn broken_promise(&mut self) -> Option<String> {
        let rows = self.plane.rows();
        let observed = &mut self.observed;
        if let Some((run, count)) = observed.executions.iter().find(|(_, count)| **count > 1) {
            return Some(format!("{run} was executed {count} times"));
        }
        let is_there = |run: &RunId| rows.iter().any(|row| row.run == *run);
        if let Some(run) = observed.submitted.iter().find(|run| !is_there(run)) {
            return Some(format!("{run} was acknowledged and is gone"));
        }
        for row in rows.iter() {
            let run = &row.run;
            if row.state.is_terminal() != row.receipt.is_some() {
                return Some(format!("{run} is {} and its receipt {:?}", row.state, row.receipt));
            }
            if row.state == RunState::AwaitingApproval && observed.approved.contains(run) {
                return Some(format!("the approval of {run} was acknowledged and is gone"));
            }
            let kept = observed.kept.get(run);
            if kept.is_some() && kept != row.receipt.as_ref() {
                return Some(format!("the receipt of {run} was acknowledged and is gone"));
            }
            let known = observed.receipts.get(run);
            if known.is_some() && known != row.receipt.as_ref() {
                return Some(format!("{run} has another receipt now"));
            }
            if let Some(receipt) = row.receipt
                && observed.receipts.insert(run.clone(), receipt).is_none()
                && let Some(problem) = observed.wrong_end(run, row.state)
            {
                return Some(problem);
            }
        }
        None
    }

    pub(super) fn is_over(&self) -> bool {
        let all = self.people.iter().all(|person| {
            person.run.as_ref().is_some_and(|run| self.observed.receipts.contains_key(run))
        });
        all && self.plane.is_up() && self.runners.iter().all(SimulatedRunner::is_idle)
    }

    /// Nothing more happens, or it takes too long.
    pub(super) fn unfinished(&mut self) -> Option<String> {
        let rows = self.plane.rows();
        let rows: Vec<_> = rows.iter().map(|row| format!("{} {}", row.run, row.state)).collect();
        let busy = self.runners.iter().filter(|runner| !runner.is_idle()).count();
        Some(format!("waits forever: {}; {busy} runners are busy", rows.join(", ")))
    }

    /// Checks the evidence of every run as an outsider would.
    pub(super) fn wrong_evidence(&mut self) -> Option<String> {
        let mut trusted = TrustedKeys::none().and(KeyRole::Plane, self.plane.key());
        for runner in &self.runners {
            trusted = trusted.and(KeyRole::Runner, runner.known().key);
        }
        self.plane.rows().iter().find_map(|row| {
            let bundle = self.plane.bundle(&row.run);
            let verified = verify_slice(bundle.as_bytes(), &trusted);
            if let Err(problems) = verified {
                return Some(format!("the bundle of {} does not verify: {problems:?}", row.run));
            }
            let is_cancelled = row.state == RunState::Cancelled;
            let is_named = || self.plane.events(&row.run).iter().any(is_cancelled_by_carol);
            (is_cancelled && !is_named())
                .then(|| format!("{} was cancelled, and its chain does not say by whom", row.run))
        })
    }
}

fn is_cancelled_by_carol(event: &ChainedEvent) -> bool {
    let carol = person("carol");
    matches!(event.event(), Event::RunCancelled { actor, .. } if *actor == carol)
}

impl Observations {
    /// Returns what is wrong with how a run ended.
    fn wrong_end(&self, run: &RunId, state: RunState) -> Option<String> {
        let holders = self.holders.get(run).map(Vec::as_slice).unwrap_or_default();
        let was_killed = holders.iter().any(|holder| self.killed.contains(holder));
        let executions = self.executions.get(run).copied().unwrap_or_default();
        let is_right = match state {
            RunState::Completed => executions == 1,
            RunState::Cancelled => self.cancel_asked.contains(run),
            // Who asked for a stop and was not answered in time has it sealed as lost.
            RunState::Lost => was_killed || self.cancel_asked.contains(run),
            RunState::Failed => was_killed || self.refused.contains(run),
            RunState::Expired => self.did_clocks_jump,
            _ => false,
        };
        (!is_right)
            .then(|| format!("{run} ended as {state} for no reason ({executions} executions)"))
    }
}
