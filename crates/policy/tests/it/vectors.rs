//! The reference's decisions, word for word.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use warrant_policy::{Decision, Facts, History, PolicySnapshot, Surroundings, decide};
use warrant_protocol::request::WorkspaceMode;
use warrant_protocol::{Isolation, PolicyDocument, RunRequest};

fn vectors() -> Value {
    let text = include_str!("../../../../vectors/policy.json");
    serde_json::from_str(text).unwrap()
}

/// Returns a whole request with the members a vector names.
fn request(case: &Value) -> RunRequest {
    let zero = "0".repeat(64);
    let mut value = json!({
        "requestedBy": {"kind": "human", "id": "alice"},
        "agentKind": case["agentKind"],
        "prompt": "echo hi",
        "pool": case["pool"],
        "secretNames": case["secretNames"],
        "workspace": {
            "version": "warrant.manifest.v1", "baseRef": "main", "bundleHash": zero,
            "untrackedFiles": [], "deniedPatterns": [], "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": case["allowHosts"]},
        "budget": {},
        "disclosure": "none",
    });
    for name in ["maxSpendUsd", "maxDurationMin"] {
        if let Some(number) = case.get(name) {
            value["budget"][name] = number.clone();
        }
    }
    serde_json::from_value(value).unwrap()
}

pub(crate) fn surroundings() -> Surroundings {
    Surroundings {
        requester: "human:alice".into(),
        program: None,
        settled_env: BTreeSet::new(),
        isolation: Isolation::Namespace,
        mode: WorkspaceMode::Overlay,
        image: None,
        accepted_evidence: BTreeMap::new(),
        data_classes: BTreeSet::new(),
        history: History::default(),
        now_ms: 0,
        approvals: Vec::new(),
    }
}

#[test]
fn the_reference_decides_the_same_in_the_same_words() {
    let vectors = vectors();
    let cases = vectors["cases"].as_array().unwrap();
    assert!(cases.len() >= 8);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let policy = &vectors["policies"][case["policy"].as_str().unwrap()];
        let document = PolicyDocument::from_value(policy.clone()).unwrap();
        let policy = PolicySnapshot::of_document(document).unwrap();
        let facts = Facts::of(&request(&case["request"]), surroundings());
        let decision = decide(&policy, &facts);
        match (&decision, case.get("denied")) {
            (Decision::Deny { reasons, .. }, Some(denied)) => {
                assert_eq!(decision.reason(), denied["error"].as_str().unwrap(), "{name}");
                let reasons: Vec<&str> = reasons.iter().map(|r| r.message.as_str()).collect();
                assert_eq!(json!(reasons), denied["reasons"], "{name}");
            }
            (Decision::Ask(ask), None) => {
                assert_eq!(case["decision"]["decision"], "ask", "{name}");
                assert_eq!(decision.reason(), case["decision"]["reason"].as_str().unwrap());
                let names: Vec<&str> = ask.requirements.iter().map(|r| r.name.as_str()).collect();
                assert_eq!(json!(names), case["decision"]["consentRequirements"], "{name}");
            }
            (Decision::Allow { .. }, None) => {
                assert_eq!(case["decision"]["decision"], "allow", "{name}");
                assert_eq!(decision.reason(), case["decision"]["reason"].as_str().unwrap());
            }
            (decision, denied) => panic!("{name}: {decision:?} against {denied:?}"),
        }
    }
}

#[test]
fn policy_hashes_are_the_reference_s() {
    let vectors = vectors();
    for (name, hash) in vectors["hashes"].as_object().unwrap() {
        let document = PolicyDocument::from_value(vectors["policies"][name].clone()).unwrap();
        assert_eq!(json!(document.hash()), *hash);
    }
    let document = PolicyDocument::from_value(vectors["defaultPolicy"].clone()).unwrap();
    assert_eq!(json!(document.hash()), vectors["defaultPolicyHash"]);
}
