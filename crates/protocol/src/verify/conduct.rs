//! Whether the events of a chain can have happened: in this order, once, and by this contract.
//!
//! What is checked here needs no key and no clock: each event is held against the events before
//! it and against the contract.

use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant};

use super::ours::approvers;
use super::{Parts, Problem};
use crate::contract::ContractBody;
use crate::event::{Event, NetworkVerdict};
use crate::receipt::{ReceiptStatus, SealedBy};
use crate::request::{ActorKind, ActorRef};
use crate::{Chain, ChainedEvent, Enforcement, Isolation, Outcome, Posture, Usage};

/// How a grant is signed that no person gave: the contract itself permits it.
const GRANTED_BY_POLICY: &str = "policy";

pub(super) fn check(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let is_of_runner = parts.receipt.body().sealed_by != Some(SealedBy::Plane);
    let mut order =
        EventOrder { is_of_runner, lease: LeaseStage::None, has_ended: false, seen: Vec::new() };
    for event in chain.events() {
        order.check(event, problems);
        check_event(parts, chain, event.event(), problems);
    }
    check_exit(parts, chain, problems);
    if is_of_runner {
        check_report(parts, chain, problems);
    }
}

/// How far the lease has come that the next event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseStage {
    /// Nobody has the run, or a plane gave it away that does not record starts.
    None,
    /// A runner has it and may prepare.
    Given,
    /// It may execute.
    Started,
}

/// What the order of the next event is held against.
struct EventOrder {
    is_of_runner: bool,
    lease: LeaseStage,
    has_ended: bool,
    seen: Vec<Discriminant<Event>>,
}

impl EventOrder {
    fn check(&mut self, chained: &ChainedEvent, problems: &mut Vec<Problem>) {
        let event = chained.event();
        let (seq, event_type) = (chained.seq(), || chained.event_type().to_owned());
        // A runner may record its end and vanish before its receipt; then the plane goes on.
        let is_planes_end = matches!(event, Event::RunLost { .. } | Event::RunStopping { .. });
        if self.has_ended && !self.is_of_runner && is_planes_end {
            self.has_ended = false;
        }
        if self.has_ended {
            problems.push(Problem::AfterEnd { seq, event_type: event_type() });
        }
        if self.lease == LeaseStage::Given && is_of_execution(event) {
            problems.push(Problem::BeforeStart { seq, event_type: event_type() });
        }
        if self.is_of_runner && happens_once(event) {
            if self.seen.contains(&discriminant(event)) {
                problems.push(Problem::Repeated { seq, event_type: event_type() });
            }
            self.seen.push(discriminant(event));
        }
        match event {
            Event::RunClaimed { epoch: Some(_), .. } => self.lease = LeaseStage::Given,
            Event::RunClaimed { epoch: None, .. } | Event::RunRequeued { .. } => {
                self.lease = LeaseStage::None;
            }
            Event::RunStarted { .. } => self.lease = LeaseStage::Started,
            _ => {}
        }
        self.has_ended |= crate::fold::ended_as(event).is_some();
    }
}

/// Whether an event says that a program ran or that a secret left the plane.
const fn is_of_execution(event: &Event) -> bool {
    matches!(
        event,
        Event::SecretReleased { .. }
            | Event::CommandExecuted { .. }
            | Event::FileChanged { .. }
            | Event::NetworkConnected { .. }
            | Event::ModelCalled { .. }
            | Event::ArtifactCreated { .. }
            | Event::OutputRecorded { .. }
            | Event::OperationPerformed { .. }
            | Event::PostureObserved { .. }
            | Event::CaptureRecorded { .. }
            | Event::ExportJudged { .. }
            | Event::GitRefUpdated { .. }
            | Event::NetworkFolded { .. }
            | Event::RunCompleted {}
    )
}

/// Whether one run has at most one such event.
const fn happens_once(event: &Event) -> bool {
    matches!(
        event,
        Event::CommandExecuted { .. }
            | Event::OutputRecorded { .. }
            | Event::OutcomeRecorded { .. }
            | Event::PreimageBound { .. }
    )
}

/// Holds one event against the contract and against who is on the chain.
fn check_event(parts: &Parts, chain: &Chain, event: &Event, problems: &mut Vec<Problem>) {
    let contract = parts.contract.body();
    match event {
        Event::GrantAdded { by: Some(actor), .. } if !may_grant(actor, chain) => {
            problems.push(Problem::GrantNotApproved { actor: actor.label() });
        }
        Event::NetworkConnected { host, decision: NetworkVerdict::Allowed, .. }
            if !permits(contract, chain, host) =>
        {
            problems.push(Problem::HostNotInContract { host: host.clone() });
        }
        Event::PreflightChecked { posture, .. } | Event::PostureObserved { posture, .. } => {
            let beyond = beyond_tier(posture).into_iter().map(str::to_owned);
            problems.extend(beyond.map(|component| Problem::PostureBeyondTier {
                component,
                isolation: posture.isolation,
            }));
        }
        Event::ModelCalled { cost_usd: Some(cost), .. } if cost.is_nan() || *cost < 0.0 => {
            problems.push(Problem::Usage { member: "costUsd" });
        }
        _ => {}
    }
}

