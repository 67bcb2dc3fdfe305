//! Check, explain and compare.

use serde_json::json;
use warrant_policy::{Decision, Preset, check, decide, diff, explain};
use warrant_protocol::Decision as Answer;

use crate::{facts, script};

#[test]
fn a_check_tells_what_a_policy_is() {
    let checked = check(Preset::Default.text()).unwrap();
    let policy = Preset::Default.load().unwrap();
    assert_eq!(checked.hash, policy.hash());
    assert_eq!(checked.document_hash, policy.document().hash());
    assert_eq!(checked.rules, policy.rule_count());
    assert!(checked.examples > 10);
}

#[test]
fn an_explanation_names_the_rules_and_what_would_satisfy_them() {
    let policy = Preset::Default.load().unwrap();
    let explanation = explain(&policy, &script("sudo id"));
    let exec = explanation.questions.iter().find(|q| q.action == "exec").unwrap();
    assert!(!exec.allowed);
    assert_eq!(exec.would_satisfy, Some(2));
    assert_eq!(exec.rules[0].id, "base-privileged-programs");
    assert_eq!(exec.considered, 3);
    let run = explanation.questions.iter().find(|q| q.action == "run").unwrap();
    assert!(run.allowed);
    let explanation = explain(&policy, &facts(json!({"pool": "x"})));
    assert_eq!(explanation.document.len(), 1);
}

#[test]
fn a_comparison_names_the_requests_that_change() {
    let (old, new) = (Preset::Dev.load().unwrap(), Preset::Ci.load().unwrap());
    let same = facts(json!({"pool": "nope", "network": {"hosts": ["x.y"]}}));
    let other = script("eval \"$x\"");
    let changed = diff(&old, &new, [("same", &same), ("other", &other)]);
    let ids: Vec<&str> = changed.iter().map(|change| change.id.as_str()).collect();
    assert_eq!(ids, ["other"]);
    assert!(matches!(changed[0].old, Decision::Allow { .. }));
    assert!(matches!(changed[0].new, Decision::Deny { .. }));
    assert!(diff(&old, &old, [("other", &other)]).is_empty());
}

#[test]
fn recorded_facts_read_back_as_they_were() {
    let facts = script("echo $x | sudo tee /etc/passwd");
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<warrant_policy::Facts>(&text).unwrap(), facts);
}

#[test]
fn a_summary_carries_the_hash_of_what_was_asked() {
    let policy = Preset::Default.load().unwrap();
    let summary = decide(&policy, &script("sudo id")).summary(&policy);
    assert_eq!(summary.decision, Answer::Ask);
    assert_eq!(summary.level, Some(2));
    assert_eq!(summary.policy_hash, Some(policy.hash()));
    assert_eq!(summary.rules, ["base-privileged-programs", "base-run"]);
}
