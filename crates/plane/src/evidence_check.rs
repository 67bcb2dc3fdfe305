//! What a runner sends, held against what the plane knows, before it is kept or countersigned.
//!
//! Events are checked when they come ([`check_event`]): who may write them, in which order, at
//! which time. The whole is checked at the end ([`check_completion`]) with the function that
//! `warrant verify` uses, and then against what only the plane knows: who asked for a stop, how
//! long the run can have taken.

use warrant_protocol::fold::ended_as;
use warrant_protocol::request::ActorRef;
use warrant_protocol::verify::{SealedBundle, verify_sealed};
use warrant_protocol::{ChainedEvent, Event, Timestamp};

use crate::authorship::{Author, author_of};
use crate::leases::actor_of;

/// How far the clock of a runner may be off. A wrong clock is no lie, a wrong year is.
const MOST_CLOCK_ERROR_MS: u64 = 24 * 3_600_000;

/// How far the clock of a runner may be set back between two of its events.
const MOST_STEP_BACK_MS: u64 = 2 * 3_600_000;

/// Something that a runner said and that cannot be true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FalseClaim {
    /// Which member is wrong.
    pub(crate) field: String,
    /// What is wrong with it, for people.
    pub(crate) detail: String,
}

impl FalseClaim {
    pub(crate) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

/// Why an event of a runner is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventRefusal {
    /// It cannot be true.
    False(FalseClaim),
    /// A type that this plane does not know, so it cannot tell who may write it.
    Unknown { event_type: String },
}

/// Checks one event that a runner adds after `before`.
pub(crate) fn check_event(
    before: &[ChainedEvent],
    next: &ChainedEvent,
    now: Timestamp,
) -> Result<(), EventRefusal> {
    let refuse = |member: &str, detail: String| {
        let field = format!("events[{}].{member}", next.seq());
        Err(EventRefusal::False(FalseClaim::new(field, detail)))
    };
    // SECURITY: a runner must not write consents, releases or starts into its own chain.
    match author_of(next.event()) {
        Author::Runner | Author::WhoeverSeals => {}
        Author::Plane => {
            let kind = next.event_type();
            return refuse("event.type", format!("only the plane writes {kind}"));
        }
        Author::Nobody => {
            let event_type = next.event_type().to_owned();
            return Err(EventRefusal::Unknown { event_type });
        }
    }
    if let Some(last) = before.last().filter(|last| ended_as(last.event()).is_some()) {
        let detail = format!("the run ended with {} before this event", last.event_type());
        return refuse("seq", detail);
    }
    check_time(before, next, now).or_else(|detail| refuse("ts", detail))
}

/// Checks the time of an event: near the plane's own, and not long before the one before it.
fn check_time(before: &[ChainedEvent], next: &ChainedEvent, now: Timestamp) -> Result<(), String> {
    let at = next.at();
    if now.plus_ms(MOST_CLOCK_ERROR_MS) < at {
        return Err(format!("{at} lies more than a day ahead of the plane's clock, {now}"));
    }
    let claimed =
        before.iter().rev().find(|event| matches!(event.event(), Event::RunClaimed { .. }));
    if let Some(claimed) = claimed
        && at.plus_ms(MOST_CLOCK_ERROR_MS) < claimed.at()
    {
        return Err(format!("{at} lies more than a day before the claim at {}", claimed.at()));
    }
    let is_of_runner = |event: &&ChainedEvent| author_of(event.event()) == Author::Runner;
    match before.last().filter(is_of_runner) {
        Some(last) if at.plus_ms(MOST_STEP_BACK_MS) < last.at() => {
            Err(format!("{at} lies long before the event before it, {}", last.at()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Who may have asked for a run to be cancelled, as the plane knows it.
#[derive(Debug, Clone)]
pub(crate) struct StopKnowledge {
    /// Who asked the plane, as `human:alice`.
    pub(crate) stop_by: Option<String>,
    /// The runner itself, which may give a run up.
    pub(crate) runner: ActorRef,
    /// The requester, where they are in the same process as the runner.
    pub(crate) requester: Option<ActorRef>,
}

/// Checks everything that a runner says about a run that it ended, and gives it back.
pub(crate) fn check_completion(
    bundle: SealedBundle,
    now: Timestamp,
    stop: impl FnOnce() -> Result<StopKnowledge, warrant_protocol::port::PlaneError>,
) -> Result<Result<SealedBundle, Vec<FalseClaim>>, warrant_protocol::port::PlaneError> {
    let bundle = match verify_sealed(bundle) {
        Ok(bundle) => bundle,
        Err(problems) => {
            let claim = |problem: &warrant_protocol::Problem| {
                FalseClaim::new(problem.field(), problem.to_string())
            };
            return Ok(Err(problems.iter().map(claim).collect()));
        }
    };
    if let Some(found) = impossible_duration(&bundle, now) {
        return Ok(Err(vec![found]));
    }
    let last = bundle.chain.events().last().map(ChainedEvent::event);
    if let Some(Event::RunCancelled { actor, .. }) = last
        && let Some(found) = false_cancellation(actor, &stop()?)
    {
        return Ok(Err(vec![found]));
    }
    Ok(Ok(bundle))
}

/// A program cannot have run for longer than its run has existed.
fn impossible_duration(bundle: &SealedBundle, now: Timestamp) -> Option<FalseClaim> {
    let wall_us = bundle.receipt.body().usage.as_ref()?.wall_us?;
    let issued_ms = bundle.contract.body().issued_at.unix_ms();
    let existed_ms = now.unix_ms().saturating_sub(issued_ms);
    let most_ms = existed_ms.saturating_add(MOST_STEP_BACK_MS);
    (wall_us / 1000 > most_ms).then(|| {
        let detail =
            format!("the program ran for {wall_us} µs, and the run is {existed_ms} ms old");
        FalseClaim::new("outcome.recorded.usage.wallUs", detail)
    })
}

fn false_cancellation(actor: &ActorRef, known: &StopKnowledge) -> Option<FalseClaim> {
    let asked = known.stop_by.as_deref().map(actor_of);
    let may_be = [asked.as_ref(), Some(&known.runner), known.requester.as_ref()];
    if may_be.contains(&Some(actor)) {
        return None;
    }
    let label = actor.label();
    let detail = match &known.stop_by {
        Some(other) => format!("{label} did not ask for the run to be stopped, {other} did"),
        None => format!("{label} did not ask for the run to be stopped, and nobody else did"),
    };
    Some(FalseClaim::new("run.cancelled.actor", detail))
}
