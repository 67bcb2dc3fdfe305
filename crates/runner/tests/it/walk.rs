//! The walk of one run, and for each room's refusal the proof that later rooms were not entered.

use std::io::Read as _;

use warrant_plane::Reception;
use warrant_protocol::port::Plane as _;
use warrant_protocol::receipt::ReceiptStatus;
use warrant_protocol::{
    Decision, Enforcement, Event, Evidence, LimitKind, Outcome, RunState, Signer,
};
use warrant_runner::{RunError, VersionPins};

use crate::support::{House, TestBackend, allow, has_event, judgment, now, request};

#[test]
fn a_run_leaves_a_receipt_that_both_signed() {
    let (house, backend) = (House::new(), TestBackend::new());
    let ended = house.run(request("echo hello"), &backend);
    assert_eq!(ended.outcome, Outcome::Exited { code: 0 });
    assert_eq!(ended.receipt.body().status, ReceiptStatus::Completed);
    assert_eq!(*house.shown.bytes.lock().unwrap(), b"hello\n");
    let keys = house.plane.home();
    ended.receipt.check_signature(Signer::Runner, keys.runner_key().public()).unwrap();
    ended.receipt.check_signature(Signer::Plane, keys.plane_key().public()).unwrap();
    assert_eq!(
        house.events(&ended.run),
        [
            "run.created",
            "decision.made",
            "policy.evaluated",
            "run.claimed",
            "preflight.checked",
            "preimage.bound",
            "run.started",
            "command.executed",
            "posture.observed",
            "output.recorded",
            "capture.recorded",
            "artifact.created",
            "boundary.crossed",
            "outcome.recorded",
            "run.completed",
        ]
    );
    let row = house.plane.store().run(&ended.run).unwrap();
    assert_eq!(row.state, RunState::Completed);
    assert_eq!(row.requested_by, "human:alice", "identity comes from authentication");
    let bundle = house.plane.bundle(&ended.run).unwrap();
    assert_eq!(bundle["receipt"], serde_json::Value::Object(ended.receipt.raw().clone()));
    let log = ended.receipt.body().workspace_out.artifact_hashes[0];
    let mut text = String::new();
    house.plane.blob(&log).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello\n");
}

#[test]
fn a_denied_request_never_reaches_the_backend_and_leaves_a_receipt() {
    let house = House::new();
    let Reception::Denied { run, receipt, .. } =
        house.submit(request("echo hello"), |_| judgment(Decision::Deny))
    else {
        panic!("not denied");
    };
    assert_eq!(receipt.body().outcome, Some(Outcome::Denied));
    assert_eq!(receipt.body().status, ReceiptStatus::Failed);
    assert!(house.plane.lease(&run).is_err(), "a denied run is never leased");
    let events = house.events(&run);
    assert!(!events.iter().any(|kind| kind == "run.claimed" || kind == "run.started"));
    assert!(!house.plane.store().run(&run).unwrap().contract.unwrap().is_empty());
}

#[test]
fn every_end_of_a_program_has_its_receipt() {
    let (house, backend) = (House::new(), TestBackend::new());
    for (script, outcome) in [
        ("exit 0", Outcome::Exited { code: 0 }),
        ("exit 3", Outcome::Exited { code: 3 }),
        ("kill -9 $$", Outcome::Signaled { signal: 9 }),
        ("exit 124", Outcome::Limited { limit: LimitKind::Wall }),
    ] {
        let ended = house.run(request(script), &backend);
        assert_eq!(ended.outcome, outcome, "{script}");
        assert_eq!(ended.receipt.body().outcome, Some(outcome), "{script}");
        assert!(house.plane.bundle(&ended.run).is_ok());
    }
    house.cancel.cancel();
    let ended = house.run(request("echo never"), &backend);
    assert_eq!(ended.outcome, Outcome::Cancelled);
    assert_eq!(ended.receipt.body().status, ReceiptStatus::Cancelled);
    assert!(!house.events(&ended.run).contains(&"run.started".to_owned()));
}

#[test]
fn a_degraded_posture_runs_nothing_and_releases_no_secret() {
    let house = House::new();
    house.plane.secrets().set(&"TOKEN".parse().unwrap(), "s3cr3t-value", now()).unwrap();
    for spoil in 0..4 {
        let mut backend = TestBackend::new();
        let wall = backend.posture.components.get_mut("limits.wall").unwrap();
        match spoil {
            0 => wall.enforcement = Enforcement::Absent,
            1 => wall.enforcement = Enforcement::Unknown,
            2 => wall.evidence = Evidence::Requested,
            _ => drop(backend.posture.components.remove("limits.wall")),
        }
        let mut wanted = request("echo hello");
        wanted.secret_names = vec!["TOKEN".parse().unwrap()];
        let ended = house.run(wanted, &backend);
        assert_eq!(ended.outcome, Outcome::PostureRefused);
        assert_eq!(backend.runs(), 0);
        assert!(ended.receipt.body().secrets_released.is_empty());
        let events = house.events(&ended.run);
        assert!(events.contains(&"posture.refused".to_owned()));
        assert!(!events.iter().any(|kind| kind == "run.started" || kind == "secret.released"));
    }
}

