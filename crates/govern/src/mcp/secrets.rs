//! Values of secrets in answers: what a run of this client was given is taken out of whatever the
//! client is told from then on, also where another run finds it again, as in the name of a file.
//!
//! Secrets that no run of this client got are not looked for: a client would learn from what is
//! left out of its own words that it guessed one.

use serde_json::Value;
use warrant_protocol::port::SecretValue;
use warrant_protocol::{SecretName, error_chain};
use warrant_runner::Redactor;

use super::Server;
use super::answer::Answer;

impl Server {
    /// Remembers that a run was given these secrets.
    pub(super) fn given(&self, names: &[SecretName]) {
        self.done().secrets.extend(names.iter().cloned());
    }

    /// Returns what takes the secrets out that runs of this client were given, or the answer that
    /// is given instead when they cannot be looked up.
    pub(super) fn redactor(&self) -> Result<Redactor, Answer> {
        let names: Vec<SecretName> = self.done().secrets.iter().cloned().collect();
        if names.is_empty() {
            return Ok(Redactor::none());
        }
        let withheld = |why: &str| {
            Answer::broken(&format!("the answer is withheld, because it may hold secrets: {why}"))
        };
        let desk = self.bench.desk().map_err(|error| withheld(&error_chain(&error)))?;
        let known = desk.plane().secrets().known(&names);
        let known = known.map_err(|error| withheld(&error_chain(&error)))?;
        let values = known.iter().map(|secret| SecretValue {
            name: secret.name.clone(),
            value: secret.value.to_string(),
        });
        let values: Vec<SecretValue> = values.collect();
        Redactor::new(&values).map_err(|error| withheld(&error_chain(&error)))
    }
}

/// Returns JSON without the values of secrets.
pub(super) fn redacted(value: Value, redactor: &Redactor) -> Value {
    match value {
        Value::String(text) => Value::String(redactor.redact_text(&text)),
        Value::Array(all) => all.into_iter().map(|each| redacted(each, redactor)).collect(),
        Value::Object(members) => {
            let member = |(key, value): (String, Value)| {
                (redactor.redact_text(&key), redacted(value, redactor))
            };
            Value::Object(members.into_iter().map(member).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}
