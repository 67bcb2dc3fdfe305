//! Takes the values of secrets out of a request before it is kept.
//!
//! Only the secrets that the request itself names are looked for. Values shorter than a word are
//! not, because ordinary commands hold them, too.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use warrant_plane::secrets::Secrets;
use warrant_protocol::json::{InvalidJson, to_value, view};
use warrant_protocol::port::SecretValue;
use warrant_protocol::{RunRequest, SecretName};
use warrant_runner::Redactor;

/// The shortest value that is looked for.
const SHORTEST: usize = 8;

/// What stands for a value in members that take only the letters of a name, as hosts do.
const PLAIN: &str = "redacted";

/// Hides the values that a request holds of the secrets it names.
pub(crate) struct Veil {
    redactors: Vec<Redactor>,
    /// Which secret was found first.
    pub(crate) name: SecretName,
    /// In which member of the request.
    pub(crate) field: String,
}

impl Veil {
    /// Returns a veil when `request` holds a value of a secret it names.
    ///
    /// # Errors
    /// [`InvalidJson`] when the request has no JSON form.
    pub(crate) fn over(
        secrets: &Secrets,
        request: &RunRequest,
    ) -> Result<Option<Self>, InvalidJson> {
        if request.secret_names.is_empty() {
            return Ok(None);
        }
        let mut redactors = Vec::new();
        let mut found = None;
        let value = to_value(request)?;
        // Where they do not open nothing is released, so nothing runs.
        for secret in secrets.known(&request.secret_names).unwrap_or_default() {
            if secret.value.len() < SHORTEST {
                continue;
            }
            let value_of =
                SecretValue { name: secret.name.clone(), value: secret.value.to_string() };
            let Ok(redactor) = Redactor::new(&[value_of]) else { continue };
            if found.is_none()
                && let Some(field) = named(&redactor, &value)
            {
                found = Some((secret.name, field));
            }
            redactors.push(redactor);
        }
        Ok(found.map(|(name, field)| Self { redactors, name, field }))
    }

    /// Returns `value` without the values of secrets, or nothing if what is left cannot be read.
    pub(crate) fn hide<T: Serialize + DeserializeOwned>(&self, value: &T) -> Option<T> {
        let json = to_value(value).ok()?;
        view(&self.hidden(&json, None)).or_else(|_| view(&self.hidden(&json, Some(PLAIN)))).ok()
    }

    fn hidden(&self, value: &Value, plain: Option<&str>) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text, plain)),
            Value::Array(all) => all.iter().map(|each| self.hidden(each, plain)).collect(),
            Value::Object(members) => {
                let member = |(key, value): (&String, &Value)| {
                    (self.text(key, plain), self.hidden(value, plain))
                };
                Value::Object(members.iter().map(member).collect::<Map<_, _>>())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn text(&self, text: &str, plain: Option<&str>) -> String {
        let held = self.redactors.iter().any(|redactor| finds(redactor, text));
        match plain {
            Some(plain) if held => plain.to_owned(),
            _ => self.redactors.iter().fold(text.to_owned(), |text, redactor| {
                let hidden = redactor.redact_text(&text);
                // Hosts are kept in lower case, whatever was asked for.
                if finds(redactor, &hidden) { PLAIN.to_owned() } else { hidden }
            }),
        }
    }
}

fn finds(redactor: &Redactor, text: &str) -> bool {
    redactor.redact_host(text) != text
}

/// Returns the member that holds a value. The task repeats the command, so it is told last.
fn named(redactor: &Redactor, request: &Value) -> Option<String> {
    let mut rest = request.clone();
    if let Some(members) = rest.as_object_mut() {
        members.remove("prompt");
    }
    let found = holder(redactor, &rest, String::new());
    found.or_else(|| holder(redactor, request, String::new()))
}

/// Returns the first member that holds a value, as `execution.args.1`.
fn holder(redactor: &Redactor, value: &Value, at: String) -> Option<String> {
    let below = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    match value {
        Value::String(text) => finds(redactor, text).then_some(at),
        Value::Array(all) => (all.iter().enumerate())
            .find_map(|(index, each)| holder(redactor, each, below(&index.to_string()))),
        Value::Object(members) => members.iter().find_map(|(key, value)| {
            if finds(redactor, key) {
                return Some(at.clone());
            }
            holder(redactor, value, below(key))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}
