//! Approvals: exact request, named people, once, in time, never one's own.

use warrant_plane::home::fresh_key;
use warrant_plane::notary::ApprovalRequirement;
use warrant_plane::reception::{MOST_WAITING, Submission};
use warrant_plane::{ApproveError, Approved, EmbeddedPlane, Reception, random};
use warrant_protocol::receipt::ReceiptStatus;
use warrant_protocol::{
    Contract, Decision, KeyRole, Outcome, Receipt, RunId, RunState, Signed, Signer, TrustedKeys,
};

use crate::support::{judgment, person, plane, request, requirement, submit, submit_with};

fn ask(plane: &EmbeddedPlane, script: &str, approvers: &[&str], quorum: u32) -> RunId {
    let judgment = judgment(Decision::Ask, vec![requirement(approvers, quorum)]);
    match submit(plane, script, judgment) {
        Reception::AwaitingApproval { run, .. } => run,
        other => panic!("not waiting: {other:?}"),
    }
}

fn receipt(plane: &EmbeddedPlane, run: &RunId) -> Receipt {
    let text = plane.store().receipt(run).unwrap().unwrap();
    Receipt::from_slice(text.as_bytes()).unwrap()
}

#[track_caller]
fn check_verifies(plane: &EmbeddedPlane, run: &RunId) {
    let bundle = plane.bundle(run).unwrap().to_string();
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, plane.home().plane_key().public().clone())
        .and(KeyRole::Runner, plane.home().runner_key().public().clone());
    let verified = warrant_protocol::verify::verify_slice(bundle.as_bytes(), &trusted);
    assert!(verified.is_ok(), "{:?}", verified.err());
}

#[test]
fn a_registered_key_approves_the_exact_request_once() {
    let (_dir, plane) = plane();
    let key = fresh_key().unwrap();
    plane.home().add_approver("bob", key.public()).unwrap();
    let run = ask(&plane, "echo hello", &["bob"], 1);
    let body = plane.statement(&run, &person("bob")).unwrap();
    let forged = Signed::seal(&body, Signer::Approver, &fresh_key().unwrap()).unwrap();
    assert!(matches!(plane.approve(&run, &forged), Err(ApproveError::Statement { .. })));
    let approval = Signed::seal(&body, Signer::Approver, &key).unwrap();
    let other = ask(&plane, "echo other", &["bob"], 1);
    assert!(matches!(plane.approve(&other, &approval), Err(ApproveError::Statement { .. })));
    assert_eq!(plane.approve(&run, &approval).unwrap(), Approved::Issued);
    assert!(plane.approve(&run, &approval).is_err(), "once");
    let row = plane.store().run(&run).unwrap();
    assert_eq!(row.state, RunState::Queued);
    let contract = Contract::from_slice(row.contract.unwrap().as_bytes()).unwrap();
    assert_eq!(contract.body().approved_by, Some(vec![person("bob")]));
    assert_eq!(contract.body().requested_by, person("alice"));
}

#[test]
fn an_approval_that_ran_out_permits_nothing_any_more() {
    let (_dir, plane) = plane();
    let wanted = ApprovalRequirement { expires_min: Some(5), ..requirement(&["bob"], 1) };
    let judgment = judgment(Decision::Ask, vec![wanted]);
    let Reception::AwaitingApproval { run, .. } = submit(&plane, "echo hello", judgment) else {
        panic!("not waiting")
    };
    assert_eq!(plane.approve_authenticated(&run, &person("bob")).unwrap(), Approved::Issued);
    let row = plane.store().run(&run).unwrap();
    let contract = Contract::from_slice(row.contract.unwrap().as_bytes()).unwrap();
    let now = random::now().unwrap();
    assert!(contract.is_live(now));
    assert!(!contract.is_live(now.plus_ms(5 * 60_000)), "{}", contract.body().expires_at);
}

#[test]
fn a_flood_of_requests_cannot_bury_what_another_one_asked_for() {
    let (_dir, plane) = plane();
    let asked = |principal: &str, script: &str| {
        let submission = Submission {
            request: request(script),
            principal: person(principal),
            idempotency_key: None,
            approval_wait_ms: 60_000,
        };
        let judgment = judgment(Decision::Ask, vec![requirement(&["bob"], 1)]);
        plane.submit(submission, |_| judgment).unwrap()
    };
    for number in 0..MOST_WAITING {
        let reception = asked("mallory", &format!("echo {number}"));
        assert!(matches!(reception, Reception::AwaitingApproval { .. }), "{reception:?}");
    }
    let Reception::Denied { run, judgment, .. } = asked("mallory", "echo more") else {
        panic!("not denied")
    };
    assert!(judgment.summary.reasons.join(" ").contains("wait for approval already"));
    assert_eq!(receipt(&plane, &run).body().outcome, Some(Outcome::Denied));
    check_verifies(&plane, &run);
    let again = asked("mallory", "echo 7");
    let Reception::Repeated { run, .. } = again else { panic!("{again:?}") };
    assert!(matches!(asked("alice", "echo more"), Reception::AwaitingApproval { .. }));
    plane.refuse(&run, &person("bob"), "no").unwrap();
    assert!(matches!(asked("mallory", "echo more"), Reception::AwaitingApproval { .. }));
}

