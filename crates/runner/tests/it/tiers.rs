//! The walk through the real local tiers.

use std::fs;
use std::io::Read as _;

use warrant_protocol::{Isolation, KeyRole, Outcome, TrustedKeys};
use warrant_sandbox::{Namespace, Process};

use crate::support::{House, now, request};

#[track_caller]
fn check_verifies(house: &House, run: &warrant_protocol::RunId) {
    let home = house.plane.home();
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, home.plane_key().public().clone())
        .and(KeyRole::Runner, home.runner_key().public().clone());
    let bundle = house.plane.bundle(run).unwrap().to_string();
    let verified = warrant_protocol::verify::verify_slice(bundle.as_bytes(), &trusted);
    assert!(verified.is_ok(), "{:?}", verified.err());
}

#[test]
fn a_run_in_the_namespace_tier_leaves_its_diff_and_not_its_changes() {
    let house = House::new();
    house.plane.secrets().set(&"TOKEN".parse().unwrap(), "correct-horse", now()).unwrap();
    fs::write(house.workspace.path().join("old.txt"), "old\n").unwrap();
    let script = "cat old.txt; echo \"$TOKEN\"; echo new > new.txt; echo \"$TOKEN\" >> old.txt";
    let mut wanted = request(script);
    wanted.isolation = Some(Isolation::Namespace);
    wanted.secret_names = vec!["TOKEN".parse().unwrap()];
    let ended = house.run(wanted, &Namespace::new());
    assert_eq!(ended.outcome, Outcome::Exited { code: 0 }, "{}", ended.message);
    assert_eq!(*house.shown.bytes.lock().unwrap(), b"old\n[REDACTED:TOKEN]\n");
    assert!(!house.workspace.path().join("new.txt").exists(), "the workspace stays untouched");
    let digest = ended.receipt.body().workspace_out.diff_hash.unwrap();
    let mut diff = String::new();
    let mut reader = house.plane.store().blob(&digest).unwrap().unwrap();
    reader.read_to_string(&mut diff).unwrap();
    assert!(diff.contains("+new\n") && diff.contains("+[REDACTED:TOKEN]\n"), "{diff}");
    assert_eq!(ended.receipt.body().runner.isolation, Some(Isolation::Namespace));
    check_verifies(&house, &ended.run);
}

#[test]
fn a_path_outside_what_was_given_is_a_denied_gap_before_anything_runs() {
    let house = House::new();
    let outside = tempfile::tempdir_in("/var").unwrap();
    let mut wanted = request(&format!("cat {}/secret.txt", outside.path().display()));
    wanted.isolation = Some(Isolation::Namespace);
    let ended = house.run(wanted, &Namespace::new());
    assert_eq!(ended.outcome, Outcome::GapDenied, "{}", ended.message);
    let events = house.events(&ended.run);
    assert!(events.contains(&"gap.found".to_owned()) && events.contains(&"gap.decided".to_owned()));
    assert!(!events.contains(&"run.started".to_owned()));
    check_verifies(&house, &ended.run);
}

#[test]
fn a_demand_the_process_tier_cannot_hold_is_refused_and_nothing_weaker_runs() {
    let house = House::new();
    let marker = house.workspace.path().join("ran");
    let mut wanted = request("touch ran");
    wanted.isolation = Some(Isolation::Process);
    wanted.required_posture = Some(vec!["network".into(), "files.read".into()]);
    let ended = house.run(wanted, &Process::new());
    assert_eq!(ended.outcome, Outcome::PostureRefused, "{}", ended.message);
    assert!(!marker.exists());
    check_verifies(&house, &ended.run);
}
