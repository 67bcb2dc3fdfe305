//! One line for each event, in the reference's words where it has them.

use serde::{Deserialize, Serialize};

use crate::event::{Direction, Event, GapDecision, NetworkVerdict};
use crate::observation::CaptureExtent;
use crate::request::{ActorRef, ContinuationTier};
use crate::{ChainedEvent, Decision, Digest, Outcome};

/// How loud an event's line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tone {
    /// As it should be.
    Info,
    /// Good.
    Ok,
    /// Worth a look.
    Warn,
    /// Bad.
    Error,
    /// Just so.
    Plain,
}

/// One event in one line; safe to print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSummary {
    /// How loud.
    pub tone: Tone,
    /// Its type.
    pub label: String,
    /// What it says.
    pub detail: String,
}

/// Returns one event in one line.
#[must_use]
pub fn summarize(event: &ChainedEvent) -> EventSummary {
    let (tone, detail) = match event.event() {
        Event::RunCreated {} => (Tone::Info, "contract issued".to_owned()),
        Event::RunClaimed { runner_id, runner_key_id, .. } => {
            (Tone::Info, format!("{runner_id} {runner_key_id}"))
        }
        Event::WorkspaceMaterialized { manifest_hash } => {
            (Tone::Info, format!("manifest {}", short(*manifest_hash)))
        }
        Event::PolicyEvaluated { decision, reason } => (decision_tone(*decision), reason.clone()),
        Event::ConsentRequested { requirement } => (Tone::Warn, requirement.clone()),
        Event::ConsentGranted { actor } => (Tone::Ok, actor.label()),
        Event::SecretReleased { name, scope } => (Tone::Warn, format!("{name} ({scope})")),
        Event::CommandExecuted { argv_hash, exit_code } => {
            let tone = if *exit_code == 0 { Tone::Ok } else { Tone::Error };
            (tone, format!("argv {} exit {exit_code}", short(*argv_hash)))
        }
        Event::FileChanged { path, content_hash } => {
            (Tone::Plain, format!("{path} {}", short(*content_hash)))
        }
        Event::NetworkConnected { host, decision, .. } => {
            let tone = match decision {
                NetworkVerdict::Allowed => Tone::Ok,
                NetworkVerdict::Blocked => Tone::Warn,
            };
            (tone, format!("{host} {}", decision.as_str()))
        }
        Event::ModelCalled { provider, model, .. } => (Tone::Info, format!("{provider}/{model}")),
        Event::BoundaryCrossed { direction: way, content_hash, data_class } => {
            (Tone::Warn, format!("{}: {data_class} {}", direction(*way), short(*content_hash)))
        }
        Event::ArtifactCreated { kind, hash } => {
            (Tone::Info, format!("{} {}", kind.as_str(), short(*hash)))
        }
        Event::CheckpointCreated { checkpoint_id, tier } => {
            let tier = match tier {
                ContinuationTier::Semantic => "semantic",
                ContinuationTier::Workspace => "workspace",
            };
            (Tone::Info, format!("{checkpoint_id} ({tier})"))
        }
        Event::RunCompleted {} => (Tone::Ok, "completed".to_owned()),
        Event::RunFailed { message, .. } => (Tone::Error, message.clone()),
        Event::RunCancelled { actor, reason } => {
            (Tone::Warn, with_reason(actor, reason.as_deref()))
        }
        ours => summarize_ours(ours),
    };
    let label = one_line(event.event_type());
    EventSummary { tone, label, detail: one_line(&detail) }
}

