//! What the plane answers when it did what was asked.

use serde_json::{Map, Value, json};
use warrant_protocol::RunState;
use warrant_protocol::wire::PrincipalRole;

use super::schemas::{digest, isolation, list, object, pool, reference, text};
use crate::http::routes::Operation;

const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";

/// Returns the good answers of an operation, by status.
pub(super) fn of(operation: &Operation) -> Map<String, Value> {
    let done = |media: &str, schema: Value| json!({"description": "Done", "content": {media: {"schema": schema}}});
    let words = json!({"type": "string"});
    match (operation.method, operation.path) {
        ("get", "/") => {
            return Map::from_iter([("302".to_owned(), json!({"description": "To the page"}))]);
        }
        ("get", "/v1/ready") => {
            let not_yet = done(JSON, reference("Ready"));
            let ready = done(JSON, reference("Ready"));
            return Map::from_iter([("200".to_owned(), ready), ("503".to_owned(), not_yet)]);
        }
        _ => {}
    }
    let (media, schema) = match (operation.method, operation.path) {
        ("get", "/metrics") => ("text/plain", words),
        ("get", "/v1/export") => ("application/x-ndjson", words),
        ("get", "/v1/blobs/{hash}") => {
            ("application/octet-stream", json!({"type": "string", "format": "binary"}))
        }
        ("get", "/v1/runs/{id}/events" | "/v1/runs/{id}/logs" | "/v1/events") => {
            (STREAM, reference("StreamedEvent"))
        }
        (method, path) => (JSON, reference(object_of(method, path))),
    };
    Map::from_iter([("200".to_owned(), done(media, schema))])
}

/// Returns the name of the object that a call is answered with.
fn object_of(method: &str, path: &str) -> &'static str {
    match (method, path) {
        ("get", "/v1/openapi.json") => "Description",
        ("get", "/v1/health") => "Health",
        ("get", "/v1/plane-keys") => "PlaneKeys",
        ("get", "/v1/metrics") => "Counters",
        ("get", "/v1/policy") => "PolicyView",
        ("put", "/v1/policy") => "PolicySet",
        ("get", "/v1/policy/history") => "PolicyHistory",
        ("get", "/v1/secrets") => "SecretNames",
        ("put", "/v1/secrets/{name}") => "SecretSet",
        ("delete", "/v1/secrets/{name}") => "SecretRemoved",
        ("get", "/v1/principals") => "PrincipalList",
        ("post", "/v1/principals") => "PrincipalToken",
        ("post", "/v1/principals/{name}/rotate") => "RotatedToken",
        ("post", "/v1/principals/{name}/revoke") => "PrincipalRevoked",
        ("post", "/v1/enroll-tokens") => "EnrollToken",
        ("get", "/v1/runners") => "RunnerList",
        ("post", "/v1/runners/enroll") => "EnrollResult",
        ("post", "/v1/runners/{id}/revoke") => "RunnerRevoked",
        ("get", "/v1/false-claims") => "FalseClaimList",
        ("post", "/v1/claims") => "ClaimResult",
        ("post", "/v1/blobs") => "StoredBlob",
        ("get", "/v1/runs") => "RunList",
        ("post", "/v1/runs") => "Submitted",
        ("get", "/v1/runs/{id}") => "RunView",
        ("post", "/v1/runs/{id}/approve") => "Approved",
        ("post", "/v1/runs/{id}/deny" | "/v1/runs/{id}/cancel") => "Stopped",
        ("get", "/v1/runs/{id}/bundle") => "Bundle",
        ("post", "/v1/runs/{id}/start") => "StartResult",
        ("post", "/v1/runs/{id}/renew") => "RenewResult",
        ("post", "/v1/runs/{id}/complete") => "CompleteResult",
        // What a runner tells is taken, and nothing else is to be said.
        _ => "Taken",
    }
}

fn moment() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn words() -> Value {
    list(&json!({"type": "string"}))
}

fn status() -> Value {
    json!({"enum": ["created", "claimed", "running", "awaiting_approval", "completed", "failed", "cancelled"]})
}

fn state() -> Value {
    json!({"enum": RunState::ALL.map(RunState::as_str)})
}

fn role() -> Value {
    json!({"enum": PrincipalRole::ALL.map(PrincipalRole::as_str)})
}

/// Returns the objects of answers.
pub(super) fn objects() -> Value {
    let mut all = house();
    for (name, object) in [people(), runs(), fleet()].into_iter().filter_map(members).flatten() {
        all.insert(name, object);
    }
    Value::Object(all)
}

