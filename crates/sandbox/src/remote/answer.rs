//! Reads members out of a provider's JSON, naming what is missing.

use serde_json::Value;

use super::adapter::Told;
use super::wire::WireError;

/// Returns a text member that must be there.
pub(crate) fn text(what: &'static str, value: &Value, name: &str) -> Result<String, WireError> {
    let found = value.get(name).and_then(Value::as_str);
    found
        .map(str::to_owned)
        .ok_or_else(|| WireError::Malformed { what, why: format!("{name} is missing or no text") })
}

/// Returns the name of a sandbox, which becomes part of addresses.
pub(crate) fn id(what: &'static str, value: &Value, name: &str) -> Result<String, WireError> {
    let id = text(what, value, name)?;
    let is_plain = !id.is_empty()
        && id.len() <= 128
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && id != "."
        && id != "..";
    // SECURITY: a name with a slash or a question mark would lead our key to another path.
    if is_plain {
        Ok(id)
    } else {
        Err(WireError::Malformed { what, why: format!("{name} is no name of a sandbox") })
    }
}

/// Goes on when an answer speaks of the sandbox that was asked about.
pub(crate) fn same_id(
    what: &'static str,
    value: &Value,
    (name, wanted): (&str, &str),
) -> Result<(), WireError> {
    let found = id(what, value, name)?;
    if found == wanted {
        return Ok(());
    }
    Err(WireError::Malformed { what, why: "it speaks of another sandbox".to_owned() })
}

/// Returns the text as part of an address, with everything but plain characters escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// Returns a list of texts, if it is one.
pub(crate) fn texts(value: &Value) -> Option<Vec<String>> {
    let list = value.as_array()?;
    list.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

/// Returns a text that may be told.
pub(crate) fn told(value: Option<&Value>) -> Told<String> {
    match value.and_then(Value::as_str) {
        Some(text) => Told::Is(text.to_owned()),
        None => Told::Nothing,
    }
}

/// Returns an amount that may be told, in units of this many.
pub(crate) fn told_amount(value: Option<&Value>, unit: u64) -> Told<u64> {
    match value.and_then(Value::as_u64) {
        // Nobody has nothing: it means that nothing is told.
        None | Some(0) => Told::Nothing,
        Some(count) => Told::Is(count.saturating_mul(unit)),
    }
}

/// Returns the mounts of a provider that leaves the member out when there is none.
pub(crate) fn told_mounts(value: Option<&Value>) -> Told<Value> {
    match value {
        None | Some(Value::Null) => Told::Is(Value::Array(Vec::new())),
        Some(mounts) => Told::Is(mounts.clone()),
    }
}

/// Returns the members of a list; anything else has none.
pub(crate) fn items(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Returns the number of a signal as Go spells it.
pub(crate) fn signal_number(name: &str) -> Option<u8> {
    let name = name.split(" (").next().unwrap_or(name);
    Some(match name {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "illegal instruction" => 4,
        "trace/breakpoint trap" => 5,
        "aborted" => 6,
        "bus error" => 7,
        "floating point exception" => 8,
        "killed" => 9,
        "user defined signal 1" => 10,
        "segmentation fault" => 11,
        "user defined signal 2" => 12,
        "broken pipe" => 13,
        "alarm clock" => 14,
        "terminated" => 15,
        "CPU time limit exceeded" => 24,
        "file size limit exceeded" => 25,
        other => other.strip_prefix("signal ")?.parse().ok()?,
    })
}
