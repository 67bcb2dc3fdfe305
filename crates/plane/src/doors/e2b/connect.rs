//! Connect with the JSON codec: envelopes of streams, errors of unary calls and of streams.

use axum::http::StatusCode;
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Map, Value, json};
use warrant_protocol::RunId;

use crate::doors::{FileFault, WorkshopError, reply};

/// Marks the last envelope of a stream.
const END_OF_STREAM: u8 = 2;
/// Flags and length before every message.
const HEAD: usize = 5;
/// The largest message of a client's stream.
const MOST_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// An error in Connect's words.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// Connect's code.
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) message: String,
    /// The run whose receipt speaks of it.
    pub(crate) run: Option<RunId>,
}

impl Fault {
    /// Returns the fault that an HTTP status stands for.
    pub(crate) fn of(status: StatusCode, message: &str) -> Self {
        let code = match status {
            StatusCode::METHOD_NOT_ALLOWED => "unimplemented",
            StatusCode::PAYLOAD_TOO_LARGE => "resource_exhausted",
            _ => "invalid_argument",
        };
        Self { code, message: message.to_owned(), run: None }
    }

    /// Returns a fault of the caller's making.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: "invalid_argument", message: message.into(), run: None }
    }
}

impl From<&WorkshopError> for Fault {
    fn from(error: &WorkshopError) -> Self {
        let code = match error {
            WorkshopError::NoSandbox => "not_found",
            WorkshopError::Paused | WorkshopError::Busy(_) => "failed_precondition",
            WorkshopError::Denied { .. }
            | WorkshopError::Waiting { .. }
            | WorkshopError::Refused { .. } => "permission_denied",
            WorkshopError::Invalid(_) => "invalid_argument",
            WorkshopError::File { fault, .. } => match fault {
                FileFault::Missing => "not_found",
                FileFault::Exists => "already_exists",
                FileFault::Forbidden => "permission_denied",
                FileFault::TooLarge => "resource_exhausted",
                FileFault::IsDirectory | FileFault::NotDirectory | FileFault::NotEmpty => {
                    "invalid_argument"
                }
            },
            WorkshopError::Failed(_) => "internal",
        };
        Self { code, message: reply::told(error), run: error.run().cloned() }
    }
}

/// Returns the answer to a unary call that failed.
pub(crate) fn error(fault: &Fault) -> Response {
    let status = match fault.code {
        "invalid_argument" | "failed_precondition" => StatusCode::BAD_REQUEST,
        "unauthenticated" => StatusCode::UNAUTHORIZED,
        "permission_denied" => StatusCode::FORBIDDEN,
        "not_found" => StatusCode::NOT_FOUND,
        "already_exists" => StatusCode::CONFLICT,
        "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
        "unimplemented" => StatusCode::NOT_IMPLEMENTED,
        "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let body = json!({ "code": fault.code, "message": fault.message });
    reply::with_receipt(reply::json(status, &body), fault.run.as_ref())
}

/// Returns the answer to a unary call.
pub(crate) fn answer(value: &Value, run: Option<&RunId>) -> Response {
    reply::with_receipt(reply::json(StatusCode::OK, value), run)
}

/// Reads the one envelope of a server stream's request.
pub(crate) fn request(body: &[u8]) -> Result<Map<String, Value>, Fault> {
    let Some((head, rest)) = body.split_first_chunk::<HEAD>() else {
        return Err(Fault::invalid("the request has no envelope"));
    };
    let [flags, length @ ..] = head;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if *flags != 0 {
        return Err(Fault::invalid("compressed envelopes are not read"));
    }
    match rest.get(..length) {
        Some(message) if rest.len() == length => reply::object(message).map_err(Fault::invalid),
        _ => Err(Fault::invalid("the envelope has another length than it says")),
    }
}

/// Takes the next whole message of a client's stream off what has arrived, if there is one.
pub(crate) fn next_message(arrived: &mut BytesMut) -> Result<Option<Map<String, Value>>, Fault> {
    let Some(head) = arrived.first_chunk::<HEAD>() else { return Ok(None) };
    let [_, length @ ..] = head;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MOST_MESSAGE_BYTES {
        let message = "one message is larger than is read here".to_owned();
        return Err(Fault { code: "resource_exhausted", message, run: None });
    }
    match arrived.len() < HEAD + length {
        true => Ok(None),
        false => request(&arrived.split_to(HEAD + length)).map(Some),
    }
}

/// Returns one message of a stream.
pub(crate) fn message(value: &Value) -> Bytes {
    envelope(0, value)
}

/// Returns the end of a stream, with the receipt in its trailing metadata.
pub(crate) fn end(fault: Option<&Fault>, run: Option<&RunId>) -> Bytes {
    let mut last = Map::new();
    if let Some(fault) = fault {
        last.insert("error".into(), json!({ "code": fault.code, "message": fault.message }));
    }
    if let Some(run) = run {
        last.insert("metadata".into(), json!({ "x-receipt-id": [run.as_str()] }));
    }
    envelope(END_OF_STREAM, &Value::Object(last))
}

fn envelope(flags: u8, value: &Value) -> Bytes {
    let text = value.to_string();
    let mut bytes = BytesMut::with_capacity(text.len() + HEAD);
    bytes.put_u8(flags);
    bytes.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    bytes.put_slice(text.as_bytes());
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_that_lies_about_its_length_is_refused() {
        let good = envelope(0, &json!({"a": 1}));
        assert_eq!(request(&good).unwrap().get("a"), Some(&json!(1)));
        let mut long = good.to_vec();
        long.push(b' ');
        assert!(request(&long).is_err());
        assert!(request(good.get(..good.len() - 1).unwrap()).is_err());
        assert!(request(b"").is_err());
        assert!(request(&envelope(1, &json!({}))).is_err());
    }

    #[test]
    fn messages_that_arrive_in_pieces_are_read_one_by_one_and_bounded() {
        let mut all = envelope(0, &json!({"a": 1})).to_vec();
        all.extend_from_slice(&envelope(0, &json!({"b": 2})));
        let mut arrived = BytesMut::new();
        let mut read = Vec::new();
        for byte in all {
            arrived.put_u8(byte);
            read.extend(next_message(&mut arrived).unwrap());
        }
        assert_eq!(read.iter().flat_map(Map::keys).collect::<Vec<_>>(), ["a", "b"]);
        assert!(arrived.is_empty());
        assert!(next_message(&mut BytesMut::from(&[0, 255, 255, 255, 255][..])).is_err());
    }
}
