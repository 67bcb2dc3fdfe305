//! The states of runs in SQL. Every statement that reads or changes a state is written with what
//! stands here, and what stands here comes from the one table ([`RunState::after`]).

use warrant_protocol::{RunState, Transition};

use super::StoreError;

/// Returns the condition that a run is in one of the states of which `is_one` is true.
pub(super) fn in_states(is_one: impl Fn(RunState) -> bool) -> String {
    let names: Vec<String> = RunState::ALL
        .into_iter()
        .filter(|state| is_one(*state))
        .map(|state| format!("'{}'", state.as_str()))
        .collect();
    match names.as_slice() {
        // An index over one state is used only where that state is named like this.
        [one] => format!("state = {one}"),
        all => format!("state IN ({})", all.join(", ")),
    }
}

/// Returns the condition that a run is in this state.
pub(super) fn in_state(state: RunState) -> String {
    in_states(|one| one == state)
}

/// A change of state, on its way to SQL.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateChange<'a> {
    /// What happens to the run, one after the other in one transaction.
    pub(super) transitions: &'a [Transition],
    /// What else is assigned.
    pub(super) assigned: &'a str,
    /// Which run.
    pub(super) run: &'a str,
}

impl StateChange<'_> {
    /// Returns the statement that changes the run if the table allows it, and nothing otherwise.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] when the table has no state in which all of it could happen.
    pub(super) fn sql(&self) -> Result<String, StoreError> {
        let last = self.transitions.last().ok_or(StoreError::Malformed("change of state"))?;
        let is_source = |state: RunState| {
            self.transitions.iter().try_fold(state, |state, next| state.after(*next)).is_ok()
        };
        if !RunState::ALL.into_iter().any(is_source) {
            return Err(StoreError::Malformed("change of state"));
        }
        let (assigned, run) = (self.assigned, self.run);
        let (target, sources) = (last.target().as_str(), in_states(is_source));
        Ok(format!("UPDATE runs SET state = '{target}', {assigned} WHERE {run} AND {sources}"))
    }
}

/// Returns the state in which a run enters the store.
///
/// # Errors
/// [`StoreError::Malformed`] when no run begins that way.
pub(super) fn first_state(transition: Transition) -> Result<RunState, StoreError> {
    RunState::first(transition).ok_or(StoreError::Malformed("first state"))
}
