//! What was found about a sandbox, written into the plan so that the receipt binds it.

use serde_json::{Value, json};

use super::Readied;
use super::adapter::Told;

/// Writes what was found into the plan, so that the receipt binds it.
pub(super) fn bind(artifact: &mut Value, readied: &Readied) {
    let Value::Object(members) = artifact else { return };
    let Readied { session, observed, look } = readied;
    let told = |told: &Told<String>| match told {
        Told::Is(text) => json!(text),
        Told::Nothing => Value::Null,
    };
    let number = |told: &Told<u64>| match told {
        Told::Is(number) => json!(number),
        Told::Nothing => Value::Null,
    };
    let egress = match &observed.egress {
        Told::Is(egress) => json!({ "applied": egress.rules, "mechanism": egress.mechanism }),
        Told::Nothing => json!({ "applied": "unknown" }),
    };
    let limits = members.get("limits").cloned().unwrap_or(Value::Null);
    let sandbox = json!({
        "id": session.handle.id,
        "session": session.spec.session,
        "home": session.spec.home,
        "image": told(&observed.image),
        "class": told(&observed.class),
    });
    members.insert("sandbox".to_owned(), sandbox);
    if let Told::Is(digest) = &observed.image_digest {
        members.insert("image_digest".to_owned(), json!(digest));
    }
    let rules = json!({ "requested": members.get("network"), "readBack": egress });
    members.insert("egress_policy".to_owned(), rules);
    let mounts = match &observed.mounts {
        Told::Is(mounts) => mounts.clone(),
        Told::Nothing => json!([]),
    };
    members.insert("mounts".to_owned(), mounts);
    let limits = json!({
        "requested": limits,
        "readBack": {
            "memoryBytes": number(&observed.memory_bytes),
            "diskBytes": number(&observed.disk_bytes),
            "cpuMilli": number(&observed.cpu_milli),
        },
        "insideMemoryBytes": look.memory_bytes,
    });
    members.insert("resource_limits".to_owned(), limits);
}

/// Returns JSON as it can be signed: what is absent is left out, and a number is whole or a text.
pub(super) fn signable(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let told = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(told.map(|(name, value)| (name, signable(value))).collect())
        }
        Value::Array(items) => {
            Value::Array(items.into_iter().filter(|item| !item.is_null()).map(signable).collect())
        }
        Value::Number(number) if number.as_u64().is_none_or(|number| number >= 1 << 53) => {
            Value::String(number.to_string())
        }
        other => other,
    }
}
