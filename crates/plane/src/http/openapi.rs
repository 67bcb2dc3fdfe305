//! The description of the API, OpenAPI 3.1, made from the list that also makes the routes.

use axum::response::Response;
use serde_json::{Map, Value, json};

use super::answer;
use super::routes::{Access, OPERATIONS, Operation, Takes};

/// `GET /v1/openapi.json`.
pub(super) async fn document() -> Response {
    answer::json(&describe())
}

fn describe() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Some(methods) = path.as_object_mut() {
            methods.insert(operation.method.to_owned(), describe_one(operation));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Warrant plane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Requests, approvals, leases, evidence. Every refusal is an ErrorBody.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

fn describe_one(operation: &Operation) -> Value {
    let refusal = json!({
        "description": "Refused",
        "content": {"application/json": {"schema": reference("ErrorBody")}},
    });
    let mut responses = Map::from_iter([("200".to_owned(), json!({"description": "Done"}))]);
    if operation.path == "/" {
        responses = Map::from_iter([("302".to_owned(), json!({"description": "To the page"}))]);
    }
    for status in ["400", "401", "403", "404", "408", "409", "413", "429", "503"] {
        responses.insert(status.to_owned(), refusal.clone());
    }
    let mut described = json!({
        "summary": operation.summary,
        "responses": responses,
        "parameters": parameters(operation),
    });
    let Some(members) = described.as_object_mut() else { return described };
    if matches!(operation.access, Access::Principal | Access::Bearer) {
        members.insert("security".to_owned(), json!([{"token": []}]));
    }
    let json_body = |name: &str, required: bool| {
        json!({
            "required": required,
            "content": {"application/json": {"schema": reference(name)}},
        })
    };
    let body = match operation.body {
        Takes::Nothing => None,
        Takes::Bytes => Some(json!({
            "required": true,
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        })),
        Takes::Json(name) => Some(json_body(name, true)),
        Takes::OptionalJson(name) => Some(json_body(name, false)),
    };
    if let Some(body) = body {
        members.insert("requestBody".to_owned(), body);
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let mut all: Vec<Value> = operation
        .path
        .split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
        })
        .collect();
    let queries: &[(&str, Value)] = match (operation.method, operation.path) {
        ("get", "/v1/runs") => &[
            ("state", json!({"type": "string"})),
            ("status", json!({"type": "string"})),
            ("pool", json!({"type": "string"})),
            ("requester", json!({"type": "string"})),
            ("agent", json!({"type": "string"})),
            ("cursor", json!({"type": "string"})),
            ("limit", json!({"type": "integer", "minimum": 1, "maximum": 1000})),
        ],
        ("get", "/v1/export") => &[("since", json!({"type": "string", "format": "date-time"}))],
        _ => &[],
    };
    all.extend(queries.iter().map(
        |(name, schema)| json!({"name": name, "in": "query", "required": false, "schema": schema}),
    ));
    if (operation.method, operation.path) == ("post", "/v1/runs") {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": 255});
        let named = json!({
            "name": "Idempotency-Key", "in": "header", "required": false, "schema": schema,
        });
        all.push(named);
    }
    all
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn text(max: u64) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": max})
}

fn digest() -> Value {
    json!({"type": "string", "pattern": "^[0-9a-f]{64}$"})
}

fn pool() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"})
}

fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

fn schemas() -> Value {
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
        "ChainedEvent": object(&["seq", "ts", "prev", "event", "hash"], json!({
            "version": {"const": "warrant.event.v1"},
            "seq": {"type": "integer", "minimum": 0},
            "ts": {"type": "string", "format": "date-time"},
            "prev": digest(),
            "event": object(&["type"], json!({"type": {"type": "string"}})),
            "hash": digest(),
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
            "role": {"enum": ["admin", "requester", "approver", "enroller"]},
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
        })),
        "ClaimRun": object(&["runnerToken", "pool"], json!({
            "runnerToken": text(4096),
            "pool": pool(),
            "leases": {"type": "boolean"},
            "waitMs": wait,
            "abilities": object(&[], json!({
                "isolations": list(&json!({"type": "string"})),
                "agentKinds": list(&text(128)),
                "posture": list(&text(128)),
            })),
        })),
        "StartRun": object(&["claimToken"], json!({"claimToken": token, "events": events})),
        "RenewLease": object(&["claimToken"], json!({"claimToken": token, "waitMs": wait})),
        "HandBack": object(&["claimToken"], json!({"claimToken": token})),
        "AppendEvents": object(&["claimToken", "events"], json!({
            "claimToken": token, "events": events,
        })),
        "CompleteRun": object(&["claimToken", "receipt"], json!({
            "claimToken": token, "receipt": anything, "events": events,
        })),
    })
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
            "execution": {"type": "object"},
            "isolation": {"type": "string"},
            "continuation": {"type": "object"},
        }),
    )
}
