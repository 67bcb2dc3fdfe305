//! The story of a run, told only from a [`VerifiedBundle`]: what moved, why, who approved, what
//! saw it, how to reproduce or revoke it. And one line for each event.

mod summary;

use serde::{Deserialize, Serialize};

pub use self::summary::{EventSummary, Tone, outcome_words, summarize};
use self::summary::{decision_word, direction, one_line, ref_change, short, with_reason};
use crate::event::Event;
use crate::observation::CaptureExtent;
use crate::verify::VerifiedBundle;
use crate::{ChainedEvent, Component, Digest, Enforcement, Isolation, Posture, RunId};

/// What went in and came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoryWorkspace {
    /// The commit.
    pub base_ref: String,
    /// The manifest's digest.
    pub manifest_hash: Digest,
    /// The diff's digest; absent when nothing changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff_hash: Option<Digest>,
    /// How many things were kept.
    pub artifact_count: usize,
}

/// A run in a few members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Story {
    /// The run.
    pub run_id: RunId,
    /// How it ended.
    pub status: String,
    /// Who asked.
    pub actor: String,
    /// Which agent.
    pub agent: String,
    /// Which tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// What went in and came out.
    pub workspace: StoryWorkspace,
    /// The policy it was judged by.
    pub policy_hash: Digest,
    /// Which secrets it had.
    pub secrets: Vec<String>,
    /// Which destinations were decided.
    pub network: Vec<String>,
    /// How many events.
    pub event_count: u64,
    /// The last event's hash.
    pub events_head: Digest,
    /// How to check all this again.
    pub verification_command: String,
}

/// One of the five questions, answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The question.
    pub question: &'static str,
    /// The answer, line by line; safe to print.
    pub lines: Vec<String>,
}

impl Story {
    /// Returns the story of a verified bundle.
    #[must_use]
    pub fn of(bundle: &VerifiedBundle) -> Self {
        let (contract, receipt) = (bundle.contract().body(), bundle.receipt().body());
        let released = receipt.secrets_released.iter();
        let decided = receipt.network_accessed.iter();
        Self {
            run_id: receipt.run_id.clone(),
            status: receipt.status.as_str().to_owned(),
            actor: contract.requested_by.label(),
            agent: contract.agent.kind.clone(),
            isolation: receipt.runner.isolation,
            workspace: StoryWorkspace {
                base_ref: receipt.workspace_in.base_ref.clone(),
                manifest_hash: receipt.workspace_in.manifest_hash,
                diff_hash: receipt.workspace_out.diff_hash,
                artifact_count: receipt.workspace_out.artifact_hashes.len(),
            },
            policy_hash: contract.policy_hash,
            secrets: released.map(|secret| format!("{} ({})", secret.name, secret.scope)).collect(),
            network: decided
                .map(|access| format!("{} {}", access.host, access.decision.as_str()))
                .collect(),
            event_count: receipt.event_count,
            events_head: receipt.events_head,
            verification_command: "warrant verify <bundle.json>".to_owned(),
        }
    }
}

/// Returns the five questions with their answers.
#[must_use]
pub fn answers(bundle: &VerifiedBundle) -> Vec<Answer> {
    let answer = |question, lines: Vec<String>| Answer {
        question,
        // SECURITY: prompts, hosts and file names come from inside; none may drive a terminal.
        lines: lines.iter().map(|line| one_line(line)).collect(),
    };
    vec![
        answer("what moved", what_moved(bundle)),
        answer("why", why(bundle)),
        answer("who approved", who_approved(bundle)),
        answer("what saw it", what_saw_it(bundle)),
        answer("how to reproduce or revoke", how_again(bundle)),
    ]
}

fn what_moved(bundle: &VerifiedBundle) -> Vec<String> {
    let receipt = bundle.receipt().body();
    let mut lines = vec![format!(
        "in: commit {}, manifest {}",
        receipt.workspace_in.base_ref,
        short(receipt.workspace_in.manifest_hash)
    )];
    for disclosure in &receipt.boundary_disclosures {
        let way = direction(disclosure.direction);
        lines.push(format!("{way}: {} {}", disclosure.data_class, short(disclosure.content_hash)));
    }
    lines.extend(what_changed(bundle));
    lines
}

/// Says what changed, and only says that nothing did where that was seen.
fn what_changed(bundle: &VerifiedBundle) -> Vec<String> {
    let receipt = bundle.receipt().body();
    let is_change = |event: &&ChainedEvent| matches!(event.event(), Event::FileChanged { .. });
    let changed = bundle.chain().events().iter().filter(is_change).count();
    let extent = receipt.capture.as_ref().map(|capture| capture.extent);
    let export = receipt.export.unwrap_or_default();
    let kept_out = export.held + export.refused > 0;
    let mut lines = vec![match (changed, receipt.workspace_out.diff_hash, extent) {
        (0, None, Some(CaptureExtent::Complete)) if !kept_out => "no file changed".to_owned(),
        (0, None, Some(CaptureExtent::Complete)) => {
            "every changed file was kept out by the export gate".to_owned()
        }
        (0, None, _) => "no change is recorded".to_owned(),
        (changed, Some(diff), _) => format!("files changed: {changed}, diff {}", short(diff)),
        (changed, None, _) => format!("files changed: {changed}, no diff kept"),
    }];
    if let Some(capture) = &receipt.capture
        && capture.extent != CaptureExtent::Complete
    {
        let reason = capture.reason.as_deref().unwrap_or("no reason given");
        let extent = match capture.extent {
            CaptureExtent::Partial => "only a part of the changes was captured",
            CaptureExtent::None | CaptureExtent::Complete => "changes were not captured",
        };
        lines.push(format!("{extent}: {reason}"));
    }
    if receipt.export.is_some() {
        lines.push(format!(
            "export gate: {} flagged, {} held, {} refused",
            export.flagged, export.held, export.refused
        ));
    }
    lines
}

