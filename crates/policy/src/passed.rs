//! The record that a policy passed: its rules in Cedar's JSON form, which is read in a fraction of
//! the time that parsing, validating and trying the examples takes.
//!
//! A record speaks of one text and one maker, by a digest over both and the schema. Whoever can
//! write it could as well write the policy; it is kept beside it, for its owner alone.

use serde_json::{Value, json};
use warrant_protocol::{Digest, hash_canonical};

use crate::rules::{PassedRule, Rule, Rules, SCHEMA};
use crate::snapshot::PolicyText;

const VERSION: &str = "warrant.policy-passed.v1";

/// Returns the record of rules that were loaded and tried.
pub(crate) fn write(text: PolicyText<'_>, maker: &str, rules: &Rules) -> Option<String> {
    let rules: Vec<Value> = rules
        .to_passed()
        .ok()?
        .into_iter()
        .map(|passed| {
            json!({"id": passed.rule.id, "reason": passed.rule.reason, "policy": passed.policy})
        })
        .collect();
    Some(json!({"source": source(text, maker), "rules": rules}).to_string())
}

/// Returns the rules of a record, when it is of this text and maker.
pub(crate) fn read(text: PolicyText<'_>, maker: &str, record: &str) -> Option<Rules> {
    let mut record: Value = serde_json::from_str(record).ok()?;
    let members = record.as_object_mut()?;
    if members.get("source")?.as_str()? != source(text, maker).to_string() {
        return None;
    }
    let Value::Array(rows) = members.remove("rules")? else { return None };
    let rules: Option<Vec<PassedRule>> = rows.into_iter().map(rule).collect();
    Rules::of_passed(rules?).ok()
}

fn rule(mut row: Value) -> Option<PassedRule> {
    let members = row.as_object_mut()?;
    let mut take = |name: &str| match members.remove(name)? {
        Value::String(text) => Some(text),
        _ => None,
    };
    let rule = Rule { id: take("id")?, reason: take("reason")? };
    Some(PassedRule { rule, policy: members.remove("policy")? })
}

fn source(text: PolicyText<'_>, maker: &str) -> Digest {
    hash_canonical(&json!({
        "version": VERSION,
        "maker": maker,
        "document": text.document,
        "rules": text.rules,
        "examples": text.examples,
        "schema": SCHEMA,
    }))
}
