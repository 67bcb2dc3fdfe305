//! The embedders' handle over remote providers: judged here, run there, with receipts.

use std::collections::BTreeMap;
use std::path::Path;

use warrant_govern::governed::{
    ExecOptions, Governed, GovernedError, GovernedOptions, GovernedSandbox, Standing,
    WhenGovernanceFails,
};
use warrant_govern::{Away, Desk, record};
use warrant_protocol::{Evidence, Isolation, Outcome};

use super::door::Door;
use super::site::{PROVIDERS, variables};

fn options(home: &Path, provider: Isolation, door: &Door) -> GovernedOptions {
    let accepted = ("image_digest".to_owned(), Evidence::Requested);
    let mut environment: BTreeMap<String, String> =
        variables(provider, &door.address, &door.token).into_iter().collect();
    environment.insert("WARRANT_PROVIDER_TIMEOUT_S".to_owned(), "20".to_owned());
    GovernedOptions {
        home: Some(home.to_owned()),
        provider: Some(provider.to_string()),
        away: Away {
            accept_evidence: BTreeMap::from([accepted]),
            environment: Some(environment),
            ..Away::plain()
        },
        ..GovernedOptions::of_this_machine()
    }
}

#[track_caller]
fn done<T: std::fmt::Debug>(called: Result<Governed<T>, GovernedError>) -> T {
    match called.unwrap() {
        Governed::Done(done) => done,
        denied @ Governed::Denied(_) => panic!("{denied:?}"),
    }
}

#[test]
fn a_handle_works_at_every_provider_as_it_does_here() {
    let door = Door::open();
    for provider in PROVIDERS {
        let home = tempfile::tempdir().unwrap();
        let sandbox = GovernedSandbox::new(options(home.path(), provider, &door));
        let bytes: Vec<u8> = (0..=255).collect();
        done(sandbox.write_file("d/a.bin", &bytes));
        assert_eq!(done(sandbox.read_file("d/a.bin")), bytes, "{provider}");
        let script = "wc -c < d/a.bin; echo err >&2; echo \"$A\" > said; exit 5";
        let env = BTreeMap::from([("A".to_owned(), "it's fine".to_owned())]);
        let with = ExecOptions { env, ..ExecOptions::default() };
        let ran = done(sandbox.exec(&["sh", "-c", script], &with));
        assert_eq!(ran.outcome, Outcome::Exited { code: 5 }, "{provider}");
        assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "256", "{provider}");
        assert_eq!(ran.stderr, b"err\n", "{provider}");
        assert_eq!(done(sandbox.read_file("said")), b"it's fine\n", "{provider}");
        let missing = sandbox.read_file("missing");
        assert!(matches!(missing, Err(GovernedError::File { .. })), "{provider}: {missing:?}");
        let receipts = sandbox.receipts();
        assert_eq!(receipts.len(), 5, "{provider}");
        assert!(receipts.is_sorted_by(|one, next| one.lamport < next.lamport), "{provider}");
        let desk = Desk::open(Some(home.path())).unwrap();
        for receipt in &receipts {
            assert_eq!(receipt.standing, Standing::Approved, "{provider}");
            record::verified(&desk, receipt.run.as_ref().unwrap()).unwrap();
        }
        let workspace = sandbox.workspace().unwrap();
        assert!(workspace.join("d/a.bin").exists(), "{provider}: what is written is kept here");
        sandbox.destroy().unwrap();
        sandbox.destroy().unwrap();
        assert!(!workspace.exists());
        assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}");
    }
}

#[test]
fn a_denied_call_and_evidence_that_was_not_accepted_reach_no_provider() {
    let door = Door::open();
    let provider = Isolation::E2b;
    let home = tempfile::tempdir().unwrap();
    let sandbox = GovernedSandbox::new(options(home.path(), provider, &door));
    let denied = sandbox.exec(&["sudo", "word-of-the-denied"], &ExecOptions::default()).unwrap();
    assert!(matches!(denied, Governed::Denied(_)), "{denied:?}");
    let mut strict = options(home.path(), provider, &door);
    strict.away.accept_evidence.clear();
    let strict = GovernedSandbox::new(strict);
    let refused = done(strict.exec(&["echo", "word-of-the-strict"], &ExecOptions::default()));
    assert_eq!(refused.outcome, Outcome::PostureRefused);
    assert_eq!(door.started("word-of-the"), 0);
    assert_eq!(door.sandboxes(), Vec::<String>::new());
}

#[test]
fn without_governance_nothing_leaves_for_a_provider_even_if_the_danger_was_chosen() {
    let door = Door::open();
    let home = tempfile::tempdir().unwrap();
    drop(Desk::open(Some(home.path())).unwrap());
    std::fs::write(home.path().join("home.json"), "{").unwrap();
    let sandbox = GovernedSandbox::new(GovernedOptions {
        when_governance_fails: WhenGovernanceFails::DangerRunAnyway,
        ..options(home.path(), Isolation::Daytona, &door)
    });
    let refused = sandbox.exec(&["echo", "word-of-the-broken"], &ExecOptions::default());
    assert!(matches!(refused, Err(GovernedError::Governance(_))), "{refused:?}");
    assert_eq!(door.started("word-of-the-broken"), 0);
}