#[test]
fn a_request_can_only_tighten_the_demanded_posture() {
    let (house, backend) = (House::new(), TestBackend::new());
    let mut wanted = request("echo hello");
    wanted.required_posture = Some(vec!["network".into()]);
    let ended = house.run(wanted, &backend);
    assert_eq!(ended.outcome, Outcome::PostureRefused, "the backend does not hold the network");
    assert_eq!(backend.runs(), 0);
}

#[test]
fn an_unknown_provider_version_is_degraded() {
    let (house, backend) = (House::new(), TestBackend::new());
    let lease = house.lease(request("echo hello"));
    let pins = [VersionPins {
        isolation: warrant_protocol::Isolation::Mock,
        versions: vec!["test 2".into()],
    }];
    let ended = house.run_pinned(lease, &backend, &pins).unwrap();
    assert_eq!(ended.outcome, Outcome::PostureRefused);
    assert_eq!(backend.runs(), 0);
}

#[test]
fn a_refused_preparation_runs_nothing_and_releases_no_secret() {
    let house = House::new();
    house.plane.secrets().set(&"TOKEN".parse().unwrap(), "s3cr3t-value", now()).unwrap();
    let mut backend = TestBackend::new();
    backend.refusal = Some("SANDBOX_DENIED");
    let mut wanted = request("echo hello");
    wanted.secret_names = vec!["TOKEN".parse().unwrap()];
    let ended = house.run(wanted, &backend);
    assert_eq!(ended.outcome, Outcome::GapDenied);
    assert_eq!(backend.runs(), 0);
    assert!(ended.receipt.body().secrets_released.is_empty());
}

#[test]
fn a_secret_that_nobody_set_runs_nothing() {
    let (house, backend) = (House::new(), TestBackend::new());
    let mut wanted = request("echo hello");
    wanted.secret_names = vec!["TOKEN".parse().unwrap()];
    let ended = house.run(wanted, &backend);
    assert_eq!(ended.outcome, Outcome::Denied);
    assert_eq!(backend.runs(), 0);
    assert!(!house.events(&ended.run).contains(&"run.started".to_owned()));
}

#[test]
fn a_boundary_that_breaks_is_a_failed_run_with_a_receipt() {
    let house = House::new();
    let mut backend = TestBackend::new();
    backend.broken = true;
    let ended = house.run(request("echo hello"), &backend);
    assert_eq!(ended.outcome, Outcome::Failed);
    assert!(!ended.message.contains("no namespaces"), "internal text stays inside");
}

#[test]
fn a_boundary_that_gave_way_is_a_failed_run() {
    let house = House::new();
    let mut backend = TestBackend::new();
    let mut weaker = backend.posture.clone();
    weaker.components.remove("limits.wall");
    backend.posture_while_running = Some(weaker);
    let ended = house.run(request("echo hello"), &backend);
    assert_eq!(ended.outcome, Outcome::Failed);
    let refused = |event: &Event| matches!(event, Event::PostureRefused { .. });
    assert!(has_event(&house, &ended.run, refused));
}

#[test]
fn no_backend_of_the_tier_means_no_run() {
    let (house, backend) = (House::new(), TestBackend::new());
    let mut wanted = request("echo hello");
    wanted.isolation = Some(warrant_protocol::Isolation::Namespace);
    let ended = house.run(wanted, &backend);
    assert_eq!(ended.outcome, Outcome::PostureRefused);
    assert_eq!(backend.runs(), 0);
}

#[test]
fn a_contract_of_another_plane_is_refused() {
    let (house, stranger, backend) = (House::new(), House::new(), TestBackend::new());
    let mut lease = house.lease(request("echo hello"));
    let foreign = stranger.lease(request("echo hello"));
    lease.contract = foreign.contract;
    let error = house.run_lease(lease, &backend).unwrap_err();
    assert!(matches!(error, RunError::Fold(_)), "{error:?}");
    assert_eq!(backend.runs(), 0);
}

