//! Decisions about commands that are executed by a later call: judged in every form, kept, signed.

use serde_json::json;
use warrant_plane::doors::{Decided, Verdict, WorkshopError};
use warrant_plane::random;
use warrant_plane::{Judgment, Reception, Submission};
use warrant_protocol::{Decision, Digest, RunId, canonicalize};

use super::Shared;
use super::asks::{self, Wish};
use super::calls::{self, permitted};
use super::sandbox::{Living, plain_wish, words};
use crate::ask::Ask;

/// Judges a command as its words, as the line they make and as what that was meant to run.
pub(super) fn decide(
    shared: &Shared,
    living: &Living,
    argv: &[String],
) -> Result<Decided, WorkshopError> {
    living.check_open(usize::MAX)?;
    let place = living.place(shared);
    let line = words(&["bash", "-c", &argv.join(" ")]);
    let hosts = living.hosts();
    let wish = |argv| Wish { hosts: &hosts, ..plain_wish(argv) };
    let mut forms = vec![asks::ask(&place, &wish(argv))?, asks::ask(&place, &wish(&line))?];
    forms.extend(asks::unwrapped(&place, &wish(&line))?);
    for form in &forms {
        let judgment = shared.desk.judge(form).map_err(|_| WorkshopError::Failed)?;
        if judgment.summary.decision != Decision::Allow {
            return refused(shared, living, (form, judgment));
        }
    }
    let told = words(&["sandbox", "decide", &living.id]);
    let note = Some(format!("allowed once: {}", argv.join(" ")));
    let ask = asks::ask(&place, &Wish { note, ..wish(&told) })?;
    let run = calls::note(shared, &ask)?;
    signed(shared, living, (run, Verdict::Allowed, Vec::new()))
}

/// Leaves the evidence of a refusal.
fn refused(
    shared: &Shared,
    living: &Living,
    (form, judgment): (&Ask, Judgment),
) -> Result<Decided, WorkshopError> {
    let reasons = judgment.summary.reasons;
    match permitted(shared.desk.permit(form)) {
        Err(WorkshopError::Denied { run, reasons }) => {
            signed(shared, living, (run, Verdict::Denied, reasons))
        }
        Err(WorkshopError::Waiting { run, reasons }) => {
            signed(shared, living, (run, Verdict::Waiting, reasons))
        }
        // Approved since: still no allow of this call, whose forms are judged together.
        Ok(run) => signed(shared, living, (run, Verdict::Waiting, reasons)),
        Err(other) => Err(other),
    }
}

/// Records that an execution was refused because no decision allows it.
pub(super) fn refuse(
    shared: &Shared,
    living: &Living,
    argv: &[String],
) -> Result<RunId, WorkshopError> {
    let place = living.place(shared);
    let ask = asks::ask(&place, &plain_wish(argv))?;
    let submission = Submission {
        request: ask.request.clone(),
        principal: ask.principal.clone(),
        idempotency_key: None,
        approval_wait_ms: 1,
    };
    let mut judgment = shared.desk.judge(&ask).map_err(|_| WorkshopError::Failed)?;
    judgment.summary.decision = Decision::Deny;
    judgment.summary.reasons = vec!["no decision allows this execution".to_owned()];
    judgment.requirements.clear();
    match shared.desk.plane().submit(submission, |_| judgment) {
        Ok(Reception::Denied { run, .. }) => Ok(run),
        _ => Err(WorkshopError::Failed),
    }
}

/// Signs a decision over canonical JSON, with a clock that never stands still.
fn signed(
    shared: &Shared,
    living: &Living,
    (run, verdict, reasons): (RunId, Verdict, Vec<String>),
) -> Result<Decided, WorkshopError> {
    let plane = shared.desk.plane();
    let failed = |_| WorkshopError::Failed;
    let lamport = plane.store().tick(&format!("helm:{}", living.id)).map_err(failed)?;
    let at = random::now().map_err(|_| WorkshopError::Failed)?;
    let receipt = plane.store().receipt(&run).map_err(failed)?;
    let node = Digest::of(receipt.unwrap_or_else(|| run.to_string()).as_bytes());
    let word = match verdict {
        Verdict::Allowed => "ALLOW",
        Verdict::Denied => "DENY",
        Verdict::Waiting => "ASK",
    };
    let told = json!({
        "version": "warrant.decision.v1",
        "run": run.as_str(),
        "sandbox": living.id,
        "decision": word,
        "reasons": reasons,
        "lamport": lamport,
        "node": node.to_string(),
        "at": at.to_string(),
    });
    let signature = plane.home().plane_key().sign(canonicalize(&told).as_bytes());
    let signature = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Decided { run, verdict, reasons, lamport, node, signature, at })
}
