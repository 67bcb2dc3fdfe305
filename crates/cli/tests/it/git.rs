//! Git inside: what a run commits is on the host afterwards, the receipt names it, undo takes it
//! back.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::machine::Machine;
use crate::{stderr, stdout};

const SETTINGS: [&str; 6] =
    ["-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "init.defaultBranch=main"];

fn git(at: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(SETTINGS)
        .args(arguments)
        .current_dir(at)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", stderr(&output));
    stdout(&output)
}

fn with_repository() -> Machine {
    let machine = Machine::new();
    let work = machine.work("");
    git(&work, &["init", "-q"]);
    fs::write(machine.work("file"), "first\n").unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "-qm", "first"]);
    machine
}

const COMMIT: &str = "echo second >> file && git checkout -q -b feature && \
    git -c user.name=n -c user.email=n@example.com commit -qam second";

#[test]
fn commit_made_inside_is_there_outside_named_and_undone() {
    let machine = with_repository();
    let work = machine.work("");
    let before = git(&work, &["rev-parse", "HEAD"]);
    let rollback = ["sandbox", "exec", "--mode", "workspace-rollback"];
    let output = machine.run(&[&rollback[..], &["--", "sh", "-c", COMMIT]].concat());
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(git(&work, &["log", "--format=%s", "feature"]), "second\nfirst\n");
    assert_eq!(git(&work, &["symbolic-ref", "HEAD"]), "refs/heads/feature\n");
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    assert!(!told.contains("by itself later"), "{told}");
    let commit = git(&work, &["rev-parse", "HEAD"]);
    let (old, new) = (before.trim(), commit.trim());
    let made = format!("git: refs/heads/feature made at {}", &new[..12]);
    assert!(told.contains(&made), "{told}");

    let run = told.split_whitespace().find(|word| word.starts_with("run_")).unwrap();
    let receipt = machine.json(&["receipt", run, "--json"]);
    let refs = receipt.to_string();
    let made = format!("refs/heads/feature: made at {}", &new[..12]);
    assert!(refs.contains(&made), "{refs}");
    assert!(refs.contains("HEAD: refs/heads/main to refs/heads/feature"), "{refs}");
    let verified = machine.run(&["verify", run]);
    assert_eq!(verified.status.code(), Some(0), "{}", stderr(&verified));

    let undone = machine.run(&["undo"]);
    assert_eq!(undone.status.code(), Some(0), "{}", stderr(&undone));
    assert_eq!(git(&work, &["rev-parse", "HEAD"]).trim(), old);
    assert_eq!(git(&work, &["branch", "--format=%(refname)"]), "refs/heads/main\n");
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    git(&work, &["fsck", "--strict"]);
}

#[test]
fn pull_brings_the_commits_of_an_isolated_run() {
    let machine = with_repository();
    let work = machine.work("");
    let before = git(&work, &["rev-parse", "HEAD"]);
    let output = machine.exec(&["--", "sh", "-c", COMMIT]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(git(&work, &["rev-parse", "HEAD"]), before, "an isolated run changes nothing");
    let run = told.split_whitespace().find(|word| word.starts_with("run_")).unwrap();
    let pulled = machine.run(&["pull", run]);
    assert_eq!(pulled.status.code(), Some(0), "{}", stderr(&pulled));
    assert!(stderr(&pulled).contains("git: refs/heads/feature made at"), "{}", stderr(&pulled));
    assert_eq!(git(&work, &["log", "--format=%s", "feature"]), "second\nfirst\n");
    assert_eq!(git(&work, &["symbolic-ref", "HEAD"]), "refs/heads/feature\n");
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    git(&work, &["fsck", "--strict"]);
    let undone = machine.run(&["undo"]);
    assert_eq!(undone.status.code(), Some(0), "{}", stderr(&undone));
    assert_eq!(git(&work, &["rev-parse", "HEAD"]), before);
}

#[test]
fn stash_made_inside_is_not_lost() {
    let machine = with_repository();
    let work = machine.work("");
    fs::write(machine.work("file"), "mine\n").unwrap();
    let stash = "git -c user.name=n -c user.email=n@example.com stash -q";
    let rollback = ["sandbox", "exec", "--mode", "workspace-rollback", "--", "sh", "-c"];
    let output = machine.run(&[&rollback[..], &[stash]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(machine.work("file")).unwrap(), "first\n");
    git(&work, &["stash", "pop", "-q"]);
    assert_eq!(fs::read_to_string(machine.work("file")).unwrap(), "mine\n");
}
