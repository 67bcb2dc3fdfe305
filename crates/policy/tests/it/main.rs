//! Decisions seen from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod approvals;
mod bypasses;
mod inspection;
mod loading;
mod passed;
mod presets;
mod vectors;

use serde_json::{Value, json};
use warrant_policy::{Decision, Facts, PolicySnapshot, decide, examples};
use warrant_protocol::PolicyDocument;

/// Returns the facts of a plain request with some members changed.
fn facts(patch: Value) -> Facts {
    let line = json!({"name": "test", "facts": patch, "expect": "allow"}).to_string();
    let (_, example) = examples::read(&line).unwrap().remove(0);
    example.facts().unwrap()
}

/// Returns the facts of a plain request for a script.
fn script(script: &str) -> Facts {
    let line = json!({"name": "test", "script": script, "expect": "allow"}).to_string();
    let (_, example) = examples::read(&line).unwrap().remove(0);
    example.facts().unwrap()
}

/// Returns a policy of the reference's document with some members added or replaced.
fn document(members: Value) -> PolicySnapshot {
    let mut value = PolicyDocument::reference();
    for (name, member) in members.as_object().unwrap() {
        value[name] = member.clone();
    }
    PolicySnapshot::of_document(PolicyDocument::from_value(value).unwrap()).unwrap()
}

/// Returns the reasons of a denial.
#[track_caller]
fn reasons(policy: &PolicySnapshot, facts: &Facts) -> Vec<String> {
    match decide(policy, facts) {
        Decision::Deny { reasons, .. } => reasons.into_iter().map(|r| r.message).collect(),
        other => panic!("not denied: {other:?}"),
    }
}

#[track_caller]
fn assert_allowed(policy: &PolicySnapshot, facts: &Facts) {
    let decision = decide(policy, facts);
    assert!(matches!(decision, Decision::Allow { .. }), "{}", decision.reason());
}
