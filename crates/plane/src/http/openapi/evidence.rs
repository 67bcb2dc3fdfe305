//! The objects that are signed and chained, with the members the wire names. They may have more:
//! what a signed object carries is kept as it came.

use serde_json::{Map, Value, json};

use super::schemas::{digest, isolation, list, object, pool, reference, text};

/// Every event of the wire, with the members it must have.
const EVENTS: &[(&str, &[(&str, Member)])] = &[
    ("run.created", &[]),
    ("run.claimed", &[("runnerId", Member::Text), ("runnerKeyId", Member::Text)]),
    ("workspace.materialized", &[("manifestHash", Member::Digest)]),
    ("policy.evaluated", &[("decision", Member::Text), ("reason", Member::Text)]),
    ("consent.requested", &[("requirement", Member::Text)]),
    ("consent.granted", &[("actor", Member::Actor)]),
    ("secret.released", &[("name", Member::Text), ("scope", Member::Text)]),
    ("command.executed", &[("argvHash", Member::Digest), ("exitCode", Member::Number)]),
    ("file.changed", &[("path", Member::Text), ("contentHash", Member::Digest)]),
    ("network.connected", &[("host", Member::Text), ("decision", Member::Text)]),
    ("model.called", &[("provider", Member::Text), ("model", Member::Text)]),
    (
        "boundary.crossed",
        &[
            ("direction", Member::Text),
            ("contentHash", Member::Digest),
            ("dataClass", Member::Text),
        ],
    ),
    ("artifact.created", &[("kind", Member::Text), ("hash", Member::Digest)]),
    ("checkpoint.created", &[("checkpointId", Member::Text), ("tier", Member::Text)]),
    ("run.completed", &[]),
    ("run.failed", &[("failure", Member::Text), ("message", Member::Text)]),
    ("run.cancelled", &[("actor", Member::Actor)]),
    ("run.started", &[("epoch", Member::Number)]),
    ("operation.performed", &[("operation", Member::Text), ("requestHash", Member::Digest)]),
    ("capture.recorded", &[("extent", Member::Text), ("files", Member::Number)]),
    ("export.judged", &[("path", Member::Text), ("verdict", Member::Text)]),
    ("git.ref.updated", &[("ref", Member::Text)]),
    (
        "network.folded",
        &[("destinations", Member::Number), ("attempts", Member::Number), ("hash", Member::Digest)],
    ),
    ("decision.made", &[("decision", Member::Text)]),
    ("approval.granted", &[("actor", Member::Actor), ("statementHash", Member::Digest)]),
    ("approval.denied", &[("actor", Member::Actor), ("reason", Member::Text)]),
];

#[derive(Debug, Clone, Copy)]
enum Member {
    Text,
    Number,
    Digest,
    Actor,
}

impl Member {
    fn schema(self) -> Value {
        match self {
            Self::Text => json!({"type": "string"}),
            Self::Number => json!({"type": "integer"}),
            Self::Digest => digest(),
            Self::Actor => reference("ActorRef"),
        }
    }
}

fn event() -> Value {
    let known = EVENTS.iter().map(|(name, members)| {
        let mut required = vec!["type"];
        let mut properties = Map::from_iter([("type".to_owned(), json!({"const": name}))]);
        for (member, kind) in *members {
            required.push(member);
            properties.insert((*member).to_owned(), kind.schema());
        }
        object(&required, Value::Object(properties))
    });
    let names: Vec<&str> = EVENTS.iter().map(|(name, _)| *name).collect();
    let unknown = json!({"type": "string", "not": {"enum": names}});
    let other = object(&["type"], json!({ "type": unknown }));
    json!({"anyOf": known.chain([other]).collect::<Vec<Value>>()})
}

/// Returns the objects of evidence.
pub(super) fn objects() -> Value {
    let moment = json!({"type": "string", "format": "date-time"});
    let words = json!({"type": "string"});
    json!({
        "Event": event(),
        "ChainedEvent": object(&["seq", "ts", "prev", "event", "hash"], json!({
            "version": {"const": "warrant.event.v1"},
            "seq": {"type": "integer", "minimum": 0},
            "ts": moment,
            "prev": digest(),
            "event": reference("Event"),
            "hash": digest(),
        })),
        "AgentSpec": object(&["kind"], json!({"kind": text(64), "version": words})),
        "SecretClaim": object(&["name", "scope"], json!({"name": words, "scope": words})),
        "NetworkPolicy": object(&["defaultDeny", "allowHosts"], json!({
            "defaultDeny": {"type": "boolean"}, "allowHosts": list(&words),
        })),
        "BudgetSpec": object(&[], json!({
            "maxSpendUsd": {"type": "number"}, "maxDurationMin": {"type": "number"},
        })),
        "ContinuationRef": object(&["envelopeHash", "checkpointId", "tier"], json!({
            "envelopeHash": digest(),
            "checkpointId": words,
            "tier": {"enum": ["semantic", "workspace"]},
        })),
        "ExecutionSpec": execution(),
        "Signature": object(&["keyId", "alg", "signer", "sig"], json!({
            "keyId": words,
            "alg": {"const": "ed25519"},
            "signer": {"enum": ["org", "plane", "runner", "approver"]},
            "sig": words,
        })),
        "Contract": contract(&moment, &words),
        "Receipt": receipt(&moment, &words),
        "Bundle": object(&["version", "contract", "receipt", "events", "keys"], json!({
            "version": {"const": "warrant.bundle.v1"},
            "contract": reference("Contract"),
            "receipt": reference("Receipt"),
            "events": list(&reference("ChainedEvent")),
            "keys": object(&["planePublicKeyPem"], json!({
                "planePublicKeyPem": words, "runnerPublicKeyPem": words, "orgPublicKeyPem": words,
            })),
        })),
    })
}