fn summarize_ours(event: &Event) -> (Tone, String) {
    match event {
        Event::DecisionMade { decision, reasons, .. } => {
            let answer = decision_word(*decision);
            (decision_tone(*decision), format!("{answer}: {}", reasons.join("; ")))
        }
        Event::ApprovalGranted { actor, level, .. } => {
            (Tone::Ok, format!("{} at level {level}", actor.label()))
        }
        Event::ApprovalDenied { actor, reason } => {
            (Tone::Error, format!("{}: {reason}", actor.label()))
        }
        Event::RunStarted { epoch, .. } => (Tone::Info, format!("lease {epoch}")),
        Event::PreflightChecked { posture, .. } => {
            (Tone::Ok, format!("{} by {}", posture.isolation, posture.provider_version))
        }
        Event::PostureRefused { lacking } => {
            (Tone::Error, format!("not enforced: {}", lacking.join(", ")))
        }
        Event::GapFound { kind, detail, .. } => (Tone::Warn, format!("{kind} {detail}")),
        Event::GapDecided { gap, decision, reason } => {
            let (tone, word) = match decision {
                GapDecision::Granted => (Tone::Warn, "granted"),
                GapDecision::Rewritten => (Tone::Info, "rewritten"),
                GapDecision::Denied => (Tone::Error, "denied"),
            };
            (tone, format!("{gap} {word}: {reason}"))
        }
        Event::GrantAdded { kind, value, .. } => (Tone::Warn, format!("{kind} {value}")),
        Event::PreimageBound { preimage } => {
            (Tone::Info, format!("sandbox {}", short(preimage.sandbox_spec_hash)))
        }
        Event::OutputRecorded { stdout, stderr } => {
            let (out, err) = (stdout.bytes, stderr.bytes);
            (Tone::Info, format!("stdout {out} bytes, stderr {err} bytes"))
        }
        Event::OutcomeRecorded { outcome, .. } => {
            let tone = if outcome.is_success() { Tone::Ok } else { Tone::Error };
            (tone, outcome_words(outcome))
        }
        Event::OperationPerformed { operation, succeeded, .. } => {
            let tone = if *succeeded { Tone::Ok } else { Tone::Error };
            let done = if *succeeded { "done" } else { "not done" };
            (tone, format!("{operation} {done} by Warrant itself, no program ran"))
        }
        Event::PostureObserved { posture, .. } => {
            (Tone::Ok, format!("{} by {}", posture.isolation, posture.provider_version))
        }
        Event::CaptureRecorded { extent, files, reason } => {
            let tone = if *extent == CaptureExtent::Complete { Tone::Info } else { Tone::Warn };
            let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            (tone, format!("{}, {files} files{why}", extent.as_str()))
        }
        Event::ExportJudged { path, verdict, class, count, .. } => {
            let more = count.map(|count| format!(", {count} paths")).unwrap_or_default();
            (Tone::Warn, format!("{path} {} ({class}{more})", verdict.as_str()))
        }
        Event::GitRefUpdated { reference, old, new, .. } => {
            (Tone::Info, ref_change(reference, old.as_deref(), new.as_deref()))
        }
        Event::NetworkFolded { destinations, attempts, hash } => {
            let list = short(*hash);
            (Tone::Warn, format!("{destinations} more blocked, {attempts} attempts, list {list}"))
        }
        Event::RunStopping { actor, reason } => (Tone::Warn, with_reason(actor, reason.as_deref())),
        Event::RunDisconnected { duration_ms, .. } => {
            (Tone::Warn, format!("plane not reachable for {} s", duration_ms.div_ceil(1000)))
        }
        Event::RunRequeued { epoch } => (Tone::Warn, format!("lease {epoch} ended")),
        Event::RunLost { last_heard_at, .. } => {
            (Tone::Error, format!("last heard {last_heard_at}"))
        }
        Event::ChainLimited { limit, max } => {
            (Tone::Warn, format!("at {max} {}; later ones are not listed", limit.as_str()))
        }
        Event::ContractExpired { expires_at } => (Tone::Error, format!("at {expires_at}")),
        _ => (Tone::Plain, String::new()),
    }
}

/// Returns who stopped a run, and why if that is known.
pub(super) fn with_reason(actor: &ActorRef, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{}: {reason}", actor.label()),
        None => actor.label(),
    }
}

/// Returns an outcome in words.
#[must_use]
pub fn outcome_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exited { code } => format!("exit {code}"),
        Outcome::Performed { succeeded: true } => "done by Warrant itself".to_owned(),
        Outcome::Performed { succeeded: false } => "not done; no program ran".to_owned(),
        Outcome::Signaled { signal } => format!("signal {signal}"),
        Outcome::Limited { limit } => format!("stopped by the {} limit", limit.as_str()),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Denied => "denied".to_owned(),
        Outcome::ApprovalExpired => "approval did not come in time".to_owned(),
        Outcome::PostureRefused => "refused: the boundary holds less than demanded".to_owned(),
        Outcome::GapDenied => "denied: it needs more than it was given".to_owned(),
        Outcome::Unobserved => "its end was not observed".to_owned(),
        Outcome::Lost => "lost: its runner is gone".to_owned(),
        Outcome::Failed => "failed".to_owned(),
    }
}

pub(super) const fn decision_word(decision: Decision) -> &'static str {
    match decision {
        Decision::Allow => "allow",
        Decision::Ask => "ask",
        Decision::Deny => "deny",
    }
}

const fn decision_tone(decision: Decision) -> Tone {
    match decision {
        Decision::Allow => Tone::Ok,
        Decision::Ask => Tone::Warn,
        Decision::Deny => Tone::Error,
    }
}

pub(super) const fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Out => "out",
        Direction::In => "in",
    }
}

pub(super) fn short(digest: Digest) -> String {
    let mut hex = digest.to_hex();
    hex.truncate(12);
    hex
}

/// Text from outside on one line, without anything a terminal obeys.
pub(super) fn one_line(text: &str) -> String {
    const MAX: usize = 200;
    let is_bidi = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let plain = |c: char| if c.is_control() || is_bidi(c) { ' ' } else { c };
    let mut line: String = text.chars().map(plain).take(MAX).collect();
    if text.chars().nth(MAX).is_some() {
        line.push('…');
    }
    line
}

/// Returns how a reference of git changed, with object names cut to twelve digits.
pub(super) fn ref_change(reference: &str, old: Option<&str>, new: Option<&str>) -> String {
    let short = |value: &str| match value.starts_with("refs/") {
        true => value.to_owned(),
        false => value.chars().take(12).collect(),
    };
    match (old, new) {
        (Some(old), Some(new)) => format!("{reference}: {} to {}", short(old), short(new)),
        (None, Some(new)) => format!("{reference}: made at {}", short(new)),
        (Some(old), None) => format!("{reference}: removed, was {}", short(old)),
        (None, None) => reference.to_owned(),
    }
}
