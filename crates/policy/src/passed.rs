//! The record that a policy passed: of every rule what has to be known of it, and the rule in
//! Cedar's JSON form, to be read when it is needed.
//!
//! Its first line is a digest over the text it speaks of, the maker, the schema and the rest of the
//! record; a record of anything else, or one that was damaged, is none. Whoever can write it could
//! as well write the policy; it is kept beside it, for its owner alone.

use serde::{Deserialize, Serialize};
use warrant_protocol::Digest;

use crate::rules::{PassedRule, Rules, SCHEMA};
use crate::snapshot::PolicyText;

const VERSION: &str = "warrant.policy-passed.v3";

/// What is below the first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    /// The digest of the snapshot.
    hash: Digest,
    rules: Vec<PassedRule>,
}

/// Returns the record of rules that were loaded and tried, of a snapshot with this digest.
pub(crate) fn write(
    text: PolicyText<'_>,
    maker: &str,
    (rules, hash): (&Rules, Digest),
) -> Option<String> {
    let body = Body { hash, rules: rules.to_passed().ok()? };
    let body = serde_json::to_string(&body).ok()?;
    Some(format!("{}\n{body}", source(text, maker, &body)))
}

/// Returns the rules of a record and the snapshot's digest, when it is of this text and maker.
pub(crate) fn read(text: PolicyText<'_>, maker: &str, record: &str) -> Option<(Rules, Digest)> {
    let (digest, body) = record.split_once('\n')?;
    if digest != source(text, maker, body).to_string() {
        return None;
    }
    let Body { hash, rules } = serde_json::from_str(body).ok()?;
    Some((Rules::of_passed(rules).ok()?, hash))
}

fn source(text: PolicyText<'_>, maker: &str, body: &str) -> Digest {
    let PolicyText { document, rules, examples } = text;
    let mut bytes = Vec::new();
    for part in [VERSION, maker, document, rules, examples, SCHEMA, body] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    Digest::of(&bytes)
}