fn members(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

fn house() -> Map<String, Value> {
    let document = json!({"type": "object"});
    let house = json!({
        "Description": {"type": "object"},
        "StreamedEvent": object(&["event", "data"], json!({
            "id": {"type": "string"},
            "event": {"enum": ["event", "state", "log", "change", "end"]},
            "data": {"type": "string", "description": "JSON; a piece of a log is base64"},
        })),
        "PlaneKeys": object(&["planePublicKeyPem", "successions"], json!({
            "planePublicKeyPem": {"type": "string"},
            "successions": list(&json!({"type": "object"})),
        })),
        "Health": object(&["ok", "service"], json!({"ok": flag(), "service": {"type": "string"}})),
        "Ready": object(&["ready"], json!({
            "ready": flag(),
            "store": object(&["writable", "reason", "message"], json!({
                "writable": flag(),
                "reason": {"enum": ["store_full", "store_read_only", "store_failed"]},
                "message": {"type": "string"},
            })),
        })),
        "Counters": object(&["metrics"], json!({
            "metrics": {"type": "object", "additionalProperties": {"type": "integer"}},
        })),
        "PolicyView": object(&["policy", "policyHash"], json!({
            "policy": document, "policyHash": digest(), "rules": {"type": ["string", "null"]},
        })),
        "PolicySet": object(&["policyHash"], json!({"policyHash": digest()})),
        "PolicyHistory": object(&["policies"], json!({
            "policies": list(&object(&["policyHash", "setBy", "createdAt"], json!({
                "policyHash": digest(),
                "setBy": {"type": "string"},
                "createdAt": moment(),
                "policy": {"type": ["object", "null"]},
                "rules": {"type": ["string", "null"]},
            }))),
        })),
        "SecretNames": object(&["secrets"], json!({
            "secrets": list(&object(&["name", "updatedAt"], json!({
                "name": {"type": "string"}, "updatedAt": moment(),
            }))),
        })),
        "SecretSet": object(&["name"], json!({"name": {"type": "string"}})),
        "SecretRemoved": object(&["name", "removed"], json!({
            "name": {"type": "string"}, "removed": flag(),
        })),
    });
    members(house).unwrap_or_default()
}

fn people() -> Value {
    json!({
        "PrincipalList": object(&["principals"], json!({
            "principals": list(&object(&["name", "role", "createdAt", "revoked"], json!({
                "name": text(128), "role": role(), "createdAt": moment(), "revoked": flag(),
                "groups": words(),
            }))),
        })),
        "PrincipalToken": object(&["principalId", "name", "role", "token"], json!({
            "principalId": {"type": "string"}, "name": text(128), "role": role(),
            "token": {"type": "string"},
        })),
        "RotatedToken": object(&["name", "token"], json!({
            "name": {"type": "string"}, "token": {"type": "string"},
        })),
        "PrincipalRevoked": object(&["name", "revoked"], json!({
            "name": {"type": "string"}, "revoked": flag(),
        })),
        "EnrollToken": object(&["token", "expiresAt"], json!({
            "token": {"type": "string"}, "expiresAt": moment(), "pool": pool(),
        })),
        "RunnerList": object(&["runners"], json!({
            "runners": list(&object(&["runnerId", "pool", "keyId", "enrolledAt"], json!({
                "runnerId": {"type": "string"}, "pool": pool(), "keyId": {"type": "string"},
                "enrolledAt": moment(), "revoked": flag(), "lastSeenAt": moment(),
                "unreachable": flag(),
            }))),
        })),
        "FalseClaimList": object(&["falseClaims"], json!({
            "falseClaims": list(&object(
                &["runnerId", "runId", "epoch", "field", "detail", "at"],
                json!({
                    "runnerId": {"type": "string"}, "runId": {"type": "string"},
                    "epoch": {"type": "integer"}, "field": {"type": "string"},
                    "detail": {"type": "string"}, "at": moment(),
                }),
            )),
        })),
        "RunnerRevoked": object(&["runnerId", "revoked"], json!({
            "runnerId": {"type": "string"}, "revoked": flag(),
        })),
    })
}

fn runs() -> Value {
    let run_id = json!({"type": "string"});
    json!({
        "RunSummary": object(
            &["runId", "status", "agentKind", "pool", "prompt", "requestedBy", "createdAt",
              "updatedAt", "consentRequirements", "hasReceipt"],
            json!({
                "runId": run_id, "status": status(), "state": state(),
                "agentKind": {"type": "string"}, "pool": pool(), "prompt": {"type": "string"},
                "requestedBy": reference("ActorRef"), "createdAt": moment(),
                "updatedAt": moment(), "consentRequirements": words(), "hasReceipt": flag(),
                "continuation": reference("ContinuationRef"),
            }),
        ),
        "RunList": object(&["runs"], json!({
            "runs": list(&reference("RunSummary")),
            "next": {"type": "string", "description": "The cursor of the next page"},
        })),
        "RunView": object(
            &["runId", "status", "createdAt", "updatedAt", "consentRequirements", "events"],
            json!({
                "runId": run_id, "status": status(), "state": state(), "createdAt": moment(),
                "updatedAt": moment(), "consentRequirements": words(),
                "failureMessage": {"type": "string"}, "approvedBy": words(),
                "deadline": {"type": ["string", "null"]}, "request": {"type": "object"},
                "events": list(&reference("ChainedEvent")),
            }),
        ),
        "SubmitResult": object(&["runId", "status", "consentRequirements"], json!({
            "runId": run_id, "status": status(), "consentRequirements": words(),
            "unserved": {"type": "string", "description": "Why no enrolled runner can serve it"},
        })),
        "DisclosureReport": object(
            &["dryRun", "agent", "pool", "workspace", "secrets", "network", "budget",
              "disclosure", "execution", "policyDecision"],
            json!({
                "dryRun": {"const": true}, "agent": reference("AgentSpec"), "pool": pool(),
                "workspace": object(&["baseRef", "bundleHash", "untrackedPaths", "deniedPaths"],
                    json!({
                        "baseRef": {"type": "string"}, "bundleHash": digest(),
                        "dirtyDiffHash": digest(), "untrackedPaths": words(),
                        "deniedPaths": words(),
                    })),
                "secrets": list(&reference("SecretClaim")),
                "network": reference("NetworkPolicy"),
                "budget": reference("BudgetSpec"), "disclosure": {"type": "string"},
                "execution": reference("ExecutionSpec"), "isolation": isolation(),
                "continuation": reference("ContinuationRef"),
                "policyDecision": object(&["decision", "reason", "consentRequirements"], json!({
                    "decision": {"enum": ["allow", "ask"]}, "reason": {"type": "string"},
                    "consentRequirements": words(),
                })),
            }),
        ),
        "Submitted": {"anyOf": [reference("SubmitResult"), reference("DisclosureReport")]},
        "Approved": object(&["runId", "status"], json!({
            "runId": run_id, "status": status(), "missing": words(),
        })),
        "Stopped": object(&["runId", "status"], json!({
            "runId": run_id, "status": status(), "state": state(),
        })),
    })
}

fn fleet() -> Value {
    let secret = object(
        &["name", "value"],
        json!({"name": {"type": "string"}, "value": {"type": "string"}}),
    );
    let count = json!({"type": "integer", "minimum": 0});
    json!({
        "EnrollResult": object(&["runnerId", "runnerToken"], json!({
            "runnerId": {"type": "string"}, "runnerToken": {"type": "string"},
            "planePublicKeyPem": {"type": "string"},
        })),
        "StoredBlob": object(&["hash"], json!({"hash": digest()})),
        "LeasedRun": object(&["runId", "contract", "claimToken", "events", "secrets"], json!({
            "runId": {"type": "string"}, "contract": reference("Contract"),
            "claimToken": {"type": "string"}, "events": list(&reference("ChainedEvent")),
            "secrets": list(&secret), "epoch": count, "leaseMs": count,
            "disconnectMs": count, "policyHash": digest(),
        })),
        "ClaimResult": {"anyOf": [
            object(&["empty"], json!({"empty": {"const": true}})), reference("LeasedRun"),
        ]},
        "StartResult": object(&["events", "secrets"], json!({
            "events": list(&reference("ChainedEvent")), "secrets": list(&secret),
        })),
        "RenewResult": object(&["directive", "leaseMs", "claimToken"], json!({
            "directive": {"enum": ["continue", "stop", "fenced"]}, "actor": reference("ActorRef"),
            "leaseMs": count, "claimToken": {"type": "string"},
        })),
        "CompleteResult": object(&["receipt"], json!({"receipt": reference("Receipt")})),
        "Taken": object(&["ok"], json!({"ok": {"const": true}})),
    })
}
