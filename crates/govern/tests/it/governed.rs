//! The embedders' handle: every call judged, receipts collected, closed when governance fails.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use warrant_govern::governed::{
    CallReceipt, ExecOptions, Execution, FAIL_OPEN_PRINCIPAL, Governed, GovernedError,
    GovernedOptions, GovernedSandbox, Standing, WhenGovernanceFails,
};
use warrant_govern::{Desk, record};
use warrant_protocol::Outcome;

fn options(home: &Path) -> GovernedOptions {
    GovernedOptions { home: Some(home.to_owned()), ..GovernedOptions::of_this_machine() }
}

#[track_caller]
fn done<T: std::fmt::Debug>(called: Result<Governed<T>, GovernedError>) -> T {
    match called.unwrap() {
        Governed::Done(done) => done,
        denied @ Governed::Denied(_) => panic!("{denied:?}"),
    }
}

fn exec(sandbox: &GovernedSandbox, argv: &[&str]) -> Execution {
    done(sandbox.exec(argv, &ExecOptions::default()))
}

#[test]
fn a_handle_is_made_at_first_use_and_every_call_has_a_verified_receipt() {
    let home = tempfile::tempdir().unwrap();
    let sandbox = GovernedSandbox::new(options(home.path()));
    assert!(sandbox.receipts().is_empty());
    done(sandbox.write_file("d/a.bin", &[0, 255, 10]));
    assert_eq!(done(sandbox.read_file("d/a.bin")), [0, 255, 10]);
    let first = exec(&sandbox, &["sh", "-c", "echo out; echo err >&2; exit 5"]);
    assert_eq!((first.stdout.as_slice(), first.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(first.outcome, Outcome::Exited { code: 5 });
    let again = exec(&sandbox, &["sh", "-c", "echo out; echo err >&2; exit 5"]);
    assert_eq!(first.receipt.request_hash, again.receipt.request_hash, "same call, same hash");
    let other = exec(&sandbox, &["sh", "-c", "echo other"]);
    assert_ne!(first.receipt.request_hash, other.receipt.request_hash);
    let receipts = sandbox.receipts();
    assert_eq!(receipts.len(), 5);
    assert!(receipts.is_sorted_by(|one, next| one.lamport < next.lamport), "{receipts:?}");
    let desk = Desk::open(Some(home.path())).unwrap();
    for receipt in &receipts {
        assert_eq!(receipt.standing, Standing::Approved);
        record::verified(&desk, receipt.run.as_ref().unwrap()).unwrap();
    }
    let last = receipts.last().unwrap().lamport;
    sandbox.clear_receipts();
    assert!(sandbox.receipts().is_empty());
    let restarted = GovernedSandbox::new(options(home.path()));
    assert!(exec(&restarted, &["true"]).receipt.lamport > last, "the clock survives");
    let workspace = sandbox.workspace().unwrap();
    assert!(workspace.join("d/a.bin").exists());
    sandbox.destroy().unwrap();
    sandbox.destroy().unwrap();
    assert!(!workspace.exists(), "nothing is left");
    let after = sandbox.exec(&["true"], &ExecOptions::default());
    assert!(matches!(after, Err(GovernedError::Destroyed)), "{after:?}");
}

#[test]
fn a_denial_reaches_the_callback_and_never_the_sandbox() {
    let home = tempfile::tempdir().unwrap();
    let (told, denied) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counter, list) = (Arc::clone(&told), Arc::clone(&denied));
    let sandbox = GovernedSandbox::new(GovernedOptions {
        on_receipt: Some(Box::new(move |_| *counter.lock().unwrap() += 1)),
        on_deny: Some(Box::new(move |receipt: &CallReceipt| {
            list.lock().unwrap().push(receipt.clone());
        })),
        ..options(home.path())
    });
    exec(&sandbox, &["true"]);
    let called = sandbox.exec(&["sudo", "touch", "ran"], &ExecOptions::default());
    let Governed::Denied(receipt) = called.unwrap() else { panic!("it was not denied") };
    assert_eq!(receipt.standing, Standing::Denied);
    assert!(!receipt.reasons.is_empty());
    assert!(!sandbox.workspace().unwrap().join("ran").exists());
    assert_eq!(*told.lock().unwrap(), 2, "a denial is a receipt, too");
    assert_eq!(*denied.lock().unwrap(), [receipt]);
    for path in ["../x", "/etc/passwd", ""] {
        assert!(matches!(sandbox.read_file(path), Err(GovernedError::Path(_))), "{path}");
    }
    let missing = sandbox.read_file("missing");
    assert!(matches!(missing, Err(GovernedError::File { .. })), "{missing:?}");
}

/// A home that does not open.
fn broken_home(directory: &Path) -> PathBuf {
    drop(Desk::open(Some(directory)).unwrap());
    std::fs::write(directory.join("home.json"), "{").unwrap();
    directory.to_owned()
}

#[test]
fn governance_down_means_refused() {
    let directory = tempfile::tempdir().unwrap();
    let sandbox = GovernedSandbox::new(options(&broken_home(directory.path())));
    let refused = sandbox.exec(&["true"], &ExecOptions::default());
    assert!(matches!(refused, Err(GovernedError::Governance(_))), "{refused:?}");
    assert!(sandbox.receipts().is_empty());
}

#[test]
fn the_danger_runs_as_pending_and_never_as_approved() {
    let directory = tempfile::tempdir().unwrap();
    let sandbox = GovernedSandbox::new(GovernedOptions {
        when_governance_fails: WhenGovernanceFails::DangerRunAnyway,
        ..options(&broken_home(directory.path()))
    });
    let ran = exec(&sandbox, &["sh", "-c", "echo hi; touch x; cat /etc/shadow"]);
    assert_eq!(ran.stdout, b"hi\n", "the boundary stays: {ran:?}");
    assert_eq!(ran.receipt.standing, Standing::Pending);
    assert_eq!(ran.receipt.principal, FAIL_OPEN_PRINCIPAL);
    assert_eq!(ran.receipt.run, None);
    let next = exec(&sandbox, &["true"]);
    assert!(next.receipt.lamport > ran.receipt.lamport);
    assert!(!sandbox.workspace().unwrap().join("x").exists(), "nothing unpermitted is kept");
    let home = tempfile::tempdir().unwrap();
    let healthy = GovernedSandbox::new(GovernedOptions {
        when_governance_fails: WhenGovernanceFails::DangerRunAnyway,
        ..options(home.path())
    });
    let denied = healthy.exec(&["sudo", "id"], &ExecOptions::default());
    assert!(matches!(denied, Ok(Governed::Denied(_))), "a denial stays one: {denied:?}");
    std::fs::write(home.path().join("policy/document.json"), "{").unwrap();
    let denied = healthy.exec(&["sudo", "id"], &ExecOptions::default());
    assert!(matches!(denied, Ok(Governed::Denied(_))), "the last good one decides: {denied:?}");
}

#[test]
fn a_call_that_makes_no_sense_does_not_run_by_the_danger() {
    let home = tempfile::tempdir().unwrap();
    let dangerous = |workspace: Option<&str>| {
        GovernedSandbox::new(GovernedOptions {
            when_governance_fails: WhenGovernanceFails::DangerRunAnyway,
            workspace: workspace.map(Into::into),
            ..options(home.path())
        })
    };
    let whole_machine = dangerous(Some("/"));
    let refused = whole_machine.exec(&["true"], &ExecOptions::default());
    assert!(matches!(refused, Err(GovernedError::Governance(_))), "{refused:?}");
    let refused = dangerous(None).exec(&[], &ExecOptions::default());
    assert!(matches!(refused, Err(GovernedError::Governance(_))), "{refused:?}");
    assert!(whole_machine.receipts().is_empty());
}

#[test]
fn a_denial_that_cannot_be_recorded_does_not_run_by_the_danger() {
    let home = tempfile::tempdir().unwrap();
    let sandbox = GovernedSandbox::new(GovernedOptions {
        when_governance_fails: WhenGovernanceFails::DangerRunAnyway,
        ..options(home.path())
    });
    exec(&sandbox, &["true"]);
    // The store answers, but takes nothing more.
    let store = rusqlite::Connection::open(home.path().join("data/plane.db")).unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'full'); END";
    store.execute_batch(full).unwrap();
    let refused = sandbox.exec(&["sudo", "id"], &ExecOptions::default());
    assert!(matches!(refused, Err(GovernedError::Governance(_))), "{refused:?}");
    assert_eq!(sandbox.receipts().len(), 1, "nothing ran, and nothing says so");
}
