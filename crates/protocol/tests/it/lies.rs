//! Chains that contradict themselves: runner and plane signed them, and still they do not verify.

use serde_json::Value;
use warrant_protocol::event::{ArtifactKind, Event, NetworkVerdict};
use warrant_protocol::observation::{CaptureExtent, ExportVerdict, OperationGuard};
use warrant_protocol::posture::{Enforcement, Posture};
use warrant_protocol::story::answers;
use warrant_protocol::verify::verify_slice;
use warrant_protocol::{Digest, Limits, Outcome, Usage};

use crate::forge::{Keys, command_hash, our_contract, our_events, posture, seal, trusted};
use crate::vectors::contract;

/// Returns the problems of a bundle that is sealed from these events.
fn problems(events: &[Event]) -> Vec<String> {
    let mut contract = our_contract();
    contract.secrets.clear();
    let bundle = seal(&contract, events, &Keys::real());
    match verify_slice(bundle.to_string().as_bytes(), trusted()) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn receipt(events: &[Event]) -> Value {
    seal(&our_contract(), events, &Keys::real())["receipt"].clone()
}

/// Returns the lines that answer what moved and what saw it.
fn lines(events: &[Event]) -> Vec<String> {
    let mut contract = our_contract();
    contract.secrets.clear();
    let bundle = seal(&contract, events, &Keys::real());
    let verified = verify_slice(bundle.to_string().as_bytes(), trusted()).unwrap();
    answers(&verified).into_iter().flat_map(|answer| answer.lines).collect()
}

/// An honest chain without secrets.
fn program() -> Vec<Event> {
    let is_of_secrets = |event: &Event| matches!(event, Event::SecretReleased { .. });
    our_events().into_iter().filter(|event| !is_of_secrets(event)).collect()
}

/// An honest chain of something that Warrant did itself.
fn operation() -> Vec<Event> {
    let is_of_program = |event: &Event| {
        matches!(
            event,
            Event::PreflightChecked { .. }
                | Event::GapFound { .. }
                | Event::GapDecided { .. }
                | Event::GrantAdded { .. }
                | Event::PreimageBound { .. }
                | Event::NetworkConnected { .. }
                | Event::ModelCalled { .. }
                | Event::FileChanged { .. }
                | Event::ArtifactCreated { .. }
                | Event::BoundaryCrossed { .. }
        )
    };
    let events = program().into_iter().filter(|event| !is_of_program(event));
    events
        .map(|event| match event {
            Event::CommandExecuted { .. } => performed(),
            Event::OutcomeRecorded { .. } => Event::OutcomeRecorded {
                outcome: Outcome::Performed { succeeded: true },
                exit_code: None,
                usage: Usage::default(),
            },
            other => other,
        })
        .collect()
}

fn performed() -> Event {
    Event::OperationPerformed {
        operation: "file.read".into(),
        request_hash: command_hash(&contract().body().execution_or_default()),
        succeeded: true,
        guards: vec![OperationGuard::new("files.beneath", "openat2")],
    }
}

fn before_the_outcome(mut events: Vec<Event>, event: Event) -> Vec<Event> {
    events.insert(events.len() - 2, event);
    events
}

fn observed(posture: Posture) -> Event {
    Event::PostureObserved {
        posture,
        limits_enforced: Limits::danger_unlimited(),
        limits_observed: None,
    }
}

#[test]
fn an_operation_has_no_posture_and_says_that_no_program_ran() {
    assert_eq!(problems(&operation()), Vec::<String>::new());
    let receipt = receipt(&operation());
    for member in ["posture", "limits", "evidenceAccepted", "preimage", "exitCode"] {
        assert!(receipt.get(member).is_none(), "{member}");
    }
    assert!(receipt["runner"].get("isolation").is_none());
    assert_eq!(receipt["operation"]["name"], "file.read");
    let lines = lines(&operation());
    assert!(lines.contains(&"file.read was done by Warrant itself, no program ran".to_owned()));
}

#[test]
fn an_operation_that_claims_a_program_is_told() {
    let hash = command_hash(&contract().body().execution_or_default());
    let blocked = Event::NetworkConnected {
        host: "a.example".into(),
        decision: NetworkVerdict::Blocked,
        port: None,
        why: None,
        count: None,
        bytes_out: None,
        bytes_in: None,
    };
    for (lie, name) in [
        (Event::CommandExecuted { argv_hash: hash, exit_code: 0 }, "command.executed"),
        (observed(posture()), "posture.observed"),
        (blocked, "network.connected"),
        (performed(), "operation.performed"),
    ] {
        let told = problems(&before_the_outcome(operation(), lie));
        let expected = format!("{name} contradicts what the chain says of whether a program ran");
        assert_eq!(told, [expected], "{name}");
    }
}

#[test]
fn an_outcome_that_contradicts_the_operation_is_told() {
    let told = "outcome.recorded contradicts what the chain says of whether a program ran";
    let with_outcome = |events: Vec<Event>, outcome: &Outcome| -> Vec<Event> {
        let exit_code = match outcome {
            Outcome::Exited { code } => Some(*code),
            _ => None,
        };
        let of = |event| match event {
            Event::OutcomeRecorded { .. } => Event::OutcomeRecorded {
                outcome: outcome.clone(),
                exit_code,
                usage: Usage::default(),
            },
            other => other,
        };
        events.into_iter().map(of).collect()
    };
    let exited = with_outcome(operation(), &Outcome::Exited { code: 0 });
    assert_eq!(problems(&exited), [told]);
    let program = with_outcome(program(), &Outcome::Performed { succeeded: true });
    assert_eq!(problems(&program), [told]);
}

#[test]
fn an_operation_on_something_else_is_told() {
    let events = operation().into_iter().map(|event| match event {
        Event::OperationPerformed { operation, succeeded, guards, .. } => {
            let request_hash = Digest::of(b"another request");
            Event::OperationPerformed { operation, request_hash, succeeded, guards }
        }
        other => other,
    });
    let events: Vec<Event> = events.collect();
    assert_eq!(problems(&events), ["command.executed is not the command of the contract"]);
}

#[test]
fn the_posture_of_a_receipt_is_what_the_run_saw_and_not_what_preflight_found() {
    let mut weaker = posture();
    let network = weaker.components.get_mut("network").unwrap();
    network.enforcement = Enforcement::Absent;
    let events = before_the_outcome(program(), observed(weaker));
    assert_eq!(receipt(&events)["posture"]["components"]["network"]["enforcement"], "absent");
    let told = "a program ran, and network was not enforced as the contract demands";
    assert_eq!(problems(&events), [told]);
}

#[test]
fn a_sampled_limit_does_not_count_as_enforced() {
    let mut sampled = posture();
    sampled.components.get_mut("network").unwrap().enforcement = Enforcement::Observed;
    let events = before_the_outcome(program(), observed(sampled));
    let told = "a program ran, and network was not enforced as the contract demands";
    assert_eq!(problems(&events), [told]);
    assert!(lines(&program()).iter().any(|line| line.starts_with("2 of 2 protections in force,")));
}

#[test]
fn a_held_file_that_counts_as_changed_is_told() {
    let judged = |verdict| Event::ExportJudged {
        path: "out.txt".into(),
        verdict,
        class: "editor-task".into(),
        content_hash: None,
        count: None,
    };
    let flagged = before_the_outcome(program(), judged(ExportVerdict::Flagged));
    assert_eq!(problems(&flagged), Vec::<String>::new());
    for verdict in [ExportVerdict::Held, ExportVerdict::Refused] {
        let told = problems(&before_the_outcome(program(), judged(verdict)));
        assert_eq!(told, ["file.changed names out.txt, which the export gate kept out"]);
    }
}

#[test]
fn no_file_changed_is_only_said_where_that_was_seen() {
    let unchanged: Vec<Event> = program()
        .into_iter()
        .filter(|event| {
            !matches!(
                event,
                Event::FileChanged { .. }
                    | Event::ArtifactCreated { .. }
                    | Event::BoundaryCrossed { .. }
            )
        })
        .collect();
    let capture = |extent, reason: Option<&str>| Event::CaptureRecorded {
        extent,
        files: 0,
        reason: reason.map(str::to_owned),
    };
    let nothing = "no file changed".to_owned();
    assert!(!lines(&unchanged).contains(&nothing), "nobody says that anybody looked");
    let seen = before_the_outcome(unchanged.clone(), capture(CaptureExtent::Complete, None));
    assert!(lines(&seen).contains(&nothing));
    for (extent, said) in [
        (CaptureExtent::Partial, "only a part of the changes was captured: too deep"),
        (CaptureExtent::None, "changes were not captured: too deep"),
    ] {
        let events = before_the_outcome(unchanged.clone(), capture(extent, Some("too deep")));
        let lines = lines(&events);
        assert!(!lines.contains(&nothing), "{extent:?}");
        assert!(lines.contains(&said.to_owned()), "{extent:?}: {lines:?}");
    }
}

#[test]
fn a_complete_capture_that_counts_wrongly_is_told() {
    let capture =
        Event::CaptureRecorded { extent: CaptureExtent::Complete, files: 2, reason: None };
    let told = problems(&before_the_outcome(program(), capture));
    assert_eq!(told, ["capture.recorded counts 2 files, and the chain has 1"]);
}

#[test]
fn a_list_of_destinations_that_was_not_kept_is_told() {
    let hash = Digest::of(b"list");
    let folded = Event::NetworkFolded { destinations: 3, attempts: 9, hash };
    let missing = before_the_outcome(program(), folded);
    assert_eq!(problems(&missing), ["network.folded names a list that is no artifact of the run"]);
    let kept = Event::ArtifactCreated { kind: ArtifactKind::Trace, hash };
    let kept = before_the_outcome(missing, kept);
    assert_eq!(problems(&kept), Vec::<String>::new());
    let line =
        format!("network: 3 more destinations blocked, 9 attempts, list {}", &hash.to_hex()[..12]);
    assert!(lines(&kept).contains(&line));
}