fn execution() -> Value {
    let env = object(
        &[],
        json!({
            "inherit": list(&text(128)),
            "secrets": list(&object(&["env", "secretName"], json!({
                "env": text(256), "secretName": text(256),
            }))),
            "vars": {"type": "object", "additionalProperties": {"type": "string"}},
            "egressProxy": {"type": "boolean"},
        }),
    );
    let log = object(
        &["stdout", "stderr"],
        json!({
            "stdout": {"const": "capture"},
            "stderr": {"enum": ["merge", "capture"]},
            "maxBytes": {"type": "integer", "minimum": 1},
        }),
    );
    let one = |kind: &str, required: &[&str], own: Value| {
        let mut properties = Map::from_iter([
            ("kind".to_owned(), json!({"const": kind})),
            ("timeoutMs".to_owned(), json!({"type": "integer", "minimum": 1})),
            ("env".to_owned(), env.clone()),
            ("log".to_owned(), log.clone()),
        ]);
        if let Value::Object(own) = own {
            properties.extend(own);
        }
        let mut schema = object(&[&["kind"][..], required].concat(), Value::Object(properties));
        if let Some(members) = schema.as_object_mut() {
            members.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        schema
    };
    json!({"oneOf": [
        one("shell", &["script"], json!({
            "script": text(1_000_000), "shell": {"enum": ["sh", "bash"]}, "cwd": text(4096),
        })),
        one("argv", &["command", "args"], json!({
            "command": text(4096),
            "args": list(&json!({"type": "string", "maxLength": 100_000})),
            "cwd": text(4096),
        })),
        one("agent", &["agent", "prompt"], json!({
            "agent": reference("AgentSpec"), "prompt": text(1_000_000),
        })),
    ]})
}

fn contract(moment: &Value, words: &Value) -> Value {
    object(
        &[
            "version",
            "runId",
            "issuedAt",
            "issuer",
            "requestedBy",
            "agent",
            "task",
            "runner",
            "workspace",
            "policyHash",
            "secrets",
            "network",
            "budget",
            "disclosure",
            "execution",
            "expiresAt",
            "signatures",
        ],
        json!({
            "version": {"const": "warrant.contract.v1"},
            "runId": words,
            "issuedAt": moment,
            "issuer": object(&["keyId", "role"], json!({"keyId": words, "role": words})),
            "requestedBy": reference("ActorRef"),
            "approvedBy": list(&reference("ActorRef")),
            "agent": reference("AgentSpec"),
            "task": object(&["prompt"], json!({"prompt": words})),
            "runner": object(&["pool"], json!({"pool": pool()})),
            "workspace": {"type": "object"},
            "policyHash": digest(),
            "secrets": list(&reference("SecretClaim")),
            "network": reference("NetworkPolicy"),
            "budget": reference("BudgetSpec"),
            "disclosure": words,
            "execution": reference("ExecutionSpec"),
            "isolation": isolation(),
            "continuation": reference("ContinuationRef"),
            "expiresAt": moment,
            "signatures": list(&reference("Signature")),
        }),
    )
}

fn receipt(moment: &Value, words: &Value) -> Value {
    object(
        &[
            "version",
            "runId",
            "contractHash",
            "runner",
            "startedAt",
            "endedAt",
            "status",
            "eventsHead",
            "eventCount",
            "workspaceIn",
            "workspaceOut",
            "secretsReleased",
            "networkAccessed",
            "modelsUsed",
            "boundaryDisclosures",
            "signatures",
        ],
        json!({
            "version": {"const": "warrant.receipt.v1"},
            "runId": words,
            "contractHash": digest(),
            "runner": object(&["runnerId", "keyId", "pool", "attestationTier"], json!({
                "runnerId": words, "keyId": words, "pool": pool(),
                "attestationTier": {"enum": ["mock", "standard", "zdr", "cpu-tee", "cpu-gpu-tee"]},
                "isolation": isolation(),
            })),
            "startedAt": moment,
            "endedAt": moment,
            "status": {"enum": ["completed", "failed", "cancelled"]},
            "eventsHead": digest(),
            "eventCount": {"type": "integer", "minimum": 0},
            "workspaceIn": object(&["baseRef", "manifestHash"], json!({
                "baseRef": words, "manifestHash": digest(),
            })),
            "workspaceOut": object(&["diffHash", "artifactHashes"], json!({
                "diffHash": {"type": "string", "pattern": "^([0-9a-f]{64})?$"},
                "artifactHashes": list(&digest()),
            })),
            "secretsReleased": list(&object(&["name", "scope", "ts"], json!({
                "name": words, "scope": words, "ts": moment,
            }))),
            "networkAccessed": list(&object(&["host", "decision"], json!({
                "host": words, "decision": {"enum": ["allowed", "blocked"]},
            }))),
            "modelsUsed": list(&object(&["provider", "model"], json!({
                "provider": words, "model": words,
            }))),
            "boundaryDisclosures": list(&object(
                &["direction", "contentHash", "dataClass"],
                json!({
                    "direction": {"enum": ["out", "in"]}, "contentHash": digest(),
                    "dataClass": words,
                }),
            )),
            "costUsd": {"type": "number"},
            "outcome": {"type": "object"},
            "exitCode": {"type": "integer"},
            "decision": {"type": "object"},
            "posture": {"type": "object"},
            "limits": {"type": "object"},
            "usage": {"type": "object"},
            "preimage": {"type": "object"},
            "sealedBy": {"const": "plane"},
            "signatures": list(&reference("Signature")),
        }),
    )
}
