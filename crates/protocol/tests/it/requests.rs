//! Requests, wire bodies, globs and approvals.

use serde_json::{Value, json};
use warrant_protocol::approval::{
    Approval, ApprovalBody, ApprovalProblem, Denial, DenialBody, Wanted, check_approval,
    is_denial_by_trusted,
};
use warrant_protocol::glob::matches_pattern;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::wire::{
    AppendEvents, ApproveRun, CancelRun, ClaimResult, ClaimRun, CompleteRun, DisclosureReport,
    Enroll, IssuePrincipal, RunView, SubmitResult, SubmitRun,
};
use warrant_protocol::{
    Chain, Decision, DecisionSummary, Digest, KeyRole, Outcome, RunRequest, Signer, Timestamp,
    TrustedKeys, json as strict,
};

use crate::vectors::{load, other_key, plane_key, plane_public, runner_key, text};

fn request() -> Value {
    json!({
        "requestedBy": {"kind": "human", "id": "alice"},
        "agentKind": "command",
        "prompt": "echo hi",
        "pool": "default",
        "secretNames": ["API_TOKEN"],
        "workspace": load("capture.json")["manifest"],
        "network": {"defaultDeny": true, "allowHosts": [" Example.COM. "]},
        "budget": {"maxSpendUsd": 1.5},
        "disclosure": "minimal-context",
    })
}

#[track_caller]
fn check(pointer: &str, value: Value, issues: &[&str]) {
    let mut request = request();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = request.pointer_mut(parent).unwrap();
    match value {
        Value::Null => drop(parent.as_object_mut().unwrap().remove(name)),
        value => parent[name] = value,
    }
    match RunRequest::from_value(&request) {
        Ok(_) => assert!(issues.is_empty(), "{pointer} was accepted"),
        Err(invalid) => assert_eq!(invalid.issues, issues, "{pointer}"),
    }
}

