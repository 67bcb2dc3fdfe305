//! Secrets at rest: the wire's sealed form, and no value anywhere on disk.

use std::fs;
use std::time::Instant;

use warrant_plane::home::Home;
use warrant_plane::sealed::{LastKey, MasterKey, SealError, SealedBlob};
use warrant_plane::secrets::{Secrets, SecretsError};
use warrant_protocol::SecretName;

use crate::support::now;

fn name(text: &str) -> SecretName {
    text.parse().unwrap()
}

#[test]
fn what_the_reference_sealed_opens() {
    let text = include_str!("../../../../vectors/sealed.json");
    let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let master = MasterKey::from_text(case["masterKey"].as_str().unwrap()).unwrap();
        let sealed: SealedBlob = serde_json::from_value(case["sealed"].clone()).unwrap();
        let opened = sealed.open(&master).unwrap();
        assert_eq!(opened.as_slice(), case["plaintextUtf8"].as_str().unwrap().as_bytes());
        let wrong = MasterKey::from_text("another key").unwrap();
        assert_eq!(sealed.open(&wrong), Err(SealError::WrongKey));
    }
}

#[test]
fn a_changed_seal_does_not_open() {
    let master = MasterKey::from_text("key").unwrap();
    let sealed = SealedBlob::seal(&master, b"value", [7; 28]).unwrap();
    assert_eq!(sealed.open(&master).unwrap().as_slice(), b"value");
    let json = serde_json::to_value(&sealed).unwrap();
    for member in ["salt", "iv", "tag", "data"] {
        let mut changed = json.clone();
        let text = changed[member].as_str().unwrap().to_owned();
        let first = if text.starts_with('A') { "B" } else { "A" };
        changed[member] = format!("{first}{}", &text[1..]).into();
        let changed: SealedBlob = serde_json::from_value(changed).unwrap();
        assert!(changed.open(&master).is_err(), "{member}");
    }
}

#[test]
fn a_key_that_was_derived_opens_again_at_once_and_opens_nothing_for_others() {
    let (master, other) = (MasterKey::from_text("key"), MasterKey::from_text("other"));
    let (master, other) = (master.unwrap(), other.unwrap());
    let sealed = SealedBlob::seal(&master, b"value", [7; 28]).unwrap();
    let last = LastKey::default();
    let began = Instant::now();
    assert_eq!(sealed.open_again(&master, &last).unwrap().as_slice(), b"value");
    let first = began.elapsed();
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(sealed.open_again(&master, &last).unwrap().as_slice(), b"value");
    }
    assert!(began.elapsed() < first, "five more took {:?}, the first {first:?}", began.elapsed());
    assert_eq!(sealed.open_again(&other, &last), Err(SealError::WrongKey));
    let resealed = SealedBlob::seal(&master, b"newer", [8; 28]).unwrap();
    assert_eq!(resealed.open_again(&master, &last).unwrap().as_slice(), b"newer");
}

#[test]
fn secrets_are_set_listed_released_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open_at(dir.path().join("home"), None).unwrap();
    let secrets = Secrets::of(home.root(), None);
    assert!(secrets.list().unwrap().is_empty());
    secrets.set(&name("B"), "second", now()).unwrap();
    secrets.set(&name("A"), "first", now()).unwrap();
    secrets.set(&name("A"), "changed", now()).unwrap();
    let names: Vec<_> = secrets.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [name("A"), name("B")]);
    let released = secrets.release(&[name("B"), name("A")]).unwrap();
    let values: Vec<&str> = released.iter().map(|secret| secret.value.as_str()).collect();
    assert_eq!(values, ["second", "changed"]);
    let missing = secrets.release(&[name("A"), name("C")]);
    assert!(matches!(missing, Err(SecretsError::Missing { .. })), "all or none");
    secrets.remove(&name("A")).unwrap();
    assert!(matches!(secrets.remove(&name("A")), Err(SecretsError::Missing { .. })));
    for bad in ["", "nul\0inside", &"x".repeat(20_000)] {
        assert!(matches!(secrets.set(&name("A"), bad, now()), Err(SecretsError::Value { .. })));
    }
}

#[test]
fn no_value_lies_open_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open_at(dir.path().join("home"), None).unwrap();
    Secrets::of(home.root(), None).set(&name("TOKEN"), "tr0ub4dor&3", now()).unwrap();
    for file in ["secrets.enc", "master.key"] {
        let content = fs::read(home.root().join(file)).unwrap();
        assert!(!content.windows(11).any(|window| window == b"tr0ub4dor&3"), "{file}");
    }
    fs::remove_file(home.root().join("master.key")).unwrap();
    let lost = Secrets::of(home.root(), None).list();
    assert!(matches!(lost, Err(SecretsError::Seal(SealError::WrongKey))), "the key is needed");
}
