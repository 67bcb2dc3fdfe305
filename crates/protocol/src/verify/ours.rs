//! What the reference's verifier misses.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Parts, Problem, Stage, conduct, member_texts};
use crate::approval::{Approval, ApprovalBody, is_signed_by_trusted};
use crate::bundle::BUNDLE_VERSION;
use crate::chain::EVENT_VERSION;
use crate::contract::{ContractBody, IssuerRole};
use crate::decision::Decision;
use crate::event::Event;
use crate::execution::{ExecutionSpec, PrepareContext};
use crate::fold::fold_with;
use crate::keys::{KeyRole, TrustedKeys};
use crate::receipt::{ReceiptBody, ReceiptStatus, SealedBy};
use crate::signed::SignedBody;
use crate::{
    Chain, ChainedEvent, Enforcement, Evidence, Outcome, Posture, PublicKey, Sealer, json,
};

/// Members that contracts may call critical and that are understood here.
const CONTRACT_MEMBERS: [&str; 30] = [
    "version",
    "runId",
    "issuedAt",
    "issuer",
    "requestedBy",
    "approvedBy",
    "agent",
    "task",
    "runner",
    "workspace",
    "policyHash",
    "secrets",
    "network",
    "budget",
    "disclosure",
    "execution",
    "isolation",
    "continuation",
    "expiresAt",
    "requestHash",
    "decision",
    "limits",
    "requiredPosture",
    "mode",
    "files",
    "egress",
    "masks",
    "image",
    "requiredEvidence",
    "retrySafe",
];

/// Members of receipts that follow from the chain.
const RECEIPT_MEMBERS: [&str; 34] = [
    "runId",
    "contractHash",
    "runner",
    "startedAt",
    "endedAt",
    "status",
    "eventsHead",
    "eventCount",
    "workspaceIn",
    "workspaceOut",
    "secretsReleased",
    "networkAccessed",
    "modelsUsed",
    "boundaryDisclosures",
    "costUsd",
    "sealedBy",
    "decision",
    "outcome",
    "exitCode",
    "usage",
    "stdout",
    "stderr",
    "posture",
    "evidenceAccepted",
    "limits",
    "preimage",
    "gaps",
    "grants",
    "lamport",
    "operation",
    "capture",
    "export",
    "networkFolded",
    "disconnectedMs",
];

pub(super) fn check(parts: &Parts, trusted: &TrustedKeys, problems: &mut Vec<Problem>) {
    check_trust(parts, trusted, problems);
    check_versions(parts, problems);
    check_critical(parts, problems);
    let Some(chain) = parts.chain() else { return };
    check_runner(parts, chain, problems);
    check_decision(parts, chain, problems);
    // A plane that is about to countersign took the approvals itself, and nobody else writes them.
    if parts.stage == Stage::Countersigned {
        check_approvals(parts, (chain, trusted), problems);
    }
    check_time(parts, chain, problems);
    check_fold(parts, problems);
    check_contract_kept(parts, chain, problems);
    conduct::check(parts, chain, problems);
}

fn check_trust(parts: &Parts, trusted: &TrustedKeys, problems: &mut Vec<Problem>) {
    if !trusted.trusts(KeyRole::Plane, &parts.plane) {
        let key_id = parts.plane.id().clone();
        problems.push(Problem::UntrustedKey { role: KeyRole::Plane, key_id });
    }
    let role = match parts.receipt.body().sealed_by {
        Some(SealedBy::Plane) => KeyRole::Plane,
        None => KeyRole::Runner,
    };
    if !trusted.trusts(role, &parts.runner) {
        let key_id = parts.runner.id().clone();
        problems.push(Problem::UntrustedKey { role, key_id });
    }
    check_retired(parts, (KeyRole::Plane, &parts.plane, trusted), problems);
    if role == KeyRole::Runner {
        check_retired(parts, (role, &parts.runner, trusted), problems);
    }
}

/// What a retired key signed counts when the plane dated it before the retirement.
// LIMIT: the date is the signers' own word; whoever stole a retired key can write an earlier one.
fn check_retired(
    parts: &Parts,
    (role, key, trusted): (KeyRole, &PublicKey, &TrustedKeys),
    problems: &mut Vec<Problem>,
) {
    let Some(retired_at) = trusted.retired_at(role, key) else { return };
    let issued_at = parts.contract.body().issued_at;
    let last = parts.receipt.body().ended_at.max(issued_at);
    if last > retired_at {
        problems.push(Problem::RetiredKey { role, key_id: key.id().clone(), retired_at });
    }
}

