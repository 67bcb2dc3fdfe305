//! E2B's `StreamInput`: what a client writes to a command, as one stream of messages that arrive
//! one after the other for as long as the client likes.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::BytesMut;
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};

use super::Visit;
use super::commands::{find, give, stream_of_fault, stream_response};
use super::connect::{self, Fault};
use crate::doors::Process;
use crate::doors::reply::unknown_member;
use crate::request_context::keep_cause;

pub(crate) async fn stream_input(visit: Visit, body: Body) -> Response {
    match take_in(&visit, body).await {
        Ok(()) => {
            let mut bytes = connect::message(&json!({})).to_vec();
            bytes.extend_from_slice(&connect::end(None, None));
            stream_response(Body::from(bytes))
        }
        Err(fault) => stream_of_fault(&fault),
    }
}

/// Writes every piece as it arrives. No more than one message waits here.
async fn take_in(visit: &Visit, body: Body) -> Result<(), Fault> {
    let mut pieces = body.into_data_stream();
    let mut kept = BytesMut::new();
    let mut process = None;
    while let Some(piece) = pieces.next().await {
        let piece =
            piece.map_err(|error| keep_cause(&error, Fault::invalid("the input was cut off")))?;
        kept.extend_from_slice(&piece);
        while let Some(message) = connect::next_message(&mut kept)? {
            process = Some(follow(visit, process, message).await?);
        }
    }
    match (kept.is_empty(), process) {
        (true, Some(_)) => Ok(()),
        (true, None) => Err(Fault::invalid("start is missing")),
        (false, _) => Err(Fault::invalid("the last envelope was cut off")),
    }
}

/// Does what one message says; the first must say to which command the others go.
async fn follow(
    visit: &Visit,
    process: Option<Arc<Process>>,
    message: Map<String, Value>,
) -> Result<Arc<Process>, Fault> {
    if let Some(name) = unknown_member(&message, &["start", "data", "keepalive"]) {
        return Err(Fault::invalid(format!("{name} is not served here")));
    }
    let Some(process) = process else {
        let start = message.get("start").and_then(Value::as_object);
        return find(visit, start.ok_or_else(|| Fault::invalid("start is missing"))?);
    };
    let Some(data) = message.get("data").and_then(Value::as_object).cloned() else {
        return match message.contains_key("start") {
            true => Err(Fault::invalid("start comes once")),
            false => Ok(process),
        };
    };
    give(&process, &data).await.map(|()| process)
}
