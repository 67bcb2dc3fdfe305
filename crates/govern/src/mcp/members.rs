//! Members of a request that have the wrong type: which one it is.
//!
//! The library takes such a request for one of a method it does not know, or refuses it without its
//! id, so that whoever asked waits for ever. So requests on standard input are looked at first
//! ([`checked`]); one that is wrong goes on as a request that says so.

use rmcp::model::{CustomRequest, ErrorCode, ErrorData};
use serde_json::{Map, Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader, duplex,
};

/// Stands before the method of a request that is wrong.
const WRONG: &str = "warrant.wrong/";

/// How much of the input may wait to be taken.
const WAITING_BYTES: usize = 64 * 1024;

/// The longest message that the library takes; it passes over a longer one without a word.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// The longest message whose id is still looked for, so that it can be answered. A client that
/// sends a longer one is not listened to any more.
// SECURITY: a line without an end must not fill our memory.
const MOST_READ_BYTES: u64 = 4 * MOST_BYTES as u64;

/// Returns the error for a request that the library does not know.
pub(super) fn error_of(request: CustomRequest) -> ErrorData {
    let CustomRequest { method, params, .. } = request;
    if let Some(told) = method.strip_prefix(WRONG) {
        let problem = params.as_ref().and_then(|params| params.get("problem")?.as_str());
        let sentence = problem.map_or_else(|| misfit(told), str::to_owned);
        let is_other = params.as_ref().is_some_and(|params| params.get("isOther").is_some());
        return match is_other {
            true => ErrorData::invalid_request(sentence, None),
            false => ErrorData::invalid_params(sentence, None),
        };
    }
    match (members_of(&method), wrong(&method, params.as_ref())) {
        (None, _) => not_ours(&method),
        (Some(_), Some(sentence)) => ErrorData::invalid_params(sentence, None),
        (Some(_), None) => ErrorData::invalid_params(misfit(&method), None),
    }
}

/// Returns the error for a method that we do not have.
pub(super) fn not_ours(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method.to_owned(), None)
}

fn misfit(method: &str) -> String {
    format!("`params` is not what {method} takes")
}

/// Returns the lines of `reader`, with those marked that are requests with a wrong member.
pub(super) fn checked(
    reader: impl AsyncRead + Send + Unpin + 'static,
) -> impl AsyncRead + Send + Unpin + 'static {
    let (mut ours, theirs) = duplex(WAITING_BYTES);
    tokio::spawn(async move {
        let mut lines = BufReader::new(reader);
        let mut line = Vec::new();
        loop {
            let mut bounded = (&mut lines).take(MOST_READ_BYTES);
            let read = bounded.read_until(b'\n', &mut line).await;
            if !matches!(read, Ok(read) if read > 0) || line.len() as u64 == MOST_READ_BYTES {
                return;
            }
            let marked = marked(&line);
            if ours.write_all(marked.as_deref().unwrap_or(&line)).await.is_err() {
                return;
            }
            line.clear();
        }
    });
    theirs
}

/// Returns the request that says what is wrong with this one, if something is.
fn marked(line: &[u8]) -> Option<Vec<u8>> {
    let message: Map<String, Value> = serde_json::from_slice(line).ok()?;
    let id = message.get("id")?;
    let method = message.get("method")?.as_str()?;
    let params = if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        json!({"problem": "`jsonrpc` must be \"2.0\"", "isOther": true})
    } else if line.len() >= MOST_BYTES {
        json!({"problem": format!("the request is larger than {MOST_BYTES} bytes")})
    } else {
        json!({"problem": wrong(method, message.get("params"))?})
    };
    let marked = json!({
        "jsonrpc": "2.0",
        "id": id,
        "method": format!("{WRONG}{method}"),
        "params": params,
    });
    Some(format!("{marked}\n").into_bytes())
}

/// What a member must be.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Object,
}

/// Returns the members of a method that is ours, those that must be there first.
const fn members_of(method: &str) -> Option<(&'static [(&'static str, Kind)], usize)> {
    match method.as_bytes() {
        b"tools/call" => {
            Some((&[("name", Kind::Text), ("arguments", Kind::Object), ("_meta", Kind::Object)], 1))
        }
        b"tools/list" => Some((&[("cursor", Kind::Text), ("_meta", Kind::Object)], 0)),
        b"ping" => Some((&[("_meta", Kind::Object)], 0)),
        _ => None,
    }
}

/// Returns which member of a request is not what its method takes.
fn wrong(method: &str, params: Option<&Value>) -> Option<String> {
    let (members, needed) = members_of(method)?;
    let none = Map::new();
    let params = match params {
        Some(Value::Object(params)) => params,
        None => &none,
        Some(_) => return Some("`params` must be an object".to_owned()),
    };
    members.iter().enumerate().find_map(|(index, (name, kind))| {
        let (is_right, wanted) = match (params.get(*name), kind) {
            (None, Kind::Text) => (index >= needed, "a text"),
            (None, Kind::Object) => (index >= needed, "an object"),
            (Some(value), Kind::Text) => (value.is_string(), "a text"),
            (Some(value), Kind::Object) => (value.is_object(), "an object"),
        };
        (!is_right).then(|| format!("`params.{name}` must be {wanted}"))
    })
}
