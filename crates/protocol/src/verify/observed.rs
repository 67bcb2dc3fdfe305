//! Whether what the chain says of observations agrees with itself: operations without a program,
//! verdicts of the export gate, captured files, folded destinations.

use std::collections::BTreeSet;

use super::ours::contracted_command;
use super::{Parts, Problem};
use crate::event::Event;
use crate::observation::{CaptureExtent, ExportVerdict};
use crate::{Chain, Digest, Outcome};

pub(super) fn check(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    check_operation(parts, chain, problems);
    check_export(chain, problems);
    check_capture(chain, problems);
    check_folded(chain, problems);
}

/// What Warrant did itself starts no program, has no posture and reaches nothing.
fn check_operation(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let events = || chain.events().iter();
    let outcome = parts.receipt.body().outcome.as_ref();
    let mut performed = events().filter_map(|event| match event.event() {
        Event::OperationPerformed { request_hash, succeeded, .. } => {
            Some((*request_hash, *succeeded))
        }
        _ => None,
    });
    let mut contradict = |event_type: &str| {
        problems.push(Problem::ProgramContradiction { event_type: event_type.to_owned() });
    };
    let Some((request_hash, succeeded)) = performed.next() else {
        if matches!(outcome, Some(Outcome::Performed { .. })) {
            contradict("outcome.recorded");
        }
        return;
    };
    if performed.next().is_some() {
        contradict("operation.performed");
    }
    for event in events() {
        if matches!(
            event.event(),
            Event::CommandExecuted { .. }
                | Event::PostureObserved { .. }
                | Event::NetworkConnected { .. }
                | Event::NetworkFolded { .. }
                | Event::ModelCalled { .. }
        ) {
            contradict(event.event_type());
        }
    }
    let is_told = match outcome {
        Some(Outcome::Performed { succeeded: told }) => *told == succeeded,
        Some(Outcome::Exited { .. } | Outcome::Signaled { .. }) => false,
        Some(_) | None => true,
    };
    if !is_told {
        contradict("outcome.recorded");
    }
    let command = contracted_command(&parts.contract.body().execution_or_default());
    if command.is_some_and(|command| command != request_hash) {
        problems.push(Problem::OtherCommand);
    }
}

/// What the export gate kept out is not among the changed files.
fn check_export(chain: &Chain, problems: &mut Vec<Problem>) {
    let kept_out: BTreeSet<&str> = chain
        .events()
        .iter()
        .filter_map(|event| match event.event() {
            Event::ExportJudged { path, verdict, count: None, .. }
                if *verdict != ExportVerdict::Flagged =>
            {
                Some(path.as_str())
            }
            _ => None,
        })
        .collect();
    for event in chain.events() {
        if let Event::FileChanged { path, .. } = event.event()
            && kept_out.contains(path.as_str())
        {
            problems.push(Problem::HeldFileChanged { path: path.clone() });
        }
    }
}

fn check_capture(chain: &Chain, problems: &mut Vec<Problem>) {
    let is_change =
        |event: &&crate::ChainedEvent| matches!(event.event(), Event::FileChanged { .. });
    let found = chain.events().iter().filter(is_change).count() as u64;
    for event in chain.events() {
        if let Event::CaptureRecorded { extent: CaptureExtent::Complete, files, .. } = event.event()
            && *files != found
        {
            problems.push(Problem::CaptureCount { counted: *files, found });
        }
    }
}

fn check_folded(chain: &Chain, problems: &mut Vec<Problem>) {
    let artifacts: BTreeSet<Digest> = chain
        .events()
        .iter()
        .filter_map(|event| match event.event() {
            Event::ArtifactCreated { hash, .. } => Some(*hash),
            _ => None,
        })
        .collect();
    for event in chain.events() {
        if let Event::NetworkFolded { hash, .. } = event.event()
            && !artifacts.contains(hash)
        {
            problems.push(Problem::FoldedListMissing);
        }
    }
}
