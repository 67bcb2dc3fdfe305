//! A key that is replaced: what the old one signed still counts, and nothing it signs later.

use std::path::Path;

use serde_json::Value;
use warrant_plane::EmbeddedPlane;
use warrant_plane::home::{Home, fresh_key};
use warrant_plane::rotation::{RotateError, rotate};
use warrant_plane::store::{RunFilter, Store};
use warrant_protocol::bundle::Bundle;
use warrant_protocol::port::Plane as _;
use warrant_protocol::succession::{
    CheckedSuccession, Succession, SuccessionRole, follow, sign_succession,
};
use warrant_protocol::verify::{Problem, verify};
use warrant_protocol::{
    Decision, Event, KeyRole, PublicKey, RunId, Sealer, Signed, Signer, TrustedKeys, fold,
};

use crate::backup::check;
use crate::support::{judgment, now, policy_hash, submit};

pub(crate) fn open(home: &Path) -> EmbeddedPlane {
    let home = Home::open_at(home.to_owned(), None).unwrap();
    EmbeddedPlane::open(home, policy_hash()).unwrap()
}

/// Runs one request to its end with the home's own runner.
pub(crate) fn complete_own(plane: &EmbeddedPlane, script: &str) -> RunId {
    submit(plane, script, judgment(Decision::Allow, Vec::new()));
    let filter = RunFilter { limit: Some(1), ..RunFilter::default() };
    let run = plane.store().list(&filter).unwrap().runs[0].id.clone();
    let lease = plane.lease(&run).unwrap();
    let mut chain = lease.chain.clone();
    for event in plane.start(&lease.key, &[]).unwrap().events {
        chain.push(event).unwrap();
    }
    let from = chain.events().len();
    chain.append(now(), &Event::RunCompleted {}).unwrap();
    let key = plane.home().runner_key();
    let sealer = Sealer::Runner {
        runner_id: plane.home().runner_id().clone(),
        key_id: key.public().id().clone(),
    };
    let body = fold(&lease.contract, &chain, &sealer).unwrap();
    let receipt = Signed::seal(&body, Signer::Runner, key).unwrap();
    plane.complete(&lease.key, &chain.events()[from..], receipt).unwrap();
    run
}

fn trust(plane: &PublicKey, runner: &PublicKey) -> TrustedKeys {
    TrustedKeys::none().and(KeyRole::Plane, plane.clone()).and(KeyRole::Runner, runner.clone())
}

fn problems(bundle: &Value, trusted: &TrustedKeys) -> Vec<Problem> {
    verify(Bundle::from_value(bundle.clone()).unwrap(), trusted).err().unwrap_or_default()
}

#[test]
fn successors_are_followed_and_old_bundles_still_verify() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let plane = open(&home);
    let before = complete_own(&plane, "echo before");
    let (old, runner) =
        (plane.home().plane_key().public().clone(), plane.home().runner_key().public().clone());
    let early = plane.bundle(&before).unwrap();
    drop(plane);
    let rotated = rotate(&home, None, SuccessionRole::Plane).unwrap();
    assert_eq!(rotated.old, *old.id());
    rotate(&home, None, SuccessionRole::Runner).unwrap();
    let plane = open(&home);
    let after = complete_own(&plane, "echo after");
    let (new, new_runner) =
        (plane.home().plane_key().public().clone(), plane.home().runner_key().public().clone());
    assert!(new != old && new_runner != runner && new == rotated.new);
    let (late, again) = (plane.bundle(&after).unwrap(), plane.bundle(&before).unwrap());
    for (what, bundle) in [("as it was", &early), ("read again", &again), ("newer", &late)] {
        assert_eq!(problems(bundle, &trust(&old, &runner)), [], "{what}, who trusts the old keys");
    }
    for (what, bundle) in [("read again", &again), ("newer", &late)] {
        let trusted = trust(&new, &new_runner);
        assert_eq!(problems(bundle, &trusted), [], "{what}, who trusts the new keys");
    }
    let stranger = fresh_key().unwrap();
    let trusted = trust(stranger.public(), &runner);
    assert!(!problems(&late, &trusted).is_empty(), "a succession makes no stranger trusted");
    let mut without = late.clone();
    without.as_object_mut().unwrap().remove("successions");
    assert!(!problems(&without, &trust(&old, &runner)).is_empty(), "without the succession");
    drop(plane);
    assert!(check(&home).is_sound());
}

