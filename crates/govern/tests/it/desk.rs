//! The desk with the tier that needs nothing of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Value, json};
use warrant_govern::{Ask, Attempt, Desk, Hands, Permit, plain_request, principal};
use warrant_plane::{ApproveError, Reception, Submission};
use warrant_protocol::execution::ExecutionSpec;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{Decision, Isolation, Outcome, RunState};
use warrant_runner::run::Observer;
use warrant_sandbox::{Cancel, Process, Stdin, Stream};

#[derive(Default)]
struct Seen(Mutex<Vec<u8>>);

impl Observer for Seen {
    fn output(&self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }
}

fn ask(desk: &Desk, workspace: &Path, words: &[&str]) -> Ask {
    let execution = ExecutionSpec::Argv {
        command: words[0].to_owned(),
        args: words[1..].iter().map(|word| (*word).to_owned()).collect(),
        cwd: None,
        timeout_ms: None,
        env: None,
        log: None,
    };
    let principal = principal();
    let who = (&principal, desk.plane().home().pool());
    let request = plain_request(who, workspace, execution, Isolation::Process);
    let (workspace, settled_env) = (workspace.to_owned(), BTreeSet::new());
    Ask { request, workspace, program: None, image: None, settled_env, principal }
}

fn attempt(desk: &Desk, ask: &Ask) -> (Attempt, Vec<u8>) {
    let seen = Seen::default();
    let hands = Hands {
        backend: &Process::new(),
        stdin: &Stdin::Empty,
        tty: None,
        cancel: &Cancel::new().unwrap(),
        observer: &seen,
        environment: &BTreeMap::new(),
    };
    let attempt = desk.attempt(ask, &hands).unwrap();
    (attempt, seen.0.into_inner().unwrap())
}

#[test]
fn a_desk_without_a_policy_denies_and_leaves_a_receipt() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    drop(Desk::open(Some(home.path())).unwrap());
    std::fs::remove_dir_all(home.path().join("policy")).unwrap();
    let desk = Desk::open(Some(home.path())).unwrap();
    let (attempt, output) = attempt(&desk, &ask(&desk, workspace.path(), &["echo", "never"]));
    let Attempt::NotRun(permit) = attempt else { panic!("{attempt:?}") };
    let Permit::Denied { receipt, .. } = *permit else { panic!("{permit:?}") };
    assert_eq!(receipt.body().outcome, Some(Outcome::Denied));
    assert!(output.is_empty());
}

#[test]
fn what_is_judged_without_being_asked_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let desk = Desk::open(Some(home.path())).unwrap();
    desk.judge(&ask(&desk, workspace.path(), &["true"])).unwrap();
    assert!(desk.plane().store().live().unwrap().is_empty());
}

#[test]
fn somebody_who_was_denied_very_often_is_not_simply_allowed() {
    let (home, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let desk = Desk::open(Some(home.path())).unwrap();
    let harmless = |isolation| {
        let mut harmless = ask(&desk, workspace.path(), &["true"]);
        harmless.request.isolation = Some(isolation);
        harmless
    };
    let mut denied = harmless(Isolation::Namespace);
    denied.request.agent_kind = "nobody-allows-this".to_owned();
    for number in 0..105 {
        let permit = desk.permit(&denied).unwrap();
        assert!(matches!(permit, Permit::Denied { .. }), "{number}: {permit:?}");
        if number == 98 {
            let judgment = desk.judge(&harmless(Isolation::Namespace)).unwrap();
            assert_eq!(judgment.summary.decision, Decision::Allow, "{:?}", judgment.summary);
        }
    }
    let judgment = desk.judge(&harmless(Isolation::Namespace)).unwrap();
    assert_ne!(judgment.summary.decision, Decision::Allow);
    let rules = &judgment.summary.rules;
    assert!(rules.iter().any(|rule| rule == "base-run-after-denials"), "{rules:?}");
}

/// Opens a home whose policy asks bob about reading below a directory.
pub(crate) fn asking_desk(home: &Path, outside: &Path) -> Desk {
    drop(Desk::open(Some(home)).unwrap());
    let path = home.join("policy/document.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    document["controls"]["files"]["gaps"] =
        json!({"level": 1, "readRoots": [outside], "writeRoots": []});
    document["controls"]["approvals"] =
        json!([{"level": 1, "approvers": ["bob"], "quorum": 1, "expiresMin": 60}]);
    std::fs::write(&path, document.to_string()).unwrap();
    // Its examples are about the approvers it had.
    std::fs::write(home.join("policy/tests.jsonl"), "").unwrap();
    Desk::open(Some(home)).unwrap()
}

#[test]
fn a_path_nobody_approved_in_time_is_not_given_and_its_receipt_says_so() {
    let (home, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outside = tempfile::tempdir_in("/var").unwrap();
    let file = outside.path().join("told");
    std::fs::write(&file, "told\n").unwrap();
    let desk = asking_desk(home.path(), outside.path());
    let mut plain = ask(&desk, workspace.path(), &["cat", file.to_str().unwrap()]);
    plain.request.isolation = Some(Isolation::Namespace);
    let asking = desk.with_gaps(plain.clone()).unwrap();
    assert_ne!(asking.request.hash().unwrap(), plain.request.hash().unwrap());
    let submission = Submission {
        request: asking.request.clone(),
        principal: asking.principal.clone(),
        idempotency_key: None,
        approval_wait_ms: 1,
    };
    let judgment = desk.judge(&asking).unwrap();
    let reception = desk.plane().submit(submission, |_| judgment).unwrap();
    let Reception::AwaitingApproval { run, .. } = reception else { panic!("{reception:?}") };
    // Longer than the word was waited for.
    std::thread::sleep(std::time::Duration::from_millis(5));
    let bob = ActorRef { kind: ActorKind::Human, id: "bob".to_owned() };
    let late = desk.plane().approve_authenticated(&run, &bob);
    assert!(matches!(late, Err(ApproveError::Expired(_))), "{late:?}");
    assert_eq!(desk.plane().store().run(&run).unwrap().state, RunState::Expired);
    let bundle = desk.plane().bundle(&run).unwrap().to_string();
    assert!(bundle.contains("approval-expired"), "{bundle}");
    let (again, output) = attempt(&desk, &asking);
    let Attempt::NotRun(permit) = again else { panic!("it ran: {output:?}") };
    assert!(matches!(*permit, Permit::Waiting { .. }), "it is asked anew");
    assert!(output.is_empty());
}
