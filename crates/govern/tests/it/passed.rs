//! The record that a policy passed: used for the same files only, and for nobody else's writing.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use warrant_govern::{Desk, PolicyFiles, write_policy};
use warrant_policy::Preset;

fn record(home: &Path) -> (u64, u32) {
    let metadata = fs::metadata(home.join("policy.passed")).unwrap();
    (metadata.ino(), metadata.mode() & 0o777)
}

fn open(home: &Path) -> warrant_protocol::Digest {
    Desk::open(Some(home)).unwrap().policy().unwrap().hash()
}

#[test]
fn a_policy_is_tried_once_and_again_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    let hash = open(&home);
    let first = record(&home);
    assert_eq!(first.1, 0o600);
    assert_eq!(open(&home), hash);
    assert_eq!(record(&home), first, "it was tried again");
    write_policy(&home, &PolicyFiles::from(Preset::Strict)).unwrap();
    assert_ne!(open(&home), hash);
    assert_ne!(record(&home), first);
}

#[test]
fn a_broken_policy_is_refused_whatever_was_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    let good = open(&home);
    let rules = home.join("policy/rules.cedar");
    fs::write(&rules, "permit (principal, action, resource);").unwrap();
    let broken = || {
        let desk = Desk::open(Some(&home)).unwrap();
        assert_eq!(desk.policy().unwrap().hash(), good, "the last good one stays in force");
        desk.policy_fault().is_some_and(|fault| fault.detail().contains("is broken"))
    };
    assert!(broken());
    let lie = r#"{"name": "all is forbidden", "argv": ["true"], "expect": "deny"}"#;
    write_policy(&home, &PolicyFiles::from(Preset::Default)).unwrap();
    fs::write(home.join("policy/tests.jsonl"), lie).unwrap();
    assert!(broken());
}

#[test]
fn a_record_that_others_can_write_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    open(&home);
    let first = record(&home);
    let path = home.join("policy.passed");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    open(&home);
    assert_ne!(record(&home), first);
    assert_eq!(record(&home).1, 0o600);
}

#[test]
fn a_policy_read_while_another_is_put_in_force_is_one_of_the_two() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    let both = [PolicyFiles::from(Preset::Default), PolicyFiles::from(Preset::Strict)];
    write_policy(home, &both[0]).unwrap();
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|_| {
            scope.spawn(|| {
                for files in both.iter().cycle().take(60) {
                    write_policy(home, files).unwrap();
                }
            })
        });
        while writers.iter().any(|writer| !writer.is_finished()) {
            let read = PolicyFiles::read(&home.join("policy")).unwrap();
            assert!(both.contains(&read), "a mixture was read");
        }
    });
    let left = fs::read_dir(home).unwrap().count();
    assert!(left <= 2, "{left} names: the policy and the one before");
}