fn check_versions(parts: &Parts, problems: &mut Vec<Problem>) {
    let mut check = |found: Option<&str>, expected: &'static str, what: &str| {
        if found != Some(expected) {
            problems.push(Problem::Version { what: what.to_owned(), expected });
        }
    };
    check(parts.version.as_deref(), BUNDLE_VERSION, "bundle");
    check(parts.contract.version(), ContractBody::VERSION, ContractBody::NAME);
    check(parts.receipt.version(), ReceiptBody::VERSION, ReceiptBody::NAME);
    for event in parts.events().into_iter().flatten() {
        if event.version() != Some(EVENT_VERSION) {
            check(event.version(), EVENT_VERSION, &format!("event {}", event.seq()));
        }
    }
}

fn check_critical(parts: &Parts, problems: &mut Vec<Problem>) {
    let mut check = |object: &'static str, raw: &Map<String, Value>, known: &[&str]| {
        if raw.get("critical").is_some_and(|list| json::view::<Vec<String>>(list).is_err()) {
            problems.push(Problem::UnknownCritical { object, member: "critical".to_owned() });
        }
        for member in member_texts(raw, "critical") {
            if !known.contains(&member.as_str()) {
                problems.push(Problem::UnknownCritical { object, member });
            }
        }
    };
    check("contract", parts.contract.raw(), &CONTRACT_MEMBERS);
    check("receipt", parts.receipt.raw(), &RECEIPT_MEMBERS);
}

fn check_runner(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let issuer = &parts.contract.body().issuer;
    if issuer.key_id != *parts.plane.id() || issuer.role != IssuerRole::Plane {
        problems.push(Problem::Issuer);
    }
    if parts.receipt.body().sealed_by == Some(SealedBy::Plane) {
        return;
    }
    let runner = &parts.receipt.body().runner;
    match claimed_by(chain) {
        None => problems.push(Problem::NeverClaimed),
        Some((runner_id, key_id)) => {
            if runner.runner_id != *runner_id {
                problems.push(Problem::OtherRunner { member: "runnerId" });
            }
            if runner.key_id != *key_id {
                problems.push(Problem::OtherRunner { member: "keyId" });
            }
        }
    }
}

fn claimed_by(chain: &Chain) -> Option<(&crate::RunnerId, &crate::KeyId)> {
    chain.events().iter().rev().find_map(|event| match event.event() {
        Event::RunClaimed { runner_id, runner_key_id, .. } => Some((runner_id, runner_key_id)),
        _ => None,
    })
}

/// Decisions and approvals are the plane's and come before the run is handed out; a runner that
/// appends one of its own is caught here.
fn check_decision(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let mut is_claimed = false;
    let (mut asked, mut approved, mut denied) = (false, false, false);
    for event in chain.events() {
        let is_planes_own = match event.event() {
            Event::RunClaimed { .. } => {
                is_claimed = true;
                false
            }
            Event::PolicyEvaluated { decision, .. } | Event::DecisionMade { decision, .. } => {
                asked |= *decision == Decision::Ask;
                denied |= *decision == Decision::Deny;
                true
            }
            Event::ConsentGranted { .. } | Event::ApprovalGranted { .. } => {
                approved |= !is_claimed;
                true
            }
            Event::RunCreated {} | Event::ConsentRequested { .. } => true,
            _ => false,
        };
        if is_claimed && is_planes_own {
            let event_type = event.event_type().to_owned();
            problems.push(Problem::Misplaced { seq: event.seq(), event_type });
        }
    }
    // A refusal that the plane sealed itself, and that nobody was ever given, is evidence too.
    let is_refusal = !is_claimed
        && parts.receipt.body().sealed_by == Some(SealedBy::Plane)
        && parts.receipt.body().status != ReceiptStatus::Completed;
    if denied && !is_refusal {
        problems.push(Problem::DeniedContract);
    }
    if asked && !approved && !is_refusal {
        problems.push(Problem::NobodyApproved);
    }
    let on_chain = approvers(chain);
    for actor in parts.contract.body().approved_by.iter().flatten() {
        if !on_chain.contains(actor) {
            problems.push(Problem::ApprovalNotOnChain { actor: actor.label() });
        }
    }
}

