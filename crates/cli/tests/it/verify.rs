//! `warrant verify FILE` and `warrant receipt FILE`.

use std::process::Stdio;

use serde_json::Value;

use crate::{root, run, run_with_stdin, sample, stderr, stdout, warrant};

fn trusted(command: &str, extra: &[&str]) -> std::process::Output {
    let (plane, runner) = (sample("plane.pub.pem"), sample("runner.pub.pem"));
    let mut arguments = vec![command, "BUNDLE", "--trust", &plane, "--trust", &runner];
    let bundle = sample("bundle.json");
    arguments[1] = &bundle;
    arguments.extend(extra);
    run(&arguments)
}

#[test]
fn the_sample_bundle_verifies_with_the_sample_keys() {
    let output = trusted("verify", &[]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("VERIFIED run_"), "{text}");
    assert!(text.lines().count() > 5, "one line per claim: {text}");
    assert!(!text.contains('\x1b'), "no color when piped: {text}");
}

#[test]
fn without_trust_the_bundles_own_keys_count_for_nothing() {
    let output = run(&["verify", &sample("bundle.json")]);
    assert_eq!(output.status.code(), Some(6));
    assert!(stdout(&output).starts_with("UNTRUSTED"), "{}", stdout(&output));
}

#[test]
fn a_runner_key_cannot_stand_in_for_the_plane() {
    let runner = sample("runner.pub.pem");
    let as_plane = format!("plane={runner}");
    let output = run(&["verify", &sample("bundle.json"), "--trust", &as_plane, "--trust", &runner]);
    assert_eq!(output.status.code(), Some(6), "{}", stdout(&output));
    assert!(stdout(&output).contains("plane key"), "{}", stdout(&output));
}

#[test]
fn keys_may_follow_one_trust_word() {
    let (plane, runner) = (sample("plane.pub.pem"), sample("runner.pub.pem"));
    let output = run(&["verify", &sample("bundle.json"), "--trust", &plane, &runner]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let output = run(&["verify", "--trust", &plane, "--trust", &runner, &sample("bundle.json")]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_bundle_on_stdin_verifies_and_a_changed_one_does_not() {
    let text = std::fs::read_to_string(sample("bundle.json")).unwrap();
    let (plane, runner) = (sample("plane.pub.pem"), sample("runner.pub.pem"));
    let arguments = ["verify", "-", "--trust", &plane, "--trust", &runner];
    let good = run_with_stdin(&arguments, text.as_bytes());
    assert_eq!(good.status.code(), Some(0), "{}", stdout(&good));
    let changed = text.replacen("\"completed\"", "\"cancelled\"", 1);
    assert_ne!(changed, text);
    let bad = run_with_stdin(&arguments, changed.as_bytes());
    assert_eq!(bad.status.code(), Some(6));
    assert!(stdout(&bad).contains("VERIFICATION FAILED"), "{}", stdout(&bad));
}

#[test]
fn json_is_one_object_either_way() {
    let good: Value = serde_json::from_str(&stdout(&trusted("verify", &["--json"]))).unwrap();
    assert_eq!(good["verified"], true);
    assert!(good["claims"].as_array().unwrap().len() > 5);
    let bad = run_with_stdin(&["verify", "-", "--json"], b"{}");
    assert_eq!(bad.status.code(), Some(6));
    let bad: Value = serde_json::from_str(&stdout(&bad)).unwrap();
    assert_eq!(bad["verified"], false);
    assert!(!bad["problems"].as_array().unwrap().is_empty());
}

#[test]
fn usage_is_2_and_names_the_mistake() {
    for arguments in [&["verify"][..], &["verify", "x", "--frob"], &["frobnicate"], &[]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!stderr(&output).is_empty());
    }
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let output = run(&["verify", "no-such-bundle.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no-such-bundle.json"));
}

#[test]
fn the_story_answers_five_questions_on_one_screen() {
    let output = trusted("receipt", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for question in
        ["what moved", "why", "who approved", "what saw it", "how to reproduce or revoke"]
    {
        assert!(text.contains(question), "{question}: {text}");
    }
    assert!(text.lines().count() <= 50, "one screen");
    let untold = run(&["receipt", &sample("bundle.json")]);
    assert_eq!(untold.status.code(), Some(6), "no story from an unverified bundle");
}

#[test]
fn a_reader_that_went_away_is_success() {
    let mut child = warrant()
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_readme_names_files_that_are_there() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    for word in readme.split_whitespace().filter(|word| word.starts_with("samples/")) {
        assert!(root().join(word).is_file(), "{word}");
    }
}