fn why(bundle: &VerifiedBundle) -> Vec<String> {
    let (contract, receipt) = (bundle.contract().body(), bundle.receipt().body());
    let mut lines = vec![
        format!("{} asked for {}", contract.requested_by.label(), contract.agent.kind),
        format!("task: {}", contract.task.prompt),
        format!("policy {}", short(contract.policy_hash)),
    ];
    if let Some(decision) = &receipt.decision {
        let answer = decision_word(decision.decision);
        let reasons = decision.reasons.join("; ");
        lines.push(format!("decision {answer}: {reasons} (rules: {})", decision.rules.join(", ")));
    }
    lines
}

fn who_approved(bundle: &VerifiedBundle) -> Vec<String> {
    let approval = |event: &ChainedEvent| match event.event() {
        Event::ApprovalGranted { actor, level, .. } => {
            Some(format!("{} at level {level}, {}, by signed statement", actor.label(), event.at()))
        }
        Event::ConsentGranted { actor } => Some(format!("{}, {}", actor.label(), event.at())),
        _ => None,
    };
    let lines: Vec<_> = bundle.chain().events().iter().filter_map(approval).collect();
    if lines.is_empty() {
        return vec!["nobody was asked: policy allows this run".to_owned()];
    }
    lines
}

fn what_saw_it(bundle: &VerifiedBundle) -> Vec<String> {
    let receipt = bundle.receipt().body();
    let runner = &receipt.runner;
    let isolation = runner.isolation.map_or("no tier", Isolation::as_str);
    let mut lines =
        vec![format!("runner {} in pool {}, {isolation}", runner.runner_id, runner.pool)];
    if let Some(operation) = &receipt.operation {
        lines.push(format!("{} was done by Warrant itself, no program ran", operation.name));
        let guards = operation.guards.iter();
        lines.extend(guards.map(|guard| format!("{}: {}", guard.name, guard.source)));
    }
    if let Some(posture) = &receipt.posture {
        lines.push(posture_line(posture));
    }
    for secret in &receipt.secrets_released {
        lines.push(format!("secret {} ({})", secret.name, secret.scope));
    }
    for access in &receipt.network_accessed {
        lines.push(format!("network {} {}", access.host, access.decision.as_str()));
    }
    if let Some(folded) = &receipt.network_folded {
        lines.push(format!(
            "network: {} more destinations blocked, {} attempts, list {}",
            folded.destinations,
            folded.attempts,
            short(folded.hash)
        ));
    }
    for update in receipt.git_refs.iter().flatten() {
        let change = ref_change(&update.reference, update.old.as_deref(), update.new.as_deref());
        lines.push(format!("git {change}"));
    }
    for model in &receipt.models_used {
        lines.push(format!("model {}/{}", model.provider, model.model));
    }
    if let Some(outcome) = &receipt.outcome {
        lines.push(format!("outcome {}", outcome_words(outcome)));
    }
    for event in bundle.chain().events() {
        if let Event::RunCancelled { actor, reason } = event.event() {
            lines.push(format!("cancelled by {}", with_reason(actor, reason.as_deref())));
        }
    }
    if let Some(ms) = receipt.disconnected_ms {
        lines.push(format!("the plane was not reachable for {} s", ms.div_ceil(1000)));
    }
    lines
}

/// Counts what was in force, apart from what was only looked at from time to time.
fn posture_line(posture: &Posture) -> String {
    let count = |enforcement| {
        let is_so = |component: &&Component| component.enforcement == enforcement;
        posture.components.values().filter(is_so).count()
    };
    let (enforced, observed) = (count(Enforcement::Enforced), count(Enforcement::Observed));
    let all = posture.components.len();
    let sampled = match observed {
        0 => String::new(),
        observed => format!(", {observed} sampled"),
    };
    let by = &posture.provider_version;
    format!("{enforced} of {all} protections in force{sampled}, by {by}")
}

fn how_again(bundle: &VerifiedBundle) -> Vec<String> {
    let (contract, receipt) = (bundle.contract().body(), bundle.receipt().body());
    let mut lines = vec![
        format!("check again: warrant verify <bundle.json>, plane key {}", bundle.plane_key().id()),
        format!("take the work: warrant pull {}", receipt.run_id),
        format!("contract {} ended {}", short(bundle.contract().hash()), contract.expires_at),
    ];
    if let Some(preimage) = &receipt.preimage {
        let spec = short(preimage.sandbox_spec_hash);
        lines.push(format!("sandbox {spec}, image {}", preimage.image_digest));
    }
    lines
}
