//! People's words about what a session asked, as records of that session, however they were
//! given: through this door, or with `warrant approve` beside it.

use std::sync::Mutex;

use serde_json::Value;
use warrant_protocol::RunId;
use warrant_protocol::request::ActorRef;

use super::grants::Questions;
use super::records::{self, Entry, Kind};
use super::{lock, reason};
use crate::EmbeddedPlane;
use crate::doors::{Verdict, WorkshopError};
use crate::store::RecordRow;

/// Records every word about these runs that no record tells of yet.
///
/// # Errors
/// [`WorkshopError::Failed`] when one could not be kept.
pub(super) fn tell(
    plane: &EmbeddedPlane,
    asked: &Mutex<Questions>,
    runs: &[RunId],
) -> Result<(), WorkshopError> {
    for run in runs {
        for (by, verdict) in words(plane, run)? {
            record(plane, asked, run, (&by, verdict))?;
        }
    }
    Ok(())
}

/// Records one word, unless it is a record already or no session here asked for it.
///
/// # Errors
/// [`WorkshopError::Failed`] when it could not be kept.
pub(super) fn record(
    plane: &EmbeddedPlane,
    asked: &Mutex<Questions>,
    run: &RunId,
    (by, verdict): (&str, Verdict),
) -> Result<Option<RecordRow>, WorkshopError> {
    let Some((session, question)) = lock(asked).of(run) else { return Ok(None) };
    // Somebody may say yes, while others are still missing, and then no.
    let word = match verdict {
        Verdict::Denied => format!("no: {by}"),
        Verdict::Allowed | Verdict::Waiting => format!("yes: {by}"),
    };
    if !lock(asked).is_new(run, &word) {
        return Ok(None);
    }
    let entry = Entry {
        verdict,
        reason: reason(verdict),
        command: Some(question.command),
        by: Some(by.to_owned()),
        ..Entry::allowed(Kind::Approval, run.clone())
    };
    let kept = records::keep(plane, (&session, &question.owner), entry);
    if kept.is_err() {
        lock(asked).untell(run, &word);
    }
    kept.map(Some)
}

/// Returns who said what about a run, in order; only the last yes is one that allows.
fn words(plane: &EmbeddedPlane, run: &RunId) -> Result<Vec<(String, Verdict)>, WorkshopError> {
    let mut words = Vec::new();
    for event in plane.store().events(run).map_err(WorkshopError::of_error)? {
        let event: Value = serde_json::from_str(&event.body).map_err(WorkshopError::of_error)?;
        let event = event.get("event").unwrap_or(&Value::Null);
        let verdict = match event.get("type").and_then(Value::as_str) {
            Some("approval.granted") => Verdict::Waiting,
            Some("approval.denied") => Verdict::Denied,
            _ => continue,
        };
        let actor = event.get("actor").cloned().unwrap_or_default();
        let actor: ActorRef = serde_json::from_value(actor).map_err(WorkshopError::of_error)?;
        words.push((actor.label(), verdict));
    }
    if words.is_empty() {
        // Too few so far: nothing is issued, and their statements wait.
        let given = plane.store().approvals(run).map_err(WorkshopError::of_error)?;
        return Ok(given.into_iter().map(|given| (given.approver, Verdict::Waiting)).collect());
    }
    if let Some((_, verdict)) = words.last_mut()
        && *verdict == Verdict::Waiting
    {
        *verdict = Verdict::Allowed;
    }
    Ok(words)
}
