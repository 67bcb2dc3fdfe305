//! Small pieces all doors share: JSON answers, the receipt's header, members of a body.

use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value};
use warrant_protocol::RunId;

use crate::doors::WorkshopError;
use crate::http::json_scan::count_values;
use crate::request_context::note_cause;

/// The header that names the run whose receipt speaks of a call.
pub(crate) const RECEIPT_HEADER: HeaderName = HeaderName::from_static("x-receipt-id");

/// Returns a JSON answer.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response {
    bytes(status, "application/json", value.to_string().into_bytes())
}

/// Returns an answer with a body of known length.
pub(crate) fn bytes(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<axum::body::Bytes>,
) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns an answer without a body, and says so: some clients read an answer without a length.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if status != StatusCode::NO_CONTENT {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    response
}

/// Says in a protocol's own words what was refused before it reached a call: a method that is not
/// served, a body or query that cannot be read. Some clients take an error without a body for
/// success.
pub(crate) async fn in_words(
    response: Response,
    fault: fn(StatusCode, &str) -> Response,
) -> Response {
    const MOST_BYTES: usize = 4096;
    let status = response.status();
    let is_plain = header(response.headers(), "content-type")
        .is_some_and(|kind| kind.starts_with("text/plain"));
    let is_refusal = status.is_client_error() || status.is_server_error();
    if status == StatusCode::METHOD_NOT_ALLOWED {
        return fault(status, "this call is not served here");
    }
    if !is_plain || !is_refusal {
        return response;
    }
    // What repeats a long request is not repeated again.
    let body = axum::body::to_bytes(response.into_body(), MOST_BYTES).await;
    let body = body.ok().filter(|body| !body.is_empty());
    let body =
        body.unwrap_or_else(|| axum::body::Bytes::from_static(b"the request cannot be read"));
    fault(status, &String::from_utf8_lossy(&body))
}

/// Names the run whose receipt speaks of this call.
pub(crate) fn with_receipt(mut response: Response, run: Option<&RunId>) -> Response {
    if let Some(value) = run.and_then(|run| HeaderValue::from_str(run.as_str()).ok()) {
        response.headers_mut().insert(RECEIPT_HEADER, value);
    }
    response
}

/// Returns a header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the token of `Authorization: Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = header(headers, "authorization")?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the sandbox that the path of a request names as `{id}`; no sandbox has the empty name.
pub(crate) async fn sandbox_of(parts: &mut Parts) -> String {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let named = params.iter().flat_map(|params| params.iter()).find(|(name, _)| *name == "id");
    named.map_or_else(String::new, |(_, id)| id.to_owned())
}

/// Returns what a client is told of a refusal: reasons of policy carry a word for programs.
pub(crate) fn told(error: &WorkshopError) -> String {
    match error {
        WorkshopError::Denied { .. } => format!("DENY_POLICY_VIOLATION: {error}"),
        WorkshopError::Waiting { .. } => format!("DENY_APPROVAL_REQUIRED: {error}"),
        WorkshopError::Refused { .. } => format!("DENY_SANDBOX_TRAP: {error}"),
        WorkshopError::Failed(cause) => {
            note_cause(cause.as_str());
            error.to_string()
        }
        other => other.to_string(),
    }
}

/// Undoes the encoding of a form's text once: `%20`, and `+` for a space.
pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Replaces text everywhere and counts how often; nothing when the result would be larger than any
/// file that travels.
///
/// SECURITY: a long text for each of many short ones would take all the memory there is.
pub(crate) fn replaced(text: &str, old: &str, new: &str) -> Option<(String, usize)> {
    let count = text.matches(old).count();
    let kept = text.len().checked_sub(count.checked_mul(old.len())?)?;
    let length = count.checked_mul(new.len())?.checked_add(kept)?;
    (length <= crate::doors::MAX_BODY_BYTES).then(|| (text.replace(old, new), count))
}

/// Checks that JSON is not too complex to be read.
///
/// SECURITY: few bytes can become many values, and the values of many bodies all the memory there
/// is.
pub(crate) fn check_complexity(body: &[u8]) -> Result<(), String> {
    const MOST_VALUES: usize = 100_000;
    count_values(body, MOST_VALUES).map(drop).map_err(|error| error.to_string())
}