#[test]
fn a_contract_under_another_policy_is_refused() {
    let (house, backend) = (House::new(), TestBackend::new());
    let mut lease = house.lease(request("echo hello"));
    lease.policy_hash = warrant_protocol::Digest::of(b"a newer policy");
    let ended = house.run_lease(lease, &backend).unwrap();
    assert_eq!(ended.outcome, Outcome::Denied);
    assert_eq!(backend.runs(), 0);
}

#[test]
fn a_lease_runs_at_most_once() {
    let (house, backend) = (House::new(), TestBackend::new());
    let lease = house.lease(request("echo hello"));
    house.run_lease(lease.clone(), &backend).unwrap();
    let again = house.run_lease(lease, &backend);
    assert!(again.is_err(), "{again:?}");
    assert_eq!(backend.runs(), 1);
}

#[test]
fn a_runner_cannot_write_consents_or_releases_into_its_chain() {
    let house = House::new();
    let mut lease = house.lease(request("echo hello"));
    for forged in [
        Event::ConsentGranted { actor: crate::support::alice() },
        Event::SecretReleased { name: "TOKEN".parse().unwrap(), scope: "any".into() },
        Event::RunStarted { epoch: 1, lamport: None, start_id: None },
    ] {
        let mut chain = lease.chain.clone();
        let event = chain.append(now(), &forged).unwrap().clone();
        assert!(house.plane.append(&lease.key, &[event]).is_err(), "{forged:?}");
    }
    lease.key.epoch += 1;
    assert!(house.plane.renew(&lease.key).is_err(), "another epoch is fenced");
}

#[test]
fn a_receipt_that_does_not_follow_from_its_chain_is_not_countersigned() {
    use std::collections::BTreeMap;
    use warrant_protocol::execution::PrepareContext;
    use warrant_protocol::{Sealer, Signed, fold};
    let house = House::new();
    let lease = house.lease(request("echo hello"));
    let mut chain = lease.chain.clone();
    for event in house.plane.start(&lease.key, &[]).unwrap().events {
        chain.push(event).unwrap();
    }
    let from = chain.events().len();
    let contract = lease.contract.body();
    let context = PrepareContext { environment: &BTreeMap::new(), mock_agent: None };
    let prepared = contract.execution_or_default().prepare(&contract.budget, &context).unwrap();
    let executed = Event::CommandExecuted { argv_hash: prepared.hash(), exit_code: 0 };
    chain.append(now(), &executed).unwrap();
    let outcome = Outcome::Exited { code: 0 };
    let usage = warrant_protocol::Usage::default();
    let recorded = Event::OutcomeRecorded { outcome, exit_code: Some(0), usage };
    chain.append(now(), &recorded).unwrap();
    chain.append(now(), &Event::RunCompleted {}).unwrap();
    let sealer = Sealer::Runner {
        runner_id: house.identity.id.clone(),
        key_id: house.identity.key.public().id().clone(),
    };
    let mut body = fold(&lease.contract, &chain, &sealer).unwrap();
    let events = &chain.events()[from..];
    body.exit_code = Some(7);
    let lie = Signed::seal(&body, Signer::Runner, &house.identity.key).unwrap();
    assert!(house.plane.complete(&lease.key, events, lie).is_err());
    body.exit_code = Some(0);
    let stranger = warrant_plane::home::fresh_key().unwrap();
    let forged = Signed::seal(&body, Signer::Runner, &stranger).unwrap();
    assert!(house.plane.complete(&lease.key, events, forged).is_err());
    let honest = Signed::seal(&body, Signer::Runner, &house.identity.key).unwrap();
    let first = house.plane.complete(&lease.key, events, honest.clone()).unwrap();
    let again = house.plane.complete(&lease.key, events, honest).unwrap();
    assert_eq!(first, again, "completion is idempotent");
}

#[test]
fn the_lamport_clock_only_goes_forward() {
    let (house, backend) = (House::new(), TestBackend::new());
    let lamport = |_| house.run(request("true"), &backend).receipt.body().lamport.unwrap();
    let ticks: Vec<u64> = (0..3).map(lamport).collect();
    assert_eq!(ticks, [1, 2, 3]);
}

#[test]
fn asking_runs_nothing_and_the_same_request_waits_once() {
    let house = House::new();
    let ask = || house.submit(request("echo hello"), |_| judgment(Decision::Ask));
    let Reception::AwaitingApproval { run, .. } = ask() else { panic!("not waiting") };
    assert!(house.plane.lease(&run).is_err());
    let Reception::Repeated { run: again, .. } = ask() else { panic!("a second one waits") };
    assert_eq!(run, again);
    assert!(matches!(house.submit(request("true"), allow), Reception::Queued { .. }));
}