#[test]
fn a_stolen_retired_key_cannot_sign_what_is_dated_later() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    drop(open(&home));
    let stolen = dir.path().join("stolen");
    let copied = std::process::Command::new("cp").arg("-a").args([&home, &stolen]).status();
    assert!(copied.unwrap().success());
    rotate(&home, None, SuccessionRole::Plane).unwrap();
    let owner = open(&home);
    let kept = complete_own(&owner, "echo kept");
    let kept = owner.bundle(&kept).unwrap();
    // The thief still has the home as it was, and works with its key.
    let thief = open(&stolen);
    let forged = complete_own(&thief, "echo forged");
    let mut forged = thief.bundle(&forged).unwrap();
    let old = thief.home().plane_key().public().clone();
    let runner = thief.home().runner_key().public().clone();
    let trusted = owner.records().trusted().unwrap();
    let is_retired = |problem: &Problem| matches!(problem, Problem::RetiredKey { .. });
    assert!(problems(&forged, &trusted).iter().any(is_retired), "its owner knows");
    forged["successions"] = kept["successions"].clone();
    let found = problems(&forged, &trust(&old, &runner));
    assert!(found.iter().any(is_retired), "who has the succession knows: {found:?}");
    let new = owner.home().plane_key().public();
    assert!(problems(&forged, &trust(new, &runner)).iter().any(is_retired));
}

#[test]
fn a_succession_that_one_key_did_not_sign_counts_for_nothing() {
    let (old, new, other) = (fresh_key().unwrap(), fresh_key().unwrap(), fresh_key().unwrap());
    let good = sign_succession(SuccessionRole::Plane, (&old, &new), now()).unwrap();
    let step = CheckedSuccession::of(&good).unwrap();
    let trusted = TrustedKeys::none().and(KeyRole::Plane, old.public().clone());
    let followed = follow(&trusted, &[step]);
    assert!(followed.trusts(KeyRole::Plane, new.public()));
    assert!(!followed.trusts(KeyRole::Runner, new.public()), "in no other role");
    for place in 0..2 {
        let mut value = good.to_value();
        value["signatures"].as_array_mut().unwrap().remove(place);
        let cut = Succession::from_value(value).unwrap();
        assert!(CheckedSuccession::of(&cut).is_err(), "signature {place} is missing");
    }
    let mut value = good.to_value();
    value["newPublicKeyPem"] = other.public().pem().into();
    assert!(CheckedSuccession::of(&Succession::from_value(value).unwrap()).is_err());
    assert!(
        CheckedSuccession::of(
            &sign_succession(SuccessionRole::Plane, (&old, &old), now()).unwrap()
        )
        .is_err()
    );
}

#[test]
fn a_key_is_not_replaced_under_a_run_or_a_process() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let plane = open(&home);
    let refused = rotate(&home, None, SuccessionRole::Plane).unwrap_err();
    assert!(matches!(refused, RotateError::InUse(1)), "{refused}");
    submit(&plane, "waits", judgment(Decision::Allow, Vec::new()));
    plane.store().list(&RunFilter::default()).unwrap();
    drop(plane);
    let refused = rotate(&home, None, SuccessionRole::Plane).unwrap_err();
    assert!(matches!(refused, RotateError::RunsUnderWay(1)), "{refused}");
}

#[test]
fn a_rotation_that_was_cut_off_is_finished_or_never_happened() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    drop(open(&home));
    let keys = home.join("keys");
    let read = |name: &str| std::fs::read(keys.join(name)).unwrap();
    let (old_secret, old_public) = (read("plane.key.pem"), read("plane.pub.pem"));
    rotate(&home, None, SuccessionRole::Plane).unwrap();
    let (new_secret, new_public) = (read("plane.key.pem"), read("plane.pub.pem"));
    let id = open(&home).home().plane_key().public().id().clone();
    let record = std::fs::read_dir(keys.join("retired")).unwrap().next().unwrap().unwrap().path();
    let record_text = std::fs::read(&record).unwrap();
    // What a crash leaves before anything is decided: the old key counts.
    std::fs::write(keys.join("plane.key.pem"), &old_secret).unwrap();
    std::fs::write(keys.join("plane.pub.pem"), &old_public).unwrap();
    std::fs::remove_file(&record).unwrap();
    std::fs::write(keys.join("plane.next.key.pem"), &new_secret).unwrap();
    std::fs::write(keys.join("plane.next.json"), &record_text).unwrap();
    assert_ne!(*open(&home).home().plane_key().public().id(), id);
    // And after: the new one does, whoever opens the home.
    std::fs::write(keys.join("plane.next.pub.pem"), &new_public).unwrap();
    assert_eq!(*open(&home).home().plane_key().public().id(), id);
    assert_eq!((read("plane.pub.pem"), std::fs::read(&record).unwrap()), (new_public, record_text));
    assert!(!keys.join("plane.next.pub.pem").exists() && Store::open(&home.join("data")).is_ok());
}