pub(super) fn approvers(chain: &Chain) -> BTreeSet<&crate::ActorRef> {
    let events = chain.events().iter();
    events
        .filter_map(|event| match event.event() {
            Event::ConsentGranted { actor } | Event::ApprovalGranted { actor, .. } => Some(actor),
            _ => None,
        })
        .collect()
}

fn check_approvals(
    parts: &Parts,
    (chain, trusted): (&Chain, &TrustedKeys),
    problems: &mut Vec<Problem>,
) {
    let mut nonces = BTreeSet::new();
    for event in chain.events() {
        let Event::ApprovalGranted { actor, level, statement_hash, statement } = event.event()
        else {
            continue;
        };
        let mut tell = |detail: String| {
            problems.push(Problem::Approval { actor: actor.label(), detail });
        };
        let approval = match Approval::from_value(statement.clone()) {
            Ok(approval) => approval,
            Err(error) => {
                tell(error.to_string());
                continue;
            }
        };
        let (body, contract) = (approval.body(), parts.contract.body());
        let is_timely = body.issued_at <= event.at() && event.at() < body.expires_at;
        let is_same_request = contract.request_hash.is_none_or(|hash| hash == body.request_hash);
        for (holds, detail) in [
            (approval.version() == Some(ApprovalBody::VERSION), "version is another one"),
            (is_signed_by_trusted(&approval, trusted), "signature invalid or key not trusted"),
            (approval.hash() == *statement_hash, "statementHash is of another statement"),
            (body.approver == *actor, "the statement is by someone else"),
            (body.level == *level, "the statement is at another level"),
            (body.run_id == contract.run_id, "the statement is for another run"),
            (is_same_request, "the statement is for another request"),
            (body.policy_hash == contract.policy_hash, "the statement is under another policy"),
            (body.approver != contract.requested_by, "nobody approves their own request"),
            (is_timely, "the statement was not valid at that time"),
            (nonces.insert(body.nonce.clone()), "the statement was used twice"),
        ] {
            if !holds {
                tell(detail.to_owned());
            }
        }
    }
}

fn check_time(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let expires_at = parts.contract.body().expires_at;
    let is_late = |event: &&ChainedEvent| event.at() >= expires_at;
    let mut late = chain.events().iter().filter(is_late);
    if late.clone().any(|event| matches!(event.event(), Event::RunClaimed { .. })) {
        problems.push(Problem::ExpiredAtClaim);
    }
    if late.any(|event| matches!(event.event(), Event::RunStarted { .. })) {
        problems.push(Problem::ExpiredAtStart);
    }
}

/// Folds the chain again and names every member of the receipt that says something else.
pub(super) fn check_fold(parts: &Parts, problems: &mut Vec<Problem>) {
    let Some(chain) = parts.chain() else { return };
    let runner = &parts.receipt.body().runner;
    let sealer = match parts.receipt.body().sealed_by {
        Some(SealedBy::Plane) => Sealer::Plane { key_id: runner.key_id.clone() },
        None => {
            Sealer::Runner { runner_id: runner.runner_id.clone(), key_id: runner.key_id.clone() }
        }
    };
    // A chain that is empty or has not ended was told above.
    let Ok(folded) = fold_with(&parts.contract, parts.manifest_hash, (chain, &sealer)) else {
        return;
    };
    let Ok(Value::Object(folded)) = json::to_value(&folded) else { return };
    for name in RECEIPT_MEMBERS {
        if folded.get(name) == parts.receipt.raw().get(name) || is_told(name, problems) {
            continue;
        }
        for member in differing(name, &folded, parts.receipt.raw()) {
            problems.push(Problem::DoesNotFold { member });
        }
    }
    if let Some(preimage) = &parts.receipt.body().preimage {
        let fields = preimage.mismatches();
        problems.extend(fields.into_iter().map(|field| Problem::Preimage { field }));
    }
}

/// Names the differing members one level down, where both sides are objects.
fn differing(name: &str, folded: &Map<String, Value>, told: &Map<String, Value>) -> Vec<String> {
    let (Some(Value::Object(folded)), Some(Value::Object(told))) =
        (folded.get(name), told.get(name))
    else {
        return vec![name.to_owned()];
    };
    let names: BTreeSet<&String> = folded.keys().chain(told.keys()).collect();
    let differ = names.into_iter().filter(|inner| folded.get(*inner) != told.get(*inner));
    differ.map(|inner| format!("{name}.{inner}")).collect()
}

