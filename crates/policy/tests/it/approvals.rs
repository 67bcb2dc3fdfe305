//! Who can say yes, and to what.

use serde_json::{Value, json};
use warrant_policy::{Decision, PolicySnapshot, PolicyText, decide};
use warrant_protocol::PolicyDocument;

use crate::{assert_allowed, document, facts};

fn approval(level: u8, by: &str, groups: &[&str]) -> Value {
    json!({"level": level, "by": by, "groups": groups})
}

#[track_caller]
fn asks(policy: &PolicySnapshot, approvals: Value) -> Vec<String> {
    match decide(policy, &facts(json!({"approvals": approvals}))) {
        Decision::Ask(ask) => ask.requirements.into_iter().map(|r| r.name).collect(),
        Decision::Allow { .. } => Vec::new(),
        Decision::Deny { reasons, .. } => panic!("denied: {reasons:?}"),
    }
}

#[test]
fn each_consent_rule_takes_its_own_approver() {
    let policy = document(json!({"consent": [
        {"when": "any-run", "approvers": ["human:bob"]},
        {"when": "agent-kind", "match": "command", "approvers": ["security"]},
    ]}));
    let both = ["any-run", "agent-kind:command"];
    assert_eq!(asks(&policy, json!([])), both);
    assert_eq!(asks(&policy, json!([approval(1, "human:bob", &[])])), ["agent-kind:command"]);
    assert_eq!(asks(&policy, json!([approval(3, "human:eve", &[])])), both);
    let eve = approval(1, "human:eve", &["security"]);
    assert_eq!(asks(&policy, json!([approval(1, "human:bob", &[]), eve])), [""; 0]);
}

#[test]
fn the_requester_cannot_approve_their_own_request() {
    let policy =
        document(json!({"consent": [{"when": "any-run", "approvers": ["service:agent", "*"]}]}));
    assert_eq!(asks(&policy, json!([approval(3, "service:agent", &["*"])])), ["any-run"]);
}

fn quorum_policy() -> PolicySnapshot {
    let mut document = PolicyDocument::reference();
    document["controls"] = json!({"approvals": [
        {"level": 2, "approvers": ["security"], "quorum": 2, "expiresMin": 5},
    ]});
    let rules = "@id(\"p\") @reason(\"two\") permit(principal, action, resource) \
                 when { context has approval && context.approval.level >= 2 };";
    let text = PolicyText { document: &document.to_string(), rules, examples: "" };
    PolicySnapshot::load(text).unwrap()
}

#[test]
fn a_quorum_counts_people_and_not_approvals() {
    let policy = quorum_policy();
    let bob = || approval(2, "human:bob", &["security"]);
    let eve = || approval(2, "human:eve", &["security"]);
    let asked = ["approval:level-2"];
    assert_eq!(asks(&policy, json!([])), asked);
    assert_eq!(asks(&policy, json!([bob(), bob()])), asked);
    assert_eq!(asks(&policy, json!([bob(), approval(1, "human:eve", &["security"])])), asked);
    assert_eq!(asks(&policy, json!([bob(), approval(2, "human:eve", &[])])), asked);
    assert_eq!(asks(&policy, json!([bob(), eve()])), [""; 0]);
}

#[test]
fn an_ask_says_what_would_satisfy_it() {
    let Decision::Ask(ask) = decide(&quorum_policy(), &facts(json!({}))) else { panic!("no ask") };
    let [requirement] = ask.requirements.as_slice() else { panic!("{ask:?}") };
    assert_eq!((ask.level, requirement.quorum, requirement.expires_min), (2, 2, Some(5)));
    assert_eq!(requirement.approvers, ["security"]);
    assert_eq!(ask.rules[0].id, "p");
}

#[test]
fn an_ask_nobody_can_answer_is_a_denial() {
    let rules = "@id(\"p\") @reason(\"r\") permit(principal, action, resource) \
                 when { context has approval && context.approval.level >= 1 };";
    let document = PolicyDocument::reference().to_string();
    let policy =
        PolicySnapshot::load(PolicyText { document: &document, rules, examples: "" }).unwrap();
    let reasons = crate::reasons(&policy, &facts(json!({})));
    assert_eq!(reasons, ["approval at level 1 is needed, and policy names no approver"]);
    // Nor do approvals of a level nobody was named for count.
    let approved = facts(json!({"approvals": [approval(3, "human:bob", &[])]}));
    assert_eq!(crate::reasons(&policy, &approved).len(), 1);
}

#[test]
fn an_approval_cannot_lift_what_the_document_denies() {
    let policy = document(json!({"consent": [{"when": "any-run", "approvers": ["*"]}]}));
    let patch = json!({"approvals": [approval(3, "human:bob", &[])], "pool": "nope"});
    assert_eq!(crate::reasons(&policy, &facts(patch)), ["runner pool \"nope\" is not allowed"]);
    assert_allowed(&policy, &facts(json!({"approvals": [approval(1, "human:bob", &[])]})));
}
