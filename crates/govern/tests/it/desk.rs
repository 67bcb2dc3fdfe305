//! The desk with the tier that needs nothing of the machine.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use warrant_govern::{Ask, Attempt, Desk, Hands, Permit, plain_request, principal};
use warrant_protocol::execution::ExecutionSpec;
use warrant_protocol::{Isolation, Outcome};
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
    Ask { request, workspace: workspace.to_owned(), program: None, image: None, principal }
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