#[test]
fn bad_requests_are_told_member_by_member() {
    check("/prompt", json!("x"), &[]);
    check("/prompt", Value::Null, &["prompt: Invalid input: expected string, received undefined"]);
    check("/prompt", json!(""), &["prompt: Too small: expected string to have >=1 characters"]);
    let long = "ü".repeat(1_000_001);
    check(
        "/prompt",
        json!(long),
        &["prompt: Too big: expected string to have <=1000000 characters"],
    );
    check("/prompt", json!("ü".repeat(1_000_000)), &[]);
    check(
        "/requestedBy/kind",
        json!("robot"),
        &[r#"requestedBy.kind: Invalid option: expected one of "human"|"service""#],
    );
    check("/pool", json!("a b"), &[r#"pool: pool name "a b" contains unsupported characters"#]);
    check(
        "/secretNames",
        json!(["A", "1"]),
        &[r#"secretNames.1: secret name "1" must be a POSIX environment identifier"#],
    );
    check(
        "/workspace/bundleHash",
        json!("ABC"),
        &["workspace.bundleHash: Invalid string: must match pattern /^[0-9a-f]{64}$/"],
    );
    check(
        "/workspace/untrackedFiles",
        json!([{"path": "../x", "hash": "0", "bytes": -1}]),
        &[
            r#"workspace.untrackedFiles.0.path: workspace path "../x" must be a safe relative path"#,
            "workspace.untrackedFiles.0.hash: Invalid string: must match pattern /^[0-9a-f]{64}$/",
            "workspace.untrackedFiles.0.bytes: Too small: expected number to be >=0",
        ],
    );
    check(
        "/budget/maxDurationMin",
        json!(0),
        &["budget.maxDurationMin: Too small: expected number to be >0"],
    );
    check(
        "/network/defaultDeny",
        json!("yes"),
        &["network.defaultDeny: Invalid input: expected boolean, received string"],
    );
    check("/isolation", json!("namespace"), &[]);
    check(
        "/limits",
        json!({"wallMs": 0, "walMs": 1}),
        &[
            "limits.wallMs: Too small: expected number to be >0",
            r#"limits: Unrecognized key: "walMs""#,
        ],
    );
    check(
        "/files",
        json!({"read": ["/usr"], "write": ["/a/../b"]}),
        &["files.write.0: Invalid input: expected an absolute path without `..`"],
    );
    check(
        "/egress",
        json!([{"host": "a.b", "port": 0}]),
        &["egress.0.port: Invalid input: expected a port from 1 to 65535"],
    );
}

#[test]
fn a_misspelled_restriction_inside_execution_is_refused() {
    check(
        "/execution",
        json!({"kind": "shell", "script": "x", "timeoutMS": 5}),
        &[r#"execution: Unrecognized key: "timeoutMS""#],
    );
    check(
        "/execution",
        json!({"kind": "argv", "command": "x", "args": [], "script": "y"}),
        &[r#"execution: Unrecognized key: "script""#],
    );
    check("/execution", json!({"kind": "wat"}), &["execution.kind: Invalid input"]);
    check(
        "/execution",
        json!({"kind": "agent", "agent": {"kind": "codex", "v": 1}, "prompt": "p",
               "env": {"inherits": []}, "log": {"stdout": "x", "stderr": "merge", "maxBytes": 1.5}}),
        &[
            r#"execution.agent: Unrecognized key: "v""#,
            r#"execution.env: Unrecognized key: "inherits""#,
            r#"execution.log.stdout: Invalid input: expected "capture""#,
            "execution.log.maxBytes: Invalid input: expected int, received number",
        ],
    );
    check(
        "/execution",
        json!({"kind": "shell", "script": "x", "timeoutMs": 1e300}),
        &["execution.timeoutMs: Too big: expected int to be <=9007199254740991"],
    );
    check(
        "/execution",
        json!({"kind": "shell", "script": "x", "env": {"vars": {"A=B": "c"}}}),
        &["execution.env.vars.A=B: Invalid environment variable"],
    );
}

#[test]
fn unknown_members_of_a_request_are_left_out_and_hosts_normalized() {
    let mut value = request();
    value["surprise"] = json!(1);
    value["workspace"]["surprise"] = json!(1);
    let read = RunRequest::from_value(&value).unwrap();
    let written = read.to_value().unwrap();
    assert!(written.get("surprise").is_none());
    assert_eq!(written["network"]["allowHosts"], json!(["example.com"]));
    assert_eq!(written["workspace"], load("capture.json")["manifest"]);
    assert_eq!(
        read.workspace.hash().unwrap().to_hex(),
        text(&load("capture.json")["manifestHash"])
    );
    assert_eq!(RunRequest::from_value(&request()).unwrap().hash().unwrap(), read.hash().unwrap());
}

#[test]
fn bodies_of_the_wire_tell_their_issues() {
    let nothing = json!({});
    let missing = |name| format!("{name}: Invalid input: expected string, received undefined");
    assert_eq!(
        ClaimRun::from_value(&nothing).unwrap_err().issues,
        [missing("runnerToken"), missing("pool")]
    );
    let issues = SubmitRun::from_value(&json!({"request": {}, "dryRun": 1})).unwrap_err().issues;
    assert!(issues.contains(&missing("request.prompt")), "{issues:?}");
    assert!(issues.iter().any(|issue| issue.starts_with("dryRun: ")), "{issues:?}");
    let root = SubmitRun::from_value(&json!([])).unwrap_err().issues;
    assert_eq!(root, ["(root): Invalid input: expected object, received array"]);
    let role = IssuePrincipal::from_value(&json!({"name": "a", "role": "root"})).unwrap_err();
    assert!(role.to_string().starts_with("invalid request: role: Invalid option"), "{role}");
}

/// Every body of the recorded conversation is read, and what is signed in it keeps its hash.
#[test]
fn the_recorded_conversation_is_understood() {
    let transcript = load("http-transcript.json");
    let mut bundles = 0;
    for exchange in transcript.as_array().unwrap() {
        let label = text(&exchange["label"]);
        let path = text(&exchange["request"]["path"]);
        let sent = &exchange["request"]["body"]["json"];
        let answer = &exchange["response"]["body"]["json"];
        let last = path.split('?').next().unwrap().rsplit('/').next().unwrap();
        match (text(&exchange["request"]["method"]), last) {
            ("POST", "enroll") => drop(Enroll::from_value(sent).unwrap()),
            ("POST", "claims") => {
                ClaimRun::from_value(sent).unwrap();
                let result = ClaimResult::from_value(answer).unwrap();
                assert_eq!(&result.to_value().unwrap(), answer, "{label}");
                if let ClaimResult::Leased(run) = result {
                    Chain::from_events(run.contract.hash(), run.events.clone()).unwrap();
                }
            }
            ("POST", "events") => drop(AppendEvents::from_value(sent).unwrap()),
            ("POST", "complete") => {
                let complete = CompleteRun::from_value(sent).unwrap();
                assert_eq!(complete.receipt.signatures().len(), 1);
            }
            ("POST", "approve") => drop(ApproveRun::from_value(sent).unwrap()),
            ("POST", "cancel") => drop(CancelRun::from_value(sent).unwrap()),
            ("POST", "principals") => drop(IssuePrincipal::from_value(sent).unwrap()),
            ("POST", "runs") => {
                let submit = SubmitRun::from_value(sent).unwrap();
                assert_eq!(submit.request.to_value().unwrap(), sent["request"], "{label}");
                if submit.dry_run {
                    let report: DisclosureReport = strict::view(answer).unwrap();
                    assert_eq!(&strict::to_value(&report).unwrap(), answer);
                } else {
                    let result: SubmitResult = strict::view(answer).unwrap();
                    assert_eq!(&strict::to_value(&result).unwrap(), answer);
                }
            }
            ("GET", "bundle") if answer.get("contract").is_some() => bundles += 1,
            ("GET", id) if id.starts_with("run_") => {
                let view: RunView = strict::view(answer).unwrap();
                assert_eq!(&strict::to_value(&view).unwrap(), answer);
            }
            _ => {}
        }
    }
    assert_eq!(bundles, 3);
}

#[test]
fn globs_match_like_the_reference() {
    for case in load("validators.json")["matchesPattern"].as_array().unwrap() {
        let (path, pattern) = (text(&case["path"]), text(&case["pattern"]));
        let result = matches_pattern(path, pattern);
        assert_eq!(json!(result.unwrap()), case["match"], "{pattern} on {path}");
    }
}

fn approval(level: u8) -> ApprovalBody {
    ApprovalBody {
        run_id: "run_1".parse().unwrap(),
        request_hash: Digest::of(b"request"),
        policy_hash: Digest::of(b"policy"),
        approver: ActorRef { kind: ActorKind::Human, id: "carol".into() },
        level,
        issued_at: "2026-06-18T19:00:00.000Z".parse().unwrap(),
        expires_at: "2026-06-18T19:10:00.000Z".parse().unwrap(),
        nonce: "n1".into(),
    }
}

#[test]
fn an_approval_fits_exactly_one_request_policy_and_time() {
    let run_id = "run_1".parse().unwrap();
    let wanted = Wanted {
        run_id: &run_id,
        request_hash: Digest::of(b"request"),
        policy_hash: Digest::of(b"policy"),
        level: 2,
    };
    let trusted = TrustedKeys::none().and(KeyRole::Approver, other_key().public().clone());
    let now: Timestamp = "2026-06-18T19:05:00.000Z".parse().unwrap();
    let signed = Approval::seal(&approval(2), Signer::Approver, &other_key()).unwrap();
    assert_eq!(check_approval(&signed, &wanted, &trusted, now), Ok(()));

    let other_request = Wanted { request_hash: Digest::of(b"other"), ..wanted.clone() };
    let other_policy = Wanted { policy_hash: Digest::of(b"other"), ..wanted.clone() };
    let higher = Wanted { level: 3, ..wanted.clone() };
    for (wanted, now, expected) in [
        (&other_request, now, ApprovalProblem::OtherRequest),
        (&other_policy, now, ApprovalProblem::OtherPolicy),
        (&higher, now, ApprovalProblem::Level(2)),
        (&wanted, "2026-06-18T19:10:00.000Z".parse().unwrap(), ApprovalProblem::Time),
        (&wanted, "2026-06-18T18:59:59.999Z".parse().unwrap(), ApprovalProblem::Time),
    ] {
        assert_eq!(check_approval(&signed, wanted, &trusted, now), Err(vec![expected]));
    }
    let forged = Approval::seal(&approval(2), Signer::Approver, &runner_key()).unwrap();
    let problems = check_approval(&forged, &wanted, &trusted, now).unwrap_err();
    assert_eq!(problems, [ApprovalProblem::Signature]);
    let by_plane = Approval::seal(&approval(2), Signer::Plane, &plane_key()).unwrap();
    assert!(check_approval(&by_plane, &wanted, &trusted, now).is_err());
    let trusted = trusted.and(KeyRole::Plane, plane_public());
    assert_eq!(check_approval(&by_plane, &wanted, &trusted, now), Ok(()));
}

#[test]
fn a_denial_is_evidence_only_under_a_trusted_plane() {
    let body = DenialBody {
        run_id: "run_1".parse().unwrap(),
        request_hash: Digest::of(b"request"),
        policy_hash: Digest::of(b"policy"),
        requested_by: ActorRef { kind: ActorKind::Service, id: "bot".into() },
        decided_at: "2026-06-18T19:05:00.000Z".parse().unwrap(),
        outcome: Outcome::Denied,
        decision: DecisionSummary {
            decision: Decision::Deny,
            reasons: vec!["agent kind \"codex\" is not allowed".into()],
            rules: vec!["agents.allow".into()],
            policy_hash: None,
            level: None,
        },
        denied_by: None,
        lamport: None,
    };
    let denial = Denial::seal(&body, Signer::Plane, &plane_key()).unwrap();
    let trusted = TrustedKeys::none().and(KeyRole::Plane, plane_public());
    assert!(is_denial_by_trusted(&denial, &trusted));
    assert!(!is_denial_by_trusted(&denial, &TrustedKeys::none()));
    let forged = Denial::seal(&body, Signer::Plane, &other_key()).unwrap();
    assert!(!is_denial_by_trusted(&forged, &trusted));
}
