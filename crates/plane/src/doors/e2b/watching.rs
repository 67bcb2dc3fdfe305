//! E2B's watched directories: as one stream, and as a watcher that is asked again and again.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use warrant_protocol::RunId;

use super::Visit;
use super::commands::{check_user, keepalive, stream_of_fault, stream_response, timeout};
use super::connect::{self, Fault};
use super::files::row;
use crate::doors::reply::{self, boolean, text, unknown_member};
use crate::doors::{Change, FileAnswer, FileCall, Lookout, Over, Sighting, WorkshopError};

pub(crate) async fn watch(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    let wish = check_user(&headers)
        .and_then(|()| connect::request(&body))
        .and_then(|request| wish(&request).map_err(Fault::invalid));
    let opened = match wish {
        Ok(wish) => open(visit, wish).await,
        Err(fault) => Err(fault),
    };
    match opened {
        Ok((lookout, run)) => {
            let body = sightings(Attended(lookout), &headers);
            reply::with_receipt(stream_response(body), Some(&run))
        }
        Err(fault) => stream_of_fault(&fault),
    }
}

pub(crate) async fn create(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    let wish = check_user(&headers).and_then(|()| {
        reply::object(&body).and_then(|request| wish(&request)).map_err(Fault::invalid)
    });
    let opened = match wish {
        Ok(wish) => open(visit, wish).await,
        Err(fault) => Err(fault),
    };
    match opened {
        Ok((lookout, run)) => connect::answer(&json!({ "watcherId": lookout.id() }), Some(&run)),
        Err(fault) => connect::error(&fault),
    }
}

pub(crate) async fn events(visit: Visit, body: Bytes) -> Response {
    on_lookout(visit, &body, |lookout| {
        let taken = lookout.take().map_err(|over| fault_of(&over))?;
        let rows: Vec<Value> = taken.iter().map(told).collect();
        Ok(json!({ "events": rows }))
    })
    .await
}

pub(crate) async fn remove(visit: Visit, body: Bytes) -> Response {
    on_lookout(visit, &body, |lookout| {
        lookout.end();
        Ok(json!({}))
    })
    .await
}

/// Reads what is to be watched. No directory of a sandbox is on a network, so that one may be
/// changes nothing.
fn wish(request: &Map<String, Value>) -> Result<FileCall, String> {
    let known = ["path", "recursive", "includeEntry", "allowNetworkMounts"];
    if let Some(name) = unknown_member(request, &known) {
        return Err(format!("{name} is not served here"));
    }
    boolean(request, "allowNetworkMounts")?;
    match text(request, "path")? {
        Some(path) if !path.is_empty() => Ok(FileCall::Watch {
            path,
            recursive: boolean(request, "recursive")?.unwrap_or(false),
            entries: boolean(request, "includeEntry")?.unwrap_or(false),
        }),
        _ => Err("path is missing".to_owned()),
    }
}

async fn open(visit: Visit, wish: FileCall) -> Result<(Arc<Lookout>, RunId), Fault> {
    let opened = visit.ask(move |workshop, visit| workshop.file(&visit.0, &visit.1, wish)).await;
    match opened {
        Ok((FileAnswer::Lookout(lookout), run)) => Ok((lookout, run)),
        Ok(_) => Err(Fault::from(&WorkshopError::because("a call on files gave another answer"))),
        Err(error) => Err(Fault::from(&error)),
    }
}

/// Does something with the watcher a request names, on a thread that may wait.
async fn on_lookout(
    visit: Visit,
    body: &[u8],
    act: fn(&Lookout) -> Result<Value, Fault>,
) -> Response {
    let id = reply::object(body).and_then(|request| text(&request, "watcherId"));
    let id = match id {
        Ok(id) => id.unwrap_or_default(),
        Err(message) => return connect::error(&Fault::invalid(message)),
    };
    let done = visit.ask(move |workshop, visit| {
        let all = workshop.lookouts(&visit.0, &visit.1)?;
        let found = all.into_iter().find(|lookout| lookout.id() == id);
        Ok(found.map(|lookout| (act(&lookout), lookout.run().clone())))
    });
    match done.await {
        Ok(Some((Ok(answer), run))) => connect::answer(&answer, Some(&run)),
        Ok(Some((Err(fault), run))) => connect::error(&Fault { run: Some(run), ..fault }),
        Ok(None) => connect::error(&Fault {
            code: "not_found",
            message: "there is no such watcher".to_owned(),
            run: None,
        }),
        Err(error) => connect::error(&Fault::from(&error)),
    }
}

/// A watch that ends when its stream does.
struct Attended(Arc<Lookout>);

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Streams what happens until the watch is over or the client's own time is.
fn sightings(lookout: Attended, headers: &HeaderMap) -> Body {
    // A time too far away to be counted is none.
    let deadline =
        timeout(headers).and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
    let state = Watching { lookout, every: keepalive(headers), deadline, is_over: false };
    let rest = stream::unfold(state, |mut state| async move {
        if state.is_over {
            return None;
        }
        let bytes = state.next().await;
        Some((Ok::<Bytes, std::convert::Infallible>(bytes), state))
    });
    let first = connect::message(&json!({ "start": {} }));
    let first = stream::once(async move { Ok::<Bytes, std::convert::Infallible>(first) });
    Body::from_stream(futures_util::StreamExt::chain(first, rest))
}

struct Watching {
    lookout: Attended,
    every: Duration,
    deadline: Option<Instant>,
    is_over: bool,
}

impl Watching {
    async fn next(&mut self) -> Bytes {
        let lookout = &self.lookout.0;
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let wait = left.map_or(self.every, |left| left.min(self.every));
        let next = tokio::time::timeout(wait, lookout.next()).await.ok();
        let fault = match next {
            Some(Ok(sighting)) => {
                return connect::message(&json!({ "filesystem": told(&sighting) }));
            }
            None if self.deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                return connect::message(&json!({ "keepalive": {} }));
            }
            Some(Err(over)) => fault_of(&over),
            None => {
                let message = "the time of this watch is over".to_owned();
                Fault { code: "deadline_exceeded", message, run: None }
            }
        };
        self.is_over = true;
        connect::end(Some(&fault), Some(lookout.run()))
    }
}

fn fault_of(over: &Over) -> Fault {
    let (code, message) = match over {
        Over::Ended => ("unavailable", "the sandbox or its watch has ended".to_owned()),
        Over::Missed(why) => ("data_loss", format!("not everything can be told: {why}")),
    };
    Fault { code, message, run: None }
}

fn told(sighting: &Sighting) -> Value {
    let kind = match sighting.change {
        Change::Created => "EVENT_TYPE_CREATE",
        Change::Written => "EVENT_TYPE_WRITE",
        Change::Removed => "EVENT_TYPE_REMOVE",
        Change::Renamed => "EVENT_TYPE_RENAME",
        Change::Marked => "EVENT_TYPE_CHMOD",
    };
    let mut event = json!({ "name": sighting.name, "type": kind });
    if let (Some(entry), Some(event)) = (&sighting.entry, event.as_object_mut()) {
        event.insert("entry".into(), row(entry));
    }
    event
}
