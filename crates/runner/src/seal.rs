//! The single place where any end becomes a signed and stored receipt.

use std::os::fd::OwnedFd;

use warrant_protocol::event::FailureClass;
use warrant_protocol::port::{Lease, PlaneError, Renewal};
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{Event, Outcome, Receipt, Sealer, Signed, Signer, Usage, fold};

use crate::capture::JudgedPath;
use crate::halt::Halt;
use crate::journal::Journal;
use crate::redact::Redactor;
use crate::remote::Stop;
use crate::run::{Ended, RunError, Surroundings};
use crate::site::Visit;

/// What the walk leaves for the seal.
pub(crate) struct Walked {
    pub(crate) outcome: Outcome,
    pub(crate) usage: Usage,
    pub(crate) upper: Option<OwnedFd>,
    /// Why the run is not a success, in a word and for people.
    pub(crate) failure: Option<(FailureClass, String)>,
    /// Why what it changed was not kept.
    pub(crate) unpacked: Option<String>,
    /// What the export gate decided.
    pub(crate) judged: Vec<JudgedPath>,
}

impl Walked {
    /// A walk that ended before the program could.
    fn stopped_early(outcome: Outcome, failure: (FailureClass, String)) -> Self {
        let failure = Some(failure);
        Self {
            outcome,
            usage: Usage::default(),
            upper: None,
            failure,
            unpacked: None,
            judged: Vec::new(),
        }
    }

    /// Returns what the plane said when it was the plane that failed.
    fn of(walked: Result<Self, Halt>) -> Result<(Self, Option<PlaneError>), RunError> {
        match walked {
            Ok(walked) => Ok((walked, None)),
            Err(Halt::Fenced(run)) => Err(RunError::Fenced(run)),
            Err(Halt::Sealed { outcome, failure, message }) => {
                Ok((Self::stopped_early(outcome, (failure, message)), None))
            }
            Err(Halt::PlaneFailed(error)) => {
                let told = (FailureClass::SessionFailed, error.to_string());
                Ok((Self::stopped_early(Outcome::Failed, told), Some(error)))
            }
        }
    }
}

/// Records how a run ended, folds the receipt from its chain, signs it and has the plane keep it.
pub(crate) fn seal(
    surroundings: &Surroundings<'_>,
    (visit, lease): (Option<&Visit<'_>>, &Lease),
    mut journal: Journal<'_>,
    (walked, redactor, left): (Result<Walked, Halt>, Redactor, Option<String>),
) -> Result<Ended, RunError> {
    let (walked, plane_failed) = Walked::of(walked)?;
    let stopped = visit.and_then(|visit| visit.stop.reason());
    if stopped == Some(Stop::Fenced) {
        return Err(RunError::Fenced(lease.key.run.clone()));
    }
    if let Some(reason) = stopped.as_ref().and_then(own_reason)
        && !journal.is_started()
    {
        // Nothing has happened, so another runner may have it. A plane that does not answer puts
        // it back into the queue by itself.
        let _ = surroundings.plane.hand_back(&lease.key);
        return Err(RunError::GivenBack { run: lease.key.run.clone(), reason });
    }
    for outage in visit.iter().flat_map(|visit| visit.stop.outages()) {
        let duration_ms = u64::try_from(outage.lasted.as_millis()).unwrap_or(u64::MAX);
        journal.record(&Event::RunDisconnected { since: outage.since, duration_ms })?;
    }
    let left_behind = left.map(|left| redactor.redact_text(&left));
    if let Some(left) = &left_behind {
        // The receipt's chain says it, however the program ended.
        journal.record(&Event::PostureRefused { lacking: vec![left.clone()] })?;
    }
    journal.record(&recorded(&walked))?;
    let Walked { outcome, usage, upper, failure, unpacked, judged } = walked;
    let unpacked = unpacked.map(|why| redactor.redact_text(&why));
    let mut message =
        failure.as_ref().map_or_else(String::new, |(_, text)| redactor.redact_text(text));
    let last = match failure {
        None => Event::RunCompleted {},
        Some(_) if outcome == Outcome::Cancelled => {
            let (actor, reason) = canceller(surroundings, lease, stopped);
            message = format!("cancelled by {}: {reason}", actor.label());
            Event::RunCancelled { actor, reason: Some(reason.to_owned()) }
        }
        Some((failure, _)) => Event::RunFailed { failure, message: message.clone() },
    };
    journal.record(&last)?;
    let receipt = hand_in(surroundings, lease, &journal, plane_failed)?;
    let (run, began) = (lease.key.run.clone(), journal.begun());
    let ended = Ended {
        run,
        began,
        outcome,
        message,
        usage,
        receipt,
        upper,
        unpacked,
        judged,
        left_behind,
        redactor,
    };
    Ok(ended)
}

fn recorded(walked: &Walked) -> Event {
    let exit_code = match walked.outcome {
        Outcome::Exited { code } => Some(code),
        _ => None,
    };
    let (outcome, usage) = (walked.outcome.clone(), walked.usage.clone());
    Event::OutcomeRecorded { outcome, exit_code, usage }
}

/// Folds and signs the receipt, and returns it as the plane countersigned it. What is missing
/// after the plane has failed is missing because of that.
fn hand_in(
    surroundings: &Surroundings<'_>,
    lease: &Lease,
    journal: &Journal<'_>,
    plane_failed: Option<PlaneError>,
) -> Result<Receipt, RunError> {
    let identity = surroundings.identity;
    let (runner_id, key_id) = (identity.id.clone(), identity.key.public().id().clone());
    let body = fold(&lease.contract, journal.chain(), &Sealer::Runner { runner_id, key_id })?;
    let receipt = Signed::seal(&body, Signer::Runner, &identity.key)?;
    let kept = surroundings.plane.complete(&lease.key, journal.untold(), receipt);
    kept.map_err(|error| match error {
        PlaneError::Fenced(run) => RunError::Fenced(run),
        other if journal.is_started() => RunError::Plane(plane_failed.unwrap_or(other)),
        other => RunError::NotStarted(plane_failed.unwrap_or(other)),
    })
}

/// Returns why this runner stopped a run by its own decision, if it did.
const fn own_reason(stop: &Stop) -> Option<&'static str> {
    match stop {
        Stop::Draining => Some("the runner ends and its time for draining is over"),
        Stop::LeaseOver => Some("the plane did not answer for longer than its policy allows"),
        Stop::Asked(_) | Stop::Fenced => None,
    }
}

/// Returns who cancelled a run, and why.
fn canceller(
    surroundings: &Surroundings<'_>,
    lease: &Lease,
    stopped: Option<Stop>,
) -> (ActorRef, &'static str) {
    if let Some(reason) = stopped.as_ref().and_then(own_reason) {
        let id = surroundings.identity.id.to_string();
        return (ActorRef { kind: ActorKind::Service, id }, reason);
    }
    let asked = "asked for while it was running";
    match stopped {
        Some(Stop::Asked(Some(actor))) => (actor, asked),
        // The requester holds the run's cancellation, unless the plane knows somebody else.
        _ => match surroundings.plane.renew(&lease.key) {
            Ok(Renewal::Stop(Some(actor))) => (actor, asked),
            Ok(Renewal::Stop(None) | Renewal::Continue) | Err(_) => {
                let requester = lease.contract.body().requested_by.clone();
                (requester, "the command that asked for it was interrupted")
            }
        },
    }
}
