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

/// Bob is asked about paths below `/srv`; nobody about the rest.
fn gap_policy(level: u8) -> PolicySnapshot {
    let mut document = PolicyDocument::reference();
    document["controls"] = json!({
        "files": {
            "readRoots": ["/"], "writeRoots": ["/"], "modes": ["overlay"], "masks": [],
            "gaps": {"level": level, "readRoots": ["/srv"], "writeRoots": ["/srv/out"]},
        },
        "approvals": [{"level": 1, "approvers": ["human:bob"], "quorum": 1, "expiresMin": 5}],
    });
    let rules = "@id(\"p\") @reason(\"r\") permit(principal, action, resource); \
                 @id(\"f\") @reason(\"never keys\") \
                 forbid(principal, action == Action::\"fs_grant\", resource) \
                 when { context has grant && context.grant.path like \"*/keys*\" };";
    let text = PolicyText { document: &document.to_string(), rules, examples: "" };
    PolicySnapshot::load(text).unwrap()
}

fn gap(path: &str, access: &str) -> Value {
    let gaps = json!([{"path": path, "access": access}]);
    json!({"files": {"read": [], "write": [], "mode": "overlay", "gaps": gaps}})
}

#[test]
fn a_path_that_was_not_given_takes_somebodys_word_even_where_reading_is_allowed() {
    let policy = gap_policy(1);
    let asked = |patch: Value| match decide(&policy, &facts(patch)) {
        Decision::Ask(ask) => ask.requirements.into_iter().map(|r| r.name).collect::<Vec<_>>(),
        other => panic!("{}", other.reason()),
    };
    assert_eq!(asked(gap("/srv/a", "read")), ["path-read:/srv/a"]);
    assert_eq!(asked(gap("/srv/out/b", "write")), ["path-write:/srv/out/b"]);
    let mut approved = gap("/srv/a", "read");
    approved["approvals"] = json!([approval(1, "human:bob", &[])]);
    assert_allowed(&policy, &facts(approved.clone()));
    approved["approvals"] = json!([approval(1, "service:agent", &[])]);
    assert_eq!(asked(approved), ["path-read:/srv/a"], "nobody approves their own");
}

#[test]
fn a_path_nobody_may_be_asked_about_is_denied_whoever_would_approve() {
    let policy = gap_policy(1);
    for (path, access) in [
        ("/etc/passwd", "read"),
        ("/srvx/a", "read"),
        ("/srv/../etc/passwd", "read"),
        ("/srv/a", "write"),
        ("relative", "read"),
        ("/srv/keys", "read"),
    ] {
        let mut patch = gap(path, access);
        patch["approvals"] = json!([approval(3, "human:bob", &[])]);
        assert_eq!(crate::reasons(&policy, &facts(patch)).len(), 1, "{path}");
    }
    // A level for which nobody is named, and a document that does not speak of gaps.
    let reasons = crate::reasons(&gap_policy(2), &facts(gap("/srv/a", "read")));
    assert_eq!(reasons, ["approval at level 2 is needed, and policy names no approver"]);
    let silent = document(json!({}));
    let reasons = crate::reasons(&silent, &facts(gap("/srv/a", "read")));
    assert_eq!(reasons, ["reading \"/srv/a\", which the command was not given, is not allowed"]);
}

#[test]
fn gaps_with_an_impossible_level_or_a_crooked_root_do_not_load() {
    for (gaps, wanted) in [
        (json!({"level": 4, "readRoots": [], "writeRoots": []}), "levels are 1, 2 and 3, not 4"),
        (json!({"level": 0, "readRoots": [], "writeRoots": []}), "levels are 1, 2 and 3, not 0"),
        (json!({"level": 1, "readRoots": ["a"], "writeRoots": []}), "root `a`"),
        (json!({"level": 1, "readRoots": [], "writeRoots": ["/a/.."]}), "root `/a/..`"),
        (json!({"level": 1, "readRoots": []}), "writeRoots"),
    ] {
        let mut value = PolicyDocument::reference();
        value["controls"] = json!({"files": {
            "readRoots": [], "writeRoots": [], "modes": [], "masks": [], "gaps": gaps,
        }});
        let text = PolicyText { document: &value.to_string(), rules: "", examples: "" };
        let refused = PolicySnapshot::load(text).unwrap_err();
        let mut told = refused.to_string();
        let mut cause = std::error::Error::source(&refused);
        while let Some(next) = cause {
            told = format!("{told}: {next}");
            cause = next.source();
        }
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
}
