//! A plane in a temporary directory, and rows for its store.

use serde_json::json;
use tempfile::TempDir;
use warrant_plane::home::Home;
use warrant_plane::notary::{ApprovalRequirement, Judgment};
use warrant_plane::reception::{Reception, Submission};
use warrant_plane::store::{Durability, Entry, EventRow, NewRun, Owner, Store};
use warrant_plane::{EmbeddedPlane, random};
use warrant_protocol::port::LeaseKey;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{Decision, DecisionSummary, Digest, RunId, RunRequest, Timestamp};

pub(crate) fn now() -> Timestamp {
    random::now().unwrap()
}

pub(crate) fn policy_hash() -> Digest {
    Digest::of(b"policy")
}

pub(crate) fn person(name: &str) -> ActorRef {
    ActorRef { kind: ActorKind::Human, id: name.into() }
}

pub(crate) fn plane() -> (TempDir, EmbeddedPlane) {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open_at(dir.path().join("home"), None).unwrap();
    (dir, EmbeddedPlane::open(home, policy_hash()).unwrap())
}

pub(crate) fn request(script: &str) -> RunRequest {
    let value = json!({
        "requestedBy": {"kind": "human", "id": "mallory"},
        "agentKind": "command",
        "prompt": script,
        "pool": "default",
        "secretNames": [],
        "workspace": {
            "version": "warrant.manifest.v1",
            "baseRef": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
            "bundleHash": Digest::of(b""),
            "untrackedFiles": [],
            "deniedPatterns": [],
            "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": []},
        "budget": {},
        "disclosure": "redacted",
    });
    serde_json::from_value(value).unwrap()
}

pub(crate) fn requirement(approvers: &[&str], quorum: u32) -> ApprovalRequirement {
    ApprovalRequirement {
        name: "any-run".into(),
        level: 1,
        approvers: approvers.iter().map(|name| (*name).to_owned()).collect(),
        quorum,
        expires_min: None,
    }
}

pub(crate) fn judgment(decision: Decision, requirements: Vec<ApprovalRequirement>) -> Judgment {
    Judgment {
        summary: DecisionSummary {
            decision,
            reasons: Vec::new(),
            rules: Vec::new(),
            policy_hash: Some(policy_hash()),
            level: (decision == Decision::Ask).then_some(1),
        },
        policy_hash: policy_hash(),
        secrets: Vec::new(),
        requirements,
        limits: None,
        masks: Vec::new(),
        required_posture: Vec::new(),
        evidence: Default::default(),
    }
}

pub(crate) fn submit(plane: &EmbeddedPlane, script: &str, judgment: Judgment) -> Reception {
    submit_with(plane, script, judgment, 60_000)
}

pub(crate) fn submit_with(
    plane: &EmbeddedPlane,
    script: &str,
    judgment: Judgment,
    approval_wait_ms: u64,
) -> Reception {
    let submission = Submission {
        request: request(script),
        principal: person("alice"),
        idempotency_key: None,
        approval_wait_ms,
    };
    plane.submit(submission, |_| judgment).unwrap()
}

pub(crate) fn store() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    (dir, store)
}

pub(crate) fn run_id(number: u64) -> RunId {
    format!("run_{number}").parse().unwrap()
}

pub(crate) fn lease(run: &RunId, epoch: u64) -> LeaseKey {
    LeaseKey { run: run.clone(), epoch }
}

pub(crate) fn at(ms: u64) -> Timestamp {
    Timestamp::from_unix_ms(ms).unwrap()
}

pub(crate) fn event(run: &RunId, seq: u64) -> EventRow {
    let body = json!({"run": run, "seq": seq}).to_string();
    EventRow { seq, ts: at(1_000 + seq), hash: Digest::of(body.as_bytes()), body }
}

pub(crate) fn new_run(id: &RunId, entry: Entry) -> NewRun {
    NewRun {
        id: id.clone(),
        pool: "default".into(),
        agent_kind: "command".into(),
        isolation: None,
        prompt: "true".into(),
        requested_by: "human:alice".into(),
        request_hash: Digest::of(id.as_str().as_bytes()),
        policy_hash: policy_hash(),
        judgment: "{}".into(),
        request: "{}".into(),
        created_at: at(1_000),
        idempotency_key: None,
        priority: 0,
        is_local: false,
        entry,
    }
}

pub(crate) fn queued(store: &Store, id: &RunId) {
    let entry = Entry::Queued { contract: "{}".into(), events: vec![event(id, 0)] };
    store.submit(new_run(id, entry), Durability::WithNext).unwrap();
}

pub(crate) fn owner() -> Owner {
    Owner {
        liveness: Some("00".into()),
        runner: "rnr_1".into(),
        at: at(2_000),
        lease_ms: 15_000,
        disconnect_ms: None,
        generation: None,
        process: None,
    }
}
