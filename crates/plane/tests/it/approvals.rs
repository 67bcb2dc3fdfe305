//! Approvals: exact request, named people, once, in time, never one's own.

use warrant_plane::home::{Home, fresh_key};
use warrant_plane::notary::ApprovalRequirement;
use warrant_plane::reception::{MOST_WAITING, Submission};
use warrant_plane::{ApproveError, Approved, EmbeddedPlane, Reception, random};
use warrant_protocol::receipt::ReceiptStatus;
use warrant_protocol::{
    Contract, Decision, KeyRole, Outcome, Receipt, RunId, RunState, Signed, Signer, TrustedKeys,
};

use crate::support::{
    judgment, person, plane, policy_hash, request, requirement, submit, submit_with,
};

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
    assert_eq!(plane.approve(&run, &approval).unwrap(), Approved::Issued, "the same answer");
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
    let again = plane.approve_authenticated(&run, &person("bob")).unwrap();
    assert_eq!(again, first, "the same person again counts once");
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

/// Keeps an approval the way older versions did: without what follows from it.
fn approve_by_half(plane: &EmbeddedPlane, run: &RunId, approver: &str) {
    let body = plane.statement(run, &person(approver)).unwrap();
    let approval = Signed::seal(&body, Signer::Plane, plane.home().plane_key()).unwrap();
    let added = raw(plane).execute(
        "INSERT INTO approvals (run, approver, key_id, level, statement, expires_at, created_at)
         SELECT seq, ?2, ?3, 1, ?4, ?5, ?6 FROM runs WHERE id = ?1",
        rusqlite::params![
            run.as_str(),
            body.approver.label(),
            plane.home().plane_key().public().id().to_string(),
            approval.to_value().to_string(),
            body.expires_at.unix_ms(),
            body.issued_at.unix_ms(),
        ],
    );
    assert_eq!(added.unwrap(), 1);
}

fn raw(plane: &EmbeddedPlane) -> rusqlite::Connection {
    rusqlite::Connection::open(plane.home().data().join("plane.db")).unwrap()
}

fn reopen(dir: &tempfile::TempDir, plane: EmbeddedPlane) -> EmbeddedPlane {
    drop(plane);
    let home = Home::open_at(dir.path().join("home"), None).unwrap();
    EmbeddedPlane::open(home, policy_hash()).unwrap()
}

#[test]
fn an_approval_cut_from_its_contract_is_completed_at_opening() {
    let (dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["bob"], 1);
    let short = ask(&plane, "echo other", &["bob", "carol"], 2);
    approve_by_half(&plane, &run, "bob");
    approve_by_half(&plane, &short, "bob");
    let plane = reopen(&dir, plane);
    let row = plane.store().run(&run).unwrap();
    assert_eq!(row.state, RunState::Queued);
    let contract = Contract::from_slice(row.contract.unwrap().as_bytes()).unwrap();
    assert_eq!(contract.body().approved_by, Some(vec![person("bob")]));
    assert_eq!(plane.store().run(&short).unwrap().state, RunState::AwaitingApproval);
    let again = plane.approve_authenticated(&run, &person("bob")).unwrap();
    assert_eq!(again, Approved::Issued, "the retry after the crash gets the answer");
    let plane = reopen(&dir, plane);
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::Queued, "issued once");
    plane.cancel(&run, &person("alice")).unwrap();
    check_verifies(&plane, &run);
}

#[test]
fn an_approval_cut_from_its_contract_is_completed_by_the_retry() {
    let (_dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["bob"], 1);
    approve_by_half(&plane, &run, "bob");
    let again = plane.approve_authenticated(&run, &person("bob")).unwrap();
    assert_eq!(again, Approved::Issued);
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::Queued);
}

#[test]
fn an_approval_by_group_cut_from_its_contract_is_completed_once_groups_are_known() {
    let (dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["group:leads"], 1);
    let groups = || [("human:bob".to_owned(), vec!["leads".to_owned()])].into();
    plane.set_groups(groups());
    approve_by_half(&plane, &run, "bob");
    let plane = reopen(&dir, plane);
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::AwaitingApproval);
    plane.set_groups(groups());
    assert_eq!(plane.issue_approved().unwrap(), std::slice::from_ref(&run));
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::Queued);
}

#[test]
fn an_approval_whose_contract_cannot_be_kept_is_not_kept_either() {
    let (dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["bob"], 1);
    raw(&plane)
        .execute_batch(
            "CREATE TRIGGER cut BEFORE UPDATE OF state ON runs
             BEGIN SELECT RAISE(ABORT, 'cut'); END",
        )
        .unwrap();
    assert!(plane.approve_authenticated(&run, &person("bob")).is_err());
    assert!(plane.store().approvals(&run).unwrap().is_empty());
    let plane = reopen(&dir, plane);
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::AwaitingApproval);
    raw(&plane).execute_batch("DROP TRIGGER cut").unwrap();
    let retried = plane.approve_authenticated(&run, &person("bob")).unwrap();
    assert_eq!(retried, Approved::Issued);
    assert_eq!(plane.store().run(&run).unwrap().state, RunState::Queued);
}

#[test]
fn people_who_approve_at_the_same_moment_are_all_counted() {
    let (_dir, plane) = plane();
    let run = ask(&plane, "echo hello", &["*"], 6);
    let answers: Vec<Approved> = std::thread::scope(|scope| {
        let one = |number: usize| {
            let (plane, run) = (&plane, &run);
            scope.spawn(move || {
                plane.approve_authenticated(run, &person(&format!("p{number}"))).unwrap()
            })
        };
        let threads: Vec<_> = (0..6).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let issued = answers.iter().filter(|answer| **answer == Approved::Issued).count();
    assert_eq!(issued, 1, "{answers:?}");
    let row = plane.store().run(&run).unwrap();
    assert_eq!(row.state, RunState::Queued);
    let contract = Contract::from_slice(row.contract.unwrap().as_bytes()).unwrap();
    assert_eq!(contract.body().approved_by.as_ref().map(Vec::len), Some(6));
}

#[test]
fn an_answer_given_again_is_the_same_until_the_run_ended_otherwise() {
    let (_dir, plane) = plane();
    let refused = ask(&plane, "echo hello", &["bob", "carol"], 1);
    plane.refuse(&refused, &person("bob"), "not now").unwrap();
    plane.refuse(&refused, &person("bob"), "not now").unwrap();
    assert!(plane.refuse(&refused, &person("bob"), "never").is_err(), "that is another answer");
    assert!(plane.refuse(&refused, &person("carol"), "not now").is_err());
    let issued = ask(&plane, "echo other", &["bob", "carol"], 1);
    assert_eq!(plane.approve_authenticated(&issued, &person("bob")).unwrap(), Approved::Issued);
    let late = plane.approve_authenticated(&issued, &person("carol"));
    assert!(late.is_err(), "it does not wait any more: {late:?}");
    plane.cancel(&issued, &person("alice")).unwrap();
    let again = plane.approve_authenticated(&issued, &person("bob")).unwrap();
    assert_eq!(again, Approved::Issued, "what it led to then");
}
