//! What requests carry, and the small pieces every description is made of.

use serde_json::{Value, json};
use warrant_protocol::Isolation;

/// Returns the names of the tiers.
pub(super) fn isolation() -> Value {
    json!({"enum": Isolation::ALL.map(Isolation::as_str)})
}

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

pub(super) fn text(max: u64) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": max})
}

pub(super) fn digest() -> Value {
    json!({"type": "string", "pattern": "^[0-9a-f]{64}$"})
}

pub(super) fn pool() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"})
}

pub(super) fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Returns the bodies of requests.
pub(super) fn requests() -> Value {
    let token = text(8192);
    let anything = json!({"type": "object"});
    let events = list(&reference("ChainedEvent"));
    let wait = json!({"type": "integer", "minimum": 0});
    json!({
        "ErrorBody": object(&["error"], json!({
            "error": {"type": "string"},
            "code": {"type": "string"},
            "issues": list(&json!({"type": "string"})),
            "reasons": list(&json!({"type": "string"})),
            "failure": {"type": "string"},
            "runId": {"type": "string"},
        })),
        "ActorRef": object(&["kind", "id"], json!({
            "kind": {"enum": ["human", "service"]},
            "id": text(256),
        })),
        "RunRequest": run_request(),
        "SubmitRun": object(&["request"], json!({
            "request": reference("RunRequest"),
            "dryRun": {"type": "boolean"},
            "priority": {"type": "integer", "minimum": -100, "maximum": 100},
        })),
        "ApproveRun": object(&[], json!({
            "actor": reference("ActorRef"),
            "idpToken": text(16_384),
            "statement": anything,
        })),
        "RefuseRun": object(&[], json!({"reason": text(1000)})),
        "CancelRun": object(&[], json!({"actor": reference("ActorRef")})),
        "IssuePrincipal": object(&["name", "role"], json!({
            "name": text(128),
            "role": {"enum": ["admin", "requester", "approver", "enroller", "auditor"]},
            "kind": {"enum": ["human", "service"]},
            "groups": list(&text(128)),
        })),
        "IssueEnrollToken": object(&[], json!({"pool": pool()})),
        "SetSecret": object(&["value"], json!({"value": text(16_384)})),
        "PolicyUpload": object(&["document"], json!({
            "document": anything,
            "rules": {"type": "string"},
            "examples": {"type": "string"},
        })),
        "Enroll": object(&["enrollToken", "publicKeyPem", "pool"], json!({
            "enrollToken": text(4096),
            "publicKeyPem": text(8192),
            "pool": pool(),
            "proof": text(128),
        })),
        "ClaimRun": object(&["runnerToken", "pool"], json!({
            "runnerToken": text(4096),
            "pool": pool(),
            "leases": {"type": "boolean"},
            "waitMs": wait,
            "generation": {"type": "integer", "minimum": 0},
            "process": process(),
            "abilities": object(&[], json!({
                "isolations": list(&isolation()),
                "agentKinds": list(&text(128)),
                "posture": list(&text(128)),
            })),
        })),
        "StartRun": object(&["claimToken"], json!({
            "claimToken": token, "events": events, "startId": text(128),
        })),
        "RenewLease": object(&["claimToken"], json!({"claimToken": token, "waitMs": wait})),
        "HandBack": object(&["claimToken"], json!({"claimToken": token})),
        "AppendEvents": object(&["claimToken", "events"], json!({
            "claimToken": token, "events": events,
        })),
        "CompleteRun": object(&["claimToken", "receipt"], json!({
            "claimToken": token, "receipt": reference("Receipt"), "events": events,
        })),
    })
}

/// A process of a runner's machine.
fn process() -> Value {
    object(
        &["bootId", "pidNamespace", "pid", "startTicks"],
        json!({
            "bootId": text(64),
            "pidNamespace": text(64),
            "pid": {"type": "integer", "minimum": 1},
            "startTicks": {"type": "integer", "minimum": 0},
        }),
    )
}

fn run_request() -> Value {
    let required = [
        "agentKind",
        "budget",
        "disclosure",
        "network",
        "pool",
        "prompt",
        "requestedBy",
        "secretNames",
        "workspace",
    ];
    let workspace = object(
        &["version", "baseRef", "bundleHash", "untrackedFiles", "deniedPatterns", "deniedPaths"],
        json!({
            "version": {"const": "warrant.manifest.v1"},
            "baseRef": text(256),
            "bundleHash": digest(),
            "dirtyDiffHash": digest(),
            "untrackedFiles": list(&object(&["path", "hash", "bytes"], json!({
                "path": text(4096),
                "hash": digest(),
                "bytes": {"type": "integer", "minimum": 0},
            }))),
            "deniedPatterns": list(&json!({"type": "string", "maxLength": 512})),
            "deniedPaths": list(&text(4096)),
        }),
    );
    object(
        &required,
        json!({
            "requestedBy": reference("ActorRef"),
            "agentKind": text(64),
            "agentVersion": {"type": "string", "maxLength": 128},
            "prompt": text(1_000_000),
            "pool": pool(),
            "secretNames": list(&json!({"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})),
            "workspace": workspace,
            "network": object(&["defaultDeny", "allowHosts"], json!({
                "defaultDeny": {"type": "boolean"},
                "allowHosts": list(&text(253)),
            })),
            "budget": object(&[], json!({
                "maxSpendUsd": {"type": "number", "minimum": 0},
                "maxDurationMin": {"type": "number", "exclusiveMinimum": 0},
            })),
            "disclosure": {"enum": ["none", "metadata-only", "redacted", "minimal-context", "full"]},
            "execution": reference("ExecutionSpec"),
            "isolation": isolation(),
            "continuation": reference("ContinuationRef"),
        }),
    )
}