/// Reads a body that must be a JSON object; an empty one is an empty object.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, String> {
    if body.is_empty() {
        return Ok(Map::new());
    }
    check_complexity(body)?;
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("the body is no JSON object".to_owned()),
        Err(_) => Err("the body is no JSON".to_owned()),
    }
}

/// Returns the first member that is set and not among `known`.
///
/// SECURITY: a setting that is not known cannot be enforced, so it must not be taken silently.
pub(crate) fn unknown_member<'a>(map: &'a Map<String, Value>, known: &[&str]) -> Option<&'a str> {
    let mut set = map.iter().filter(|(_, value)| !value.is_null());
    set.find(|(name, _)| !known.contains(&name.as_str())).map(|(name, _)| name.as_str())
}

/// Returns a member that must be text if it is set.
pub(crate) fn text(map: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{name} must be a string")),
    }
}

/// Returns a member that must be a number, not negative, if it is set.
pub(crate) fn number(map: &Map<String, Value>, name: &str) -> Result<Option<f64>, String> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => Err(format!("{name} must be a number of at least 0")),
        },
    }
}

/// Returns a member that must be a whole number, not negative, if it is set.
pub(crate) fn whole(map: &Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name} must be a whole number of at least 0")),
        },
    }
}

/// Returns a member that must be true or false if it is set.
pub(crate) fn boolean(map: &Map<String, Value>, name: &str) -> Result<Option<bool>, String> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(format!("{name} must be true or false")),
    }
}

/// Returns a member that must be an object of texts if it is set.
pub(crate) fn texts(
    map: &Map<String, Value>,
    name: &str,
) -> Result<std::collections::BTreeMap<String, String>, String> {
    let members = match map.get(name) {
        None | Some(Value::Null) => return Ok(std::collections::BTreeMap::new()),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(format!("{name} must be an object of strings")),
    };
    let text = |(key, value): (&String, &Value)| match value {
        Value::String(text) => Ok((key.clone(), text.clone())),
        _ => Err(format!("{name}.{key} must be a string")),
    };
    members.iter().map(text).collect()
}

/// Returns a member that must be a list of texts if it is set.
pub(crate) fn list(map: &Map<String, Value>, name: &str) -> Result<Option<Vec<String>>, String> {
    let items = match map.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(format!("{name} must be a list of strings")),
    };
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        _ => Err(format!("{name} must be a list of strings")),
    };
    items.iter().map(text).collect::<Result<_, _>>().map(Some)
}

/// Returns the permissions as `ls` writes them.
pub(crate) fn permissions(kind: crate::doors::EntryKind, mode: u32) -> String {
    use crate::doors::EntryKind;
    let first = match kind {
        EntryKind::Directory => 'd',
        EntryKind::Link => 'l',
        EntryKind::File | EntryKind::Other => '-',
    };
    let bit = |shift: u32, letter: char| if mode >> shift & 1 == 1 { letter } else { '-' };
    let bits =
        [(8, 'r'), (7, 'w'), (6, 'x'), (5, 'r'), (4, 'w'), (3, 'x'), (2, 'r'), (1, 'w'), (0, 'x')];
    std::iter::once(first).chain(bits.map(|(shift, letter)| bit(shift, letter))).collect()
}

/// Returns nanoseconds since 1970 as RFC 3339.
pub(crate) fn rfc3339(ns: i128) -> String {
    let ms = u64::try_from(ns / 1_000_000).unwrap_or(0);
    warrant_protocol::Timestamp::from_unix_ms(ms)
        .map_or_else(|_| "1970-01-01T00:00:00.000Z".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_cannot_eat_the_memory_of_the_plane() {
        let many = "a".repeat(1024 * 1024);
        assert_eq!(replaced(&many, "a", &many), None);
        assert_eq!(replaced("a-a", "a", "bb"), Some(("bb-bb".to_owned(), 2)));
        assert_eq!(replaced("a-a", "x", &many), Some(("a-a".to_owned(), 0)));
    }

    #[test]
    fn the_encoding_of_a_form_is_undone_once() {
        assert_eq!(decoded("a%20b+c%2525%"), "a b c%25%");
    }
}