fn may_grant(actor: &ActorRef, chain: &Chain) -> bool {
    let is_policy = actor.kind == ActorKind::Service && actor.id == GRANTED_BY_POLICY;
    is_policy || approvers(chain).contains(actor)
}

/// Whether the contract, or a grant on the chain, lets the run reach a host.
fn permits(contract: &ContractBody, chain: &Chain, host: &str) -> bool {
    if !contract.network.default_deny {
        return true;
    }
    let host = host.trim_end_matches('.').trim_matches(['[', ']']).to_lowercase();
    let egress = contract.egress.iter().flatten().map(|rule| rule.host.as_str());
    let hosts = contract.network.allow_hosts.iter().map(|host| host.as_str());
    hosts.chain(egress).any(|listed| covers(listed, &host))
        || chain.events().iter().any(|event| match event.event() {
            Event::GrantAdded { kind, value, .. } => kind == "host" && covers(value, &host),
            _ => false,
        })
}

/// Whether a listed host is the wanted one, or `*.` a name above it, or everything.
fn covers(listed: &str, wanted: &str) -> bool {
    match listed.strip_prefix("*.") {
        Some(above) => wanted.strip_suffix(above).is_some_and(|rest| rest.ends_with('.')),
        None => listed == wanted || listed == "*",
    }
}

/// Returns the components that a posture calls enforced and that its tier has no means for.
fn beyond_tier(posture: &Posture) -> Vec<&str> {
    let impossible: &[&str] = match posture.isolation {
        Isolation::Process => &[
            "files.read",
            "files.write",
            "files.masks",
            "network",
            "network.names",
            "processes.namespace",
            "syscalls",
            "privileges",
            "ipc",
            "limits.disk",
            "limits.inodes",
        ],
        Isolation::Mock => &["processes.namespace", "syscalls", "privileges", "ipc"],
        Isolation::Hermetic
        | Isolation::Namespace
        | Isolation::Opensandbox
        | Isolation::E2b
        | Isolation::Daytona
        | Isolation::VercelSandbox => &[],
    };
    let is_claimed = |name: &&str| {
        let component = posture.components.get(*name);
        component.is_some_and(|found| found.enforcement == Enforcement::Enforced)
    };
    impossible.iter().copied().filter(is_claimed).collect()
}

/// A run that completed exited with 0, and the chain says so wherever it says it.
fn check_exit(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let receipt = parts.receipt.body();
    let expected = match &receipt.outcome {
        Some(Outcome::Exited { code }) => Some(i64::from(*code)),
        Some(_) => None,
        None => (receipt.status == ReceiptStatus::Completed).then_some(0),
    };
    let Some(expected) = expected else { return };
    let is_other = |event: &Event| match event {
        Event::CommandExecuted { exit_code, .. } => *exit_code != expected,
        _ => false,
    };
    let is_told = problems.contains(&Problem::OutcomeContradiction);
    if !is_told && chain.events().iter().any(|event| is_other(event.event())) {
        problems.push(Problem::ExitCode);
    }
}

/// Holds what a runner reports at the end against what it reported before.
fn check_report(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let receipt = parts.receipt.body();
    let Some(outcome) = &receipt.outcome else { return };
    let kinds: BTreeSet<&str> = chain.events().iter().map(ChainedEvent::event_type).collect();
    let has_executed = kinds.contains("command.executed") || kinds.contains("operation.performed");
    match outcome {
        Outcome::Exited { .. } | Outcome::Signaled { .. } | Outcome::Limited { .. } => {
            if !has_executed {
                problems.push(Problem::NothingExecuted);
            }
        }
        Outcome::Denied | Outcome::PostureRefused | Outcome::GapDenied => {
            if has_executed {
                problems.push(Problem::ExecutedAnyway);
            }
            if receipt.usage.as_ref().is_some_and(|usage| *usage != Usage::default()) {
                problems.push(Problem::Usage { member: "usage" });
            }
        }
        // Nobody but the plane knows whether approvals came in time.
        Outcome::ApprovalExpired => problems.push(Problem::OutcomeContradiction),
        Outcome::Performed { .. }
        | Outcome::Cancelled
        | Outcome::Unobserved
        | Outcome::Lost
        | Outcome::Failed => {}
    }
}