/// Whether one of the reference's problems already names this member.
fn is_told(name: &str, problems: &[Problem]) -> bool {
    problems.iter().any(|problem| match problem {
        Problem::RunId => name == "runId",
        Problem::ContractHash => name == "contractHash",
        Problem::RunnerPool => name == "runner",
        Problem::EventsHead => name == "eventsHead",
        Problem::EventCount => name == "eventCount",
        Problem::TerminalEvent => name == "status",
        Problem::BaseRef | Problem::ManifestHash => name == "workspaceIn",
        Problem::SecretsReleased => name == "secretsReleased",
        Problem::DiffHash => name == "workspaceOut",
        _ => false,
    })
}

/// Whether what happened stayed within the contract.
fn check_contract_kept(parts: &Parts, chain: &Chain, problems: &mut Vec<Problem>) {
    let contract = parts.contract.body();
    let command_hash = contracted_command(&contract.execution_or_default());
    for event in chain.events() {
        match event.event() {
            Event::SecretReleased { name, scope } => {
                let is_named = contract
                    .secrets
                    .iter()
                    .any(|claim| claim.name == *name && claim.scope == *scope);
                if !is_named {
                    problems.push(Problem::SecretNotInContract { name: name.to_string() });
                }
            }
            Event::CommandExecuted { argv_hash, .. }
                if command_hash.is_some_and(|hash| hash != *argv_hash) =>
            {
                problems.push(Problem::OtherCommand);
            }
            Event::WorkspaceMaterialized { manifest_hash: found }
                if *found != parts.manifest_hash =>
            {
                problems.push(Problem::OtherWorkspace);
            }
            _ => {}
        }
    }
    check_posture(parts, problems);
    super::observed::check(parts, chain, problems);
    check_outcome(parts.receipt.body(), problems);
}

/// The hash of the contract's command; how an agent that has no fixed command line is started is
/// the runner's business.
pub(super) fn contracted_command(execution: &ExecutionSpec) -> Option<crate::Digest> {
    let budget = crate::request::BudgetSpec { max_spend_usd: None, max_duration_min: None };
    let context = PrepareContext { environment: &BTreeMap::new(), mock_agent: None };
    execution.prepare(&budget, &context).ok().map(|prepared| prepared.hash())
}

fn check_posture(parts: &Parts, problems: &mut Vec<Problem>) {
    let (contract, receipt) = (parts.contract.body(), parts.receipt.body());
    let has_run = receipt.operation.is_none()
        && match &receipt.outcome {
            Some(
                Outcome::Exited { .. }
                | Outcome::Signaled { .. }
                | Outcome::Limited { .. }
                | Outcome::Unobserved,
            ) => true,
            Some(_) | None => false,
        };
    let wanted = contract.isolation.or(has_run.then_some(contract.isolation_or_default()));
    if let (Some(wanted), Some(found)) = (wanted, receipt.runner.isolation)
        && wanted != found
    {
        problems.push(Problem::OtherIsolation);
    }
    let Some(demanded) = contract.required_posture.as_ref().filter(|_| has_run) else { return };
    let is_lacking = |name: &&String| match &receipt.posture {
        Some(posture) => !posture.enforces(name) && !is_unknown_accepted(contract, posture, name),
        None => true,
    };
    let lacking = demanded.iter().filter(is_lacking).cloned();
    problems.extend(lacking.map(|component| Problem::RanBelowPosture { component }));
}

/// Whether the contract accepts by name that nobody can tell whether a component holds.
fn is_unknown_accepted(contract: &ContractBody, posture: &Posture, name: &str) -> bool {
    let accepted = contract.required_evidence.as_ref().and_then(|weakest| weakest.get(name));
    let found = posture.components.get(name).map(|component| component.enforcement);
    accepted == Some(&Evidence::Unavailable) && found == Some(Enforcement::Unknown)
}

fn check_outcome(receipt: &ReceiptBody, problems: &mut Vec<Problem>) {
    let Some(outcome) = &receipt.outcome else { return };
    let code = match outcome {
        Outcome::Exited { code } => Some(*code),
        _ => None,
    };
    let is_completed = receipt.status == ReceiptStatus::Completed;
    // A program may exit with 0 and the run still fail, when its work could not be collected.
    if (is_completed && !outcome.is_success()) || receipt.exit_code != code {
        problems.push(Problem::OutcomeContradiction);
    }
}