#[test]
fn nobody_approves_their_own_request_nor_a_stranger_anyones() {
    let (_dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["alice", "bob"], 1);
    let own = plane.approve_authenticated(&run, &person("alice"));
    assert!(matches!(own, Err(ApproveError::OwnRequest(_))), "{own:?}");
    let stranger = plane.approve_authenticated(&run, &person("mallory"));
    assert!(matches!(stranger, Err(ApproveError::NotAnApprover { .. })), "{stranger:?}");
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::AwaitingApproval);
}

#[test]
fn a_quorum_needs_different_people() {
    let (_dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["*"], 2);
    let first = plane.approve_authenticated(&run, &person("bob")).unwrap();
    assert_eq!(first, Approved::Missing(vec!["any-run".into()]));
    assert!(plane.approve_authenticated(&run, &person("bob")).is_err(), "the same person again");
    assert_eq!(plane.waiting().unwrap()[0].approved_by, ["human:bob"]);
    let second = plane.approve_authenticated(&run, &person("carol")).unwrap();
    assert_eq!(second, Approved::Issued);
    assert!(plane.waiting().unwrap().is_empty());
}

#[test]
fn a_refusal_ends_the_run_with_a_receipt() {
    let (_dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["bob"], 1);
    plane.refuse(&run, &person("bob"), "not on a Friday").unwrap();
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::Denied);
    assert_eq!(receipt(&plane, &run).body().outcome, Some(Outcome::Denied));
    assert!(plane.approve_authenticated(&run, &person("bob")).is_err());
    check_verifies(&plane, &run);
}

#[test]
fn what_nobody_approved_in_time_expires_with_a_receipt() {
    let (_dir, plane) = plane();
    let judgment = judgment(Decision::Ask, vec![requirement(&["bob"], 1)]);
    let Reception::AwaitingApproval { run, .. } = submit_with(&plane, "true", judgment, 0) else {
        panic!("not waiting");
    };
    assert_eq!(plane.seal_lost().unwrap(), std::slice::from_ref(&run));
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::Expired);
    assert_eq!(receipt(&plane, &run).body().outcome, Some(Outcome::ApprovalExpired));
    assert!(plane.seal_lost().unwrap().is_empty(), "exactly one receipt");
    check_verifies(&plane, &run);
}

#[test]
fn a_denial_verifies_and_cannot_be_taken_for_a_permission() {
    let (_dir, plane) = plane();
    let Reception::Denied { run, receipt, .. } =
        submit(&plane, "true", judgment(Decision::Deny, Vec::new()))
    else {
        panic!("not denied");
    };
    assert_eq!(receipt.body().status, ReceiptStatus::Failed);
    check_verifies(&plane, &run);
    let contract = plane.store().run(&run).unwrap().contract.unwrap();
    let contract = Contract::from_slice(contract.as_bytes()).unwrap();
    assert!(!contract.is_live(contract.body().issued_at), "expired from the start");
}

#[test]
fn a_queued_or_waiting_run_can_be_cancelled_with_a_receipt() {
    let (_dir, plane) = plane();
    let Reception::Queued { run } = submit(&plane, "true", judgment(Decision::Allow, Vec::new()))
    else {
        panic!("not queued");
    };
    let waiting = ask(&plane, "echo hello", &["bob"], 1);
    for run in [&run, &waiting] {
        plane.cancel(run, &person("alice")).unwrap();
        assert_eq!(receipt(&plane, run).body().status, ReceiptStatus::Cancelled);
        assert!(plane.cancel(run, &person("alice")).is_err(), "once");
        check_verifies(&plane, run);
    }
}

#[test]
fn a_judge_of_another_policy_is_refused() {
    let (_dir, plane) = plane();
    let mut other = judgment(Decision::Allow, Vec::new());
    other.policy_hash = warrant_protocol::Digest::of(b"other");
    let submission = Submission {
        request: request("true"),
        principal: person("alice"),
        idempotency_key: None,
        approval_wait_ms: 0,
    };
    assert!(plane.submit(submission, |_| other).is_err());
    assert!(plane.store().live().unwrap().is_empty());
}
