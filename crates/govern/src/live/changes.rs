//! Changes of a sandbox that lives: its end, its rest, its labels, its reach. Each is judged as
//! the program `sandbox` with what is wished for, and has a receipt of its own.

use warrant_plane::doors::WorkshopError;
use warrant_protocol::{Decision, RunId};

use super::Shared;
use super::asks::{self, Wish};
use super::calls;
use super::sandbox::{Living, plain_wish, words};
use crate::ask::Ask;

/// What a change is judged as.
pub(super) struct Told<'a> {
    /// `sandbox WORD ID …`.
    pub(super) word: &'a str,
    /// What is wished for.
    pub(super) value: Option<String>,
    /// What a reader of the contract should know besides.
    pub(super) note: Option<String>,
}

impl Told<'_> {
    fn ask(self, shared: &Shared, living: &Living) -> Result<Ask, WorkshopError> {
        let mut argv = words(&["sandbox", self.word, &living.id]);
        argv.extend(self.value);
        asks::ask(&living.place(shared), &Wish { note: self.note, ..plain_wish(&argv) })
    }
}

/// Returns a time as a change tells it.
pub(super) fn time(ms: Option<u64>) -> Option<String> {
    Some(ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms}ms")))
}

/// Has a change judged and leaves its receipt, before it is done.
pub(super) fn note(
    shared: &Shared,
    living: &Living,
    told: Told<'_>,
) -> Result<RunId, WorkshopError> {
    calls::note(shared, &told.ask(shared, living)?)
}

/// Leaves the receipt of a pause that was made. Policy is not asked: a pause takes away only, and
/// must not fail where a policy does not load.
pub(super) fn note_pause(shared: &Shared, living: &Living) -> Result<RunId, WorkshopError> {
    let told = Told { word: "pause", value: None, note: None };
    let ask = told.ask(shared, living)?;
    let mut judgment = shared.desk.judge(&ask).map_err(WorkshopError::of_error)?;
    if judgment.summary.decision != Decision::Allow {
        judgment.summary.decision = Decision::Allow;
        judgment.summary.reasons.push("a pause takes away only and is not refused".to_owned());
        judgment.requirements.clear();
    }
    let note = calls::write_down(shared, &ask, judgment)?
        .ok_or(WorkshopError::because("a pause was not written down"))?;
    shared.desk.plane().keep(note).map_err(WorkshopError::of_error)
}
