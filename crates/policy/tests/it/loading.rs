//! A broken policy is refused, and a rule that fails does not open anything.

use serde_json::{Value, json};
use warrant_policy::snapshot::DOCUMENT_ONLY;
use warrant_policy::{
    Decision, PolicySnapshot, PolicyText, ReasonCode, decide, decide_without_policy,
};
use warrant_protocol::PolicyDocument;

use crate::{assert_allowed, facts, reasons};

fn load(rules: &str) -> Result<PolicySnapshot, String> {
    load_with(&PolicyDocument::reference(), rules, "")
}

fn load_with(document: &Value, rules: &str, examples: &str) -> Result<PolicySnapshot, String> {
    let document = document.to_string();
    PolicySnapshot::load(PolicyText { document: &document, rules, examples })
        .map_err(|e| e.to_string())
}

#[track_caller]
fn refused(result: Result<PolicySnapshot, String>, expected: &str) {
    let message = result.map(|policy| policy.hash()).unwrap_err();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn broken_rules_are_refused() {
    let named = |body: &str| format!("@id(\"a\") @reason(\"b\") {body}");
    refused(load("permit(principal"), "do not parse");
    refused(load("permit(principal, action, resource);"), "no @id");
    refused(load("@id(\"a\") permit(principal, action, resource);"), "no @reason");
    refused(load(&named("permit(principal == ?principal, action, resource);")), "template");
    refused(load(&format!("{DOCUMENT_ONLY}{DOCUMENT_ONLY}")), "document-only");
    refused(load(&named("permit(principal, action == Action::\"fly\", resource);")), "not valid");
    refused(
        load(&named("permit(principal, action, resource) when { context.nothing };")),
        "not valid",
    );
    refused(
        load(&named("permit(principal, action, resource) when { context.cwd > 1 };")),
        "not valid",
    );
    // Only warnings: a rule that can never apply is a mistake.
    refused(load(&named("permit(principal, action, resource) when { false };")), "not valid");
    refused(
        load(&named("forbid(principal, action == Action::\"exec\", resource == Host::\"h\");")),
        "not valid",
    );
}

#[test]
fn a_rule_that_reads_a_fact_nobody_supplies_does_not_load() {
    let rule = |id: &str, condition: &str| {
        let run = "forbid(principal, action == Action::\"run\", resource)";
        format!("{DOCUMENT_ONLY}@id(\"{id}\") @reason(\"b\") {run} when {{ {condition} }};")
    };
    refused(
        load(&rule("too-many", "context.history.run_execs > 3")),
        "rule `too-many` reads `context.history.run_execs`, which nobody supplies",
    );
    refused(
        load(&rule("dear", "context.cmd.nargs > 1 && 5 <= context.budget.spent_cents")),
        "rule `dear` reads `context.budget.spent_cents`, which nobody supplies",
    );
    refused(
        load(&rule("whole", "context.history == context.history")),
        "`context.history.run_execs`",
    );
    refused(
        load(&rule(
            "either",
            "(if context.cmd.shell then context.history else context.history).run_execs > 1",
        )),
        "run_execs",
    );
    for supplied in [
        "context.history.denies_10m > 3",
        "context.history.runs_10m > 3",
        "context.budget.wall_ms > 3",
        "context.data_classes.contains(\"session-log\")",
    ] {
        assert!(load(&rule("good", supplied)).is_ok(), "{supplied}");
    }
}

#[test]
fn broken_documents_are_refused() {
    let with = |controls: Value| {
        let mut document = PolicyDocument::reference();
        document["controls"] = controls;
        load_with(&document, DOCUMENT_ONLY, "")
    };
    assert!(with(json!({})).is_ok());
    refused(with(json!({"limit": {}})), "unknown field `limit`");
    refused(
        with(json!({"files": {"readRoots": ["x"], "writeRoots": [], "modes": [], "masks": []}})),
        "root `x`",
    );
    refused(with(json!({"files": {"readRoots": []}})), "missing field");
    refused(
        with(json!({"limits": {"default": {"processes": 2}, "ceiling": {"processes": 1}}})),
        "default of processes is beyond its ceiling",
    );
    let approval = |level: u8, approvers: &[&str], quorum: u32| {
        let rule =
            json!({"level": level, "approvers": approvers, "quorum": quorum, "expiresMin": 5});
        with(json!({"approvals": [rule]}))
    };
    refused(approval(4, &["a"], 1), "levels are 1, 2 and 3");
    refused(approval(1, &[], 1), "no approvers");
    refused(approval(1, &["a"], 0), "quorum of nobody");
    refused(approval(1, &["*", "a"], 1), "moot");
    let mut document = PolicyDocument::reference();
    document["extra"] = json!(1);
    refused(load_with(&document, DOCUMENT_ONLY, ""), "unknown field `extra`");
}

#[test]
fn a_policy_that_fails_its_own_examples_is_refused() {
    let line = |expect: &str| json!({"name": "x", "expect": expect}).to_string();
    assert!(load_with(&PolicyDocument::reference(), DOCUMENT_ONLY, &line("allow")).is_ok());
    refused(
        load_with(&PolicyDocument::reference(), DOCUMENT_ONLY, &line("deny")),
        "1 of the policy's own examples fail: line 1 (x)",
    );
    refused(load_with(&PolicyDocument::reference(), DOCUMENT_ONLY, "{"), "line 1");
    let unknown = json!({"name": "x", "expect": "allow", "facts": {"typo": 1}}).to_string();
    refused(load_with(&PolicyDocument::reference(), DOCUMENT_ONLY, &unknown), "typo");
}

#[test]
fn no_policy_means_no() {
    assert!(matches!(decide_without_policy(), Decision::Deny { .. }));
    let policy = load("").unwrap();
    assert_eq!(
        reasons(&policy, &facts(json!({}))),
        ["run \"default\": no rule permits it", "exec \"true\": no rule permits it"]
    );
}

#[test]
fn an_erroring_forbid_does_not_open() {
    // Overflow is the error the validator cannot see; Cedar then skips the forbid.
    let rules = format!(
        "{DOCUMENT_ONLY}@id(\"f\") @reason(\"never\") forbid(principal, action, resource) \
         when {{ context.now + 9223372036854775807 > 0 }};"
    );
    let policy = load(&rules).unwrap();
    let Decision::Deny { reasons, .. } = decide(&policy, &facts(json!({}))) else { panic!("open") };
    assert!(reasons.iter().all(|reason| reason.code == ReasonCode::Internal), "{reasons:?}");
}

#[test]
fn a_forbid_for_one_program_is_found_among_many() {
    let mut rules = String::from(DOCUMENT_ONLY);
    for index in 0..300 {
        rules.push_str(&format!(
            "@id(\"r{index}\") @reason(\"x\") forbid(principal, action == Action::\"exec\", resource == Program::\"/bin/p{index}\");\n"
        ));
    }
    let policy = load(&rules).unwrap();
    let program = |path: &str| facts(json!({"cmd": {"program": path}}));
    assert_allowed(&policy, &program("/bin/q"));
    assert_eq!(reasons(&policy, &program("/bin/p299")), ["exec \"/bin/p299\": x (r299)"]);
}

#[test]
fn a_wide_wish_cannot_go_around_a_rule_about_a_part_of_it() {
    let rules = format!(
        "{DOCUMENT_ONLY}
         @id(\"curl\") @reason(\"no\") forbid(principal, action == Action::\"exec\", resource == Program::\"/usr/bin/curl\");
         @id(\"host\") @reason(\"no\") forbid(principal, action == Action::\"net_connect\", resource == Host::\"evil.example.com\");
         @id(\"root\") @reason(\"no\") forbid(principal, action == Action::\"fs_grant\", resource == Root::\"/srv/keys\");"
    );
    let mut document = PolicyDocument::reference();
    document["network"]["allowHosts"] = json!(["*.example.com"]);
    document["controls"] = json!({"files": {
        "readRoots": ["/"], "writeRoots": [], "modes": ["overlay"], "masks": [],
    }});
    let policy = load_with(&document, &rules, "").unwrap();
    assert_allowed(&policy, &facts(json!({"files": {"read": ["/srv/data"]}})));
    let denied = |patch: Value| reasons(&policy, &facts(patch));
    let expected = "net_connect \"evil.example.com\": no (host)";
    assert_eq!(denied(json!({"network": {"hosts": ["*.example.com"]}})), [expected]);
    let expected = "fs_grant \"/srv/keys\": no (root)";
    assert_eq!(denied(json!({"files": {"read": ["/srv"]}})), [expected]);
    assert_eq!(denied(json!({"files": {"read": ["/"]}})), [expected]);
    let expected = "exec \"/usr/bin/curl\": no (curl)";
    assert_eq!(reasons(&policy, &crate::script("true; curl x")), [expected]);
}

#[test]
fn a_rule_for_an_inner_program_never_permits_the_shell_around_it() {
    let rules = "@id(\"run\") @reason(\"r\") permit(principal, action == Action::\"run\", resource);
        @id(\"git\") @reason(\"r\") permit(principal, action == Action::\"exec\", resource == Program::\"git\");";
    let policy = load(rules).unwrap();
    assert_eq!(reasons(&policy, &crate::script("git status")), ["exec \"sh\": no rule permits it"]);
}

#[test]
fn the_hash_covers_document_and_rules() {
    let policy = load(DOCUMENT_ONLY).unwrap();
    assert_eq!(policy.hash(), load(DOCUMENT_ONLY).unwrap().hash());
    assert_ne!(policy.hash(), load(&format!("{DOCUMENT_ONLY} ")).unwrap().hash());
    let mut document = PolicyDocument::reference();
    document["budget"]["maxSpendUsd"] = json!(26);
    assert_ne!(policy.hash(), load_with(&document, DOCUMENT_ONLY, "").unwrap().hash());
}
